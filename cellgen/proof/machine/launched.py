"""Hold launches that were watched to what their machine code does on a device.

Input: launches as ``watched`` writes them down. Output: for each, the machine code for Hopper, what
it takes of a multiprocessor, and its faults. Every kernel and configuration that a test runs in the
interpreter is checked this way too, with the arguments of that launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from cellgen.proof.machine.assembled import Resources, disassemble, resources
from cellgen.proof.machine.compiled import CompiledKernel, SpecialisedKernel, compile_kernels
from cellgen.proof.machine.run import MachineFault, MachineLaunch, TensorArgument, check

Constant = int | bool | str | None


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
    """Say with what the machine code is launched: programs at both ends of each axis."""
    arguments = tuple(
        TensorArgument(name, value) if kind.startswith("*") else value
        for name, kind, value in call.arguments
        if kind.startswith("*") or value != 1
    )
    width, height, depth = (*call.grid, *[1] * (3 - len(call.grid)))
    grid = (width, height, depth)
    x, y, z = (sorted({0, n - 1}) for n in grid)
    return MachineLaunch(call.warps, shared, arguments, tuple(product(x, y, z)), grid)


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
