"""A target and its backend in a few lines: the step of a cell as a Python module over NumPy."""

import runpy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from cellgen.language.notation import ATOM, Notation, Text
from cellgen.language.ops import operator_of, shape_of
from cellgen.runtime.abi import Function, Interface
from cellgen.runtime.backend import AnyKernel, Need
from cellgen.runtime.build import cache
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.folders import read_files, read_interface
from cellgen.runtime.results import result_class
from cellgen.schedule import PlannedFunction
from cellgen.targets.target import NotYet, PlannedCell

SUFFIX = "_numpy.py"
FUNCTIONS = ("exp", "sigmoid", "sqrt", "tanh")
PRELUDE = "from numpy import exp, sqrt, tanh\n\n\ndef sigmoid(x):\n    return 1 / (1 + exp(-x))\n"


class UnspelledError(Exception):
    """What the module has no function for."""


class NumPyNotation(Notation):
    """Equations as they are printed, which is Python but for sums."""

    def call(self, row, arguments):
        if row.name not in FUNCTIONS:
            raise UnspelledError(row.name)
        return super().call(row, arguments)

    def operator(self, node):
        row = operator_of(node)
        if row.is_sum and shape_of(node.operands[0])[1:] == shape_of(node):
            return Text(f"{self(node.operands[0])}.sum(0)", ATOM)
        if not (row.text or row.is_onto):
            raise UnspelledError(node.op)
        return super().operator(node)


@dataclass(frozen=True)
class NumPyTarget:
    name: str = "numpy"
    suffixes: tuple[str, ...] = (SUFFIX,)

    def render(self, cell: PlannedCell) -> dict[str, str] | NotYet:
        try:
            return {SUFFIX: "\n\n".join([PRELUDE, *map(_function, cell.schedule.functions)])}
        except UnspelledError as error:
            return NotYet(f"NumPy has no {error} here")

    def explain(self, cell: PlannedCell) -> list[str]:
        return [f"{f.name}: {len(f.program.statements)} lines" for f in cell.schedule.functions]

    def plans(self, cell: PlannedCell) -> list[str]:
        return []


def _function(function: PlannedFunction) -> str:
    program, spell = function.program, NumPyNotation()
    names = [f"{v.name}{'=0.0' if v in program.optional else ''}" for v in program.arguments]
    lines = [f"{s.target.name} = {spell(s.expression)}" for s in program.statements]
    lines.append(f"return ({''.join(f'{result.name}, ' for result in program.results)})")
    body = "\n    ".join(lines)
    return f"def {function.name}(*, {', '.join(names)}, **ignored):\n    {body}\n"


@dataclass(frozen=True)
class NumPyBackend:
    name: str = "numpy"
    precisions: tuple[str, ...] = ("float64",)
    threads: bool = False
    devices: tuple[str, ...] = ("here",)
    emulates: bool = False

    def toolchain(self) -> tuple[Need, ...]:
        return (Need("NumPy", lambda: np.__version__),)

    def preparing(self) -> nullcontext[None]:
        return nullcontext()

    def build(self, files: SourceFiles, interface: Interface) -> Built:
        entry = f"{files.name}_numpy-{files.digest}"
        if cached := cache.find(entry):
            return Built(cached, True, 0.0)
        with cache.workplace() as place:
            (place / "module.py").write_text(files.files[0][1])
            return Built(cache.publish(place, entry, "module.py"), False, 0.0)

    def kernel(self, interface: Interface, files: SourceFiles, *, emulated: bool) -> AnyKernel:
        built = self.build(files, interface)
        names = runpy.run_path(str(built.path))
        functions = {f.name: _callable(names[f.name], f) for f in interface.functions if not f.team}
        own = {"name": interface.name, "interface": interface, "functions": functions}
        return SimpleNamespace(**own, **functions, build=lambda: built)

    def load(self, folder: Path, *, emulated: bool) -> AnyKernel:
        files = read_files(folder, SUFFIX, self.name)
        return self.kernel(read_interface(folder), files, emulated=emulated)

    def weigh(
        self, kernel: AnyKernel, sizes: Mapping[str, int], dtype: str, device: str
    ) -> list[str]:
        return [f"{device or 'here'}: {kernel.name} of {sizes['H']} units, one way only"]


def _callable(function: Callable[..., tuple], signature: Function) -> Callable[..., tuple]:
    kind = result_class(signature.name, tuple(result.name for result in signature.results))
    return lambda **arguments: kind(*function(**arguments))


TARGET, BACKEND = NumPyTarget(), NumPyBackend()
