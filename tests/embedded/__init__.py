"""Exports for small machines, compiled as strict C99 on this one and called through ctypes.

Input: a cell and what is asked for. Output: results and gradients as NumPy arrays, by name.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cellgen.language.cell import Cell, definition_of
from cellgen.language.value import Role
from cellgen.pipeline import planned, programs_of
from cellgen.program.derive import forward as forward_program
from cellgen.program.interpret import axis_size
from cellgen.proof.check.points import GRADIENT_SIZES, Subject, draw_point, drawn_normal
from cellgen.proof.over_time import run_steps
from cellgen.runtime.names import c_name
from cellgen.targets.embedded.layout import Struct
from cellgen.targets.embedded.request import ExportRequest
from cellgen.targets.embedded.source import EmbeddedTarget

FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wdouble-promotion", "-Werror")
"""What every export compiles with, on every machine."""

Arrays = Mapping[str, np.ndarray]


def write(cell: type[Cell], asked: ExportRequest, folder: Path) -> Path:
    """Write an export; returns the path of its body."""
    files = EmbeddedTarget(asked).render(planned(cell))
    name = asked.name or definition_of(cell).name
    for suffix, text in files.items():
        (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
    return folder / f"{name}.c"


@dataclass(frozen=True)
class Case:
    """A cell's arguments over a few steps, and gradients of its outputs."""

    sizes: Mapping[str, int]
    arguments: Arrays
    upstream: Arrays


def case(cell: type[Cell], steps: int = 5, seed: int = 0) -> Case:
    """Draw arguments where every output is finite and no function is near a kink."""
    rng, definition = np.random.default_rng(seed), definition_of(cell)
    subject = Subject(cell, programs_of(cell), forward_program(definition), None)
    point = draw_point(subject, GRADIENT_SIZES[: len(definition.dims)], rng)
    sizes = {**point.sizes, "T": steps}
    arguments = dict(point.arguments)
    for value in definition.with_role(Role.INPUT):
        name = str(value.name)
        drawn = [drawn_normal(rng, value, sizes) for _ in range(steps)]
        arguments[name] = np.array(drawn)
    for state in definition.states:
        arguments[str(state.name)] = np.full_like(
            arguments[str(state.name)], definition.initial_of(state)
        )
    outputs = run_steps(definition, arguments, sizes).outputs
    upstream = {n: rng.standard_normal(a.shape).astype(np.float32) for n, a in outputs.items()}
    return Case(sizes, arguments, {n: a.astype(np.float64) for n, a in upstream.items()})


