"""Hold launches that were watched to what their machine code does on a device.

Input: launches as ``watched`` writes them down. Output: for each, the machine code for Hopper, what
it takes of a multiprocessor, and its faults. Every kernel and configuration that a test runs in the
interpreter is checked this way too, with the arguments of that launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from cellgen.proof.machine.assembled import Resources, disassemble, resources
from cellgen.proof.machine.compiled import CompiledKernel, SpecialisedKernel, compile_kernels
from cellgen.proof.machine.run import MachineFault, MachineLaunch, TensorArgument, check

Constant = int | bool | str | None
TOLD = "told_ptr"
"""The parameter by which programs tell each other how far they are, of each segment."""
FORMED, KNOWN = 1, 2
"""What a program has told: what its segment does as a whole; and where it ends."""
BEFORE = "step_before_ptr"
"""The parameter of kernels over rows and units that says which step is before each one."""
NONE, ANEW, LEFT_OUT = -1, -2, -3
"""What stands there of a step that has none before it, or is one of those."""


class Called(Protocol):
    """A launch: ``cellgen.proof.watched.WatchedCall``."""

    @property
    def path(self) -> str:
        """The file of the kernel."""

    @property
    def kernel(self) -> str:
        """Its name."""

    @property
    def arguments(self) -> tuple[tuple[str, str, int], ...]:
        """Parameter, type, bytes or number."""

    @property
    def constants(self) -> tuple[tuple[str, Constant], ...]:
        """What is fixed."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Programs along each axis."""

    @property
    def warps(self) -> int:
        """Of a program."""

    @property
    def stages(self) -> int:
        """Of loops that load ahead."""


@dataclass(frozen=True)
class MachineReport:
    """What the machine code of a launch is and does."""

    kernel: str
    constants: tuple[tuple[str, Constant], ...]
    uses: Resources
    shared: int
    faults: tuple[MachineFault, ...]

    def __str__(self) -> str:
        said = "; ".join(map(str, self.faults)) or "no fault"
        return (
            f"{self.kernel} {dict(self.constants)}: {self.uses.registers} registers, "
            f"{self.uses.stack} bytes of stack, {self.shared} shared: {said}"
        )


def specialised(call: Called) -> SpecialisedKernel:
    """Say how Triton compiles a kernel for a launch: numbers that are 1 are constants."""
    ones = {n: v for n, kind, v in call.arguments if not kind.startswith("*") and v == 1}
    multiples = tuple(
        n for n, kind, v in call.arguments if not kind.startswith("*") and v % 16 == 0
    )
    return SpecialisedKernel(
        call.path,
        call.kernel,
        {n: kind for n, kind, _ in call.arguments},
        dict(call.constants) | ones,
        call.warps,
        call.stages,
        multiples,
    )


def machine_launch(call: Called, shared: int) -> MachineLaunch:
    """Say with what the machine code is launched: programs at both ends of each axis.

    Where programs wait for each other the first has told where its segment ends, the others what
    theirs do as a whole: the last one looks back at all of them.
    """
    arguments = tuple(
        TensorArgument(name, value) if kind.startswith("*") else value
        for name, kind, value in call.arguments
        if kind.startswith("*") or value != 1
    )
    width, height, depth = (*call.grid, *[1] * (3 - len(call.grid)))
    grid = (width, height, depth)
    x, y, z = (sorted({0, n - 1}) for n in grid)
    sizes, words = {name: size for name, _, size in call.arguments}, dict[str, tuple[int, ...]]()
    if TOLD in sizes:
        words[TOLD] = (0, *(KNOWN, *[FORMED] * (depth - 1)) * (width * height))
    if BEFORE in sizes and dict(call.constants).get("GAPS"):
        words[BEFORE] = tuple(_before(sizes[BEFORE] // (4 * height), height))
    programs, counter = tuple(product(x, y, z)), TOLD if TOLD in sizes else ""
    return MachineLaunch(call.warps, shared, arguments, programs, grid, words, counter)


def _before(steps: int, rows: int) -> Iterator[int]:
    """Of each step and row the one before it: some are left out, at some states begin anew."""
    last = [NONE] * rows
    for step, row in product(range(steps), range(rows)):
        is_out, is_anew = (step + row) % 4 == 2, (step + row) % 7 == 6
        yield LEFT_OUT if is_out else ANEW if is_anew else last[row]
        last[row] = last[row] if is_out else step


def check_machine_code(calls: Iterable[Called]) -> list[MachineReport]:
    """Compile launches for Hopper and run their machine code, each specialisation once.

    Raises BuildError where Triton cannot compile one, MachineError for code that is not known.
    """
    distinct = {(call.kernel, call.constants, call.warps, call.stages): call for call in calls}
    chosen = list(distinct.values())
    kernels = compile_kernels([specialised(call) for call in chosen])
    return list(map(_report, chosen, kernels))


def _report(call: Called, kernel: CompiledKernel) -> MachineReport:
    faults = check(disassemble(kernel.binary), machine_launch(call, kernel.shared))
    uses = resources(kernel.binary)
    return MachineReport(call.kernel, call.constants, uses, kernel.shared, tuple(faults))