class Export:
    """A compiled export of one cell."""

    def __init__(
        self, cell: type[Cell], asked: ExportRequest, folder: Path, flags: Sequence[str] = ()
    ):
        self.definition, self.asked = definition_of(cell), asked
        self.name = self.definition.name
        plan = planned(cell)
        self.layout = EmbeddedTarget(asked).layout(plan)
        self.sizes = {**asked.checked(self.definition).sizes, "T": asked.window}
        self.bytes = self.layout.bytes_of(asked.checked(self.definition))
        self.dtype = np.dtype(np.float32 if asked.dtype == "float" else np.float64)
        body, library = write(cell, asked, folder), folder / f"{self.name}.so"
        command = ["gcc", *FLAGS, "-O1", *flags, "-shared", "-fPIC", str(body), "-o", str(library)]
        subprocess.run([*command, "-lm"], check=True)
        self.library = ctypes.CDLL(str(library))

    def weights(self, arguments: Arrays) -> np.ndarray:
        """The weights of a call as their struct."""
        return self.packed(self.layout.weights, arguments)

    def forward(self, arguments: Arrays, steps: int) -> dict[str, np.ndarray]:
        """Run some steps from the start, one call for all."""
        weights, memory = self.weights(arguments), self._zeros("memory")
        self._call("start", weights, memory, *self._of_start(arguments))
        outputs = {
            m.name: np.zeros((steps, *self._shape(m.shape)), self.dtype)
            for m in self.layout.outputs.members
        }
        given = self._given(arguments)
        self._call("sequence", weights, memory, steps, *given, *outputs.values())
        return outputs

    def stepped(self, arguments: Arrays, steps: int) -> dict[str, np.ndarray]:
        """Run some steps from the start, a call for each."""
        weights, memory = self.weights(arguments), self._zeros("memory")
        self._call("start", weights, memory, *self._of_start(arguments))
        first = self._count(self.layout.state)
        found: dict[str, list[np.ndarray]] = {m.name: [] for m in self.layout.outputs.members}
        timed = {c_name(str(v.name)) for v in self.definition.with_role(Role.INPUT)}
        for step in range(steps):
            now = {n: a[step] if c_name(n) in timed else a for n, a in arguments.items()}
            self._call("step", weights, memory, *self._given(now))
            for name, array in self._unpacked(self.layout.outputs, memory[first:]).items():
                found[name].append(array.copy())
        return {name: np.array(steps) for name, steps in found.items()}

    def reset_at(self, arguments: Arrays, steps: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The states after some steps, and as they are once one row began anew."""
        weights, memory = self.weights(arguments), self._zeros("memory")
        self._call("start", weights, memory, *self._of_start(arguments))
        outputs = [
            np.zeros((steps, *self._shape(m.shape)), self.dtype)
            for m in self.layout.outputs.members
        ]
        self._call("sequence", weights, memory, steps, *self._given(arguments), *outputs)
        count = self._count(self.layout.state)
        before = memory[:count].copy()
        self._call("reset", memory, row)
        return before, memory[:count].copy()

    def gradients(self, arguments: Arrays, upstream: Arrays) -> dict[str, np.ndarray]:
        """The gradients of all that learns, for given gradients of outputs and states."""
        weights, training = self.weights(arguments), self._zeros("training")
        self._call("train_start", training)
        made = {
            str(s.name): str(self.definition.next_state(s).name) for s in self.definition.states
        }
        states = {made[n]: a for n, a in arguments.items() if n in made}
        training[: self._count(self.layout.state)] = self.packed(self.layout.state, states)
        self._train("train_gradients", weights, training, arguments, upstream)
        first = self._count(self.layout.state)
        return self._unpacked(self.layout.gradients, training[first:])

    def trained(self, arguments: Arrays, upstream: Arrays, rates: Sequence[float]) -> np.ndarray:
        """The weights after so many training steps, each with the same gradients of outputs."""
        weights, training = self.weights(arguments), self._zeros("training")
        self._call("train_start", training)
        for rate in rates:
            self._train("train", weights, training, arguments, upstream, self._number(rate))
        return weights

    def unpacked(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Weights by name."""
        return self._unpacked(self.layout.weights, weights)

    def _train(self, function, weights, training, arguments, upstream, *rest):
        real = ctypes.POINTER(ctypes.c_float if self.dtype.itemsize == 4 else ctypes.c_double)
        given = self.packed(self.layout.window, upstream)

        def loss(outputs, d_outputs, context):
            np.ctypeslib.as_array(d_outputs, given.shape)[:] = given
            return 1.5

        kind = ctypes.CFUNCTYPE(real._type_, real, real, ctypes.c_void_p)
        call = getattr(self.library, f"{self.name}_{function}")
        call.restype = real._type_
        made = call(
            *map(_passed, (weights, training, *self._given(arguments))), kind(loss), None, *rest
        )
        assert made == 1.5

    def _of_start(self, arguments: Arrays) -> list[object]:
        prologue = self.layout.cell.prologue
        read = prologue.arguments if prologue else ()
        return self._scalars([v for v in self.layout.cell.arguments if v in read], arguments)

    def _scalars(self, values, arguments: Arrays) -> list[object]:
        named = {c_name(n): a for n, a in {**self.definition.defaults, **arguments}.items()}
        return [self._number(float(named[str(v.name)])) for v in values]

    def _given(self, arguments: Arrays) -> list[object]:
        named = {c_name(n): a for n, a in arguments.items()}
        found: list[object] = []
        for value in self.layout.cell.arguments:
            if value.role is Role.SCALAR:
                found += self._scalars([value], arguments)
            else:
                found.append(np.ascontiguousarray(named[str(value.name)], self.dtype))
        return found

    def _number(self, value: float) -> object:
        return (ctypes.c_float if self.dtype.itemsize == 4 else ctypes.c_double)(value)

    def _zeros(self, struct: str) -> np.ndarray:
        return np.zeros(self.bytes[struct] // self.dtype.itemsize, self.dtype)

    def _shape(self, shape) -> tuple[int, ...]:
        return tuple(axis_size(axis, self.sizes) for axis in shape)

    def _count(self, struct: Struct) -> int:
        return struct.count(lambda shape: int(np.prod(self._shape(shape), dtype=int)))

    def packed(self, struct: Struct, arrays: Arrays) -> np.ndarray:
        named = {
            c_name(n): np.asarray(a) for n, a in {**self.definition.defaults, **arrays}.items()
        }
        named.setdefault("nothing", np.zeros(1))
        parts = [np.ravel(named[m.name]).astype(self.dtype) for m in struct.members]
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def _unpacked(self, struct: Struct, array: np.ndarray) -> dict[str, np.ndarray]:
        found, start = {}, 0
        for member in struct.members:
            shape = self._shape(member.shape)
            count = int(np.prod(shape, dtype=int))
            found[member.name] = array[start : start + count].reshape(shape)
            start += count
        return found

    def _call(self, function: str, *arguments: object) -> None:
        call = getattr(self.library, f"{self.name}_{function}")
        call.restype = None
        call(*map(_passed, arguments))


def _passed(argument: object) -> object:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data_as(ctypes.c_void_p)
    return argument


def asked_for(case: Case, dtype: str, *, train: bool = False, **more) -> ExportRequest:
    """What an export of a case is asked for."""
    sizes = {name: size for name, size in case.sizes.items() if name != "T"}
    return replace(ExportRequest(sizes, dtype, train, case.sizes["T"]), **more)
