"""Say how a cell's functions over time would run on a device that need not be there, and why.

Input: a kernel compiled for the emulation, lengths, an element type, a device's figures. Output:
``Choice`` records. The choice is made by the text that a device's host runs, told of the device
(``cellgen_choose_blocks`` in ``cellgen_cuda_tiers.cuh``); nothing is launched, and no arithmetic is
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.runtime.device.kernel import CudaKernel


@dataclass(frozen=True)
class Device:
    """What the model asks of a device, and where the figures are from.

    Multiprocessors, bytes of shared memory that a block may have, registers of a multiprocessor.
    """

    name: str
    processors: int
    shared: int
    registers: int
    source: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.processors} multiprocessors of {self.registers:,} registers, "
            f"{self.shared >> 10} KiB of shared memory for a block ({self.source})"
        )


GUIDE = "compute capability {} in NVIDIA's CUDA programming guide"
DEVICES = {
    "a100": Device("A100", 108, 163 << 10, 65536, GUIDE.format("8.0")),
    "h100": Device("H100", 132, 227 << 10, 65536, GUIDE.format("9.0")),
    "h200": Device("H200", 132, 227 << 10, 65536, GUIDE.format("9.0")),
}
REGISTERS = 128
"""What kernels over all steps take of them at most, for a thread; tests ask the compiler."""
WAYS = ("launch by launch", "in blocks", "in blocks with matrix units")
"""How all steps run, by the numbers of ``cellgen_cuda_tiers.cuh``."""
LAUNCHED = 0
"""The count of launches, of ``cellgen_emulation_count``."""
EMULATED = (4, 99 << 10)
"""What an emulated device is when nobody says otherwise."""


@dataclass(frozen=True)
class Weighed:
    """What the host weighed, in the order in which it tells.

    The way, blocks of a head, heads, rows and threads of a block; bytes of weights with and without
    matrix units (0: none for the element type); nanoseconds of a step launch by launch, in blocks,
    with matrix units.
    """

    way: float
    count: float
    heads: float
    rows: float
    threads: float
    weights: float
    fragments: float
    by_steps: float
    by_thread: float
    by_fragment: float


@dataclass(frozen=True)
class Choice:
    """How one function runs: launches as chosen and step by step.

    ``weighed`` None for a function that has one way only.
    """

    function: str
    launches: int
    stepwise: int
    weighed: Weighed | None

    @property
    def taken(self) -> str:
        """The way that is taken."""
        if self.weighed is not None:
            return WAYS[int(self.weighed.way)]
        return WAYS[0] if self.launches == self.stepwise else "all steps in one launch"


def choices(
    kernel: CudaKernel, sizes: Mapping[str, int], dtype: str, device: Device
) -> tuple[Choice, ...]:
    """Ask the host's code of an emulated kernel. Raises BuildError: no C++ compiler."""
    functions = (kernel.sequence_forward, kernel.sequence_backward)
    with _told_of(kernel, device):
        return tuple(_choice(kernel, f.function, sizes, dtype) for f in functions)


def describe(device: Device, found: tuple[Choice, ...]) -> list[str]:
    """Say what was chosen and why, one line each."""
    lines = [str(device)]
    for choice in found:
        less = f", {choice.stepwise:,} step by step" if choice.launches != choice.stepwise else ""
        lines.append(f"  {choice.function}: {choice.taken}; {choice.launches:,} launches{less}")
        if choice.weighed is not None:
            lines += [f"    {line}" for line in _reasons(device, choice.weighed)]
    return lines


def _reasons(device: Device, w: Weighed) -> Iterator[str]:
    yield f"launch by launch: {w.by_steps / 1e3:.2f} us a step by the cost model"
    named = ((WAYS[1], w.weights, w.by_thread), (WAYS[2], w.fragments, w.by_fragment))
    for way, weights, time in named:
        if not weights:
            yield f"{way}: not of this element type, whose factors would lose bits"
        elif weights > device.shared:
            yield (
                f"{way}: {weights / 1024:,.0f} KiB of weights do not fit a block's "
                f"{device.shared >> 10} KiB"
            )
        else:
            yield f"{way}: {weights / 1024:,.0f} KiB of weights fit, {time / 1e3:.2f} us a step"
    if w.way:
        each, blocks = min(255, device.registers // int(w.threads)), int(w.count * w.heads)
        turns = -(-blocks // device.processors)
        yield (
            f"{blocks:,} blocks of {w.threads:.0f} threads and up to {w.rows:.0f} rows, "
            f"{'all at once' if turns == 1 else f'in {turns} turns'}; room for {each} registers a "
            f"thread, and such a kernel takes at most {REGISTERS}"
        )


def _choice(kernel: CudaKernel, function: Function, sizes: Mapping[str, int], dtype: str) -> Choice:
    library, lengths = kernel.library(), dict(sizes)
    given: dict[str, Any] = {
        a.name: DeviceArray(library, tuple(axis_length(n, lengths) for n in a.shape), dtype, 0, 0)
        for a in function.arguments
        if not a.is_scalar
    }
    launches = []
    figures = library.ffi.new("double[]", len(fields(Weighed)))
    told = 0
    for tier in ("steps", "auto"):
        before = library.lib.cellgen_emulation_count(LAUNCHED)
        kernel.functions[function.name](**given, graph=False, tier=tier)
        launches.append(int(library.lib.cellgen_emulation_count(LAUNCHED)) - before)
        told = int(library.lib.cellgen_emulation_told(figures, len(figures)))
    weighed = Weighed(*figures) if told == len(figures) else None
    return Choice(function.name, launches[1], launches[0], weighed)


@contextmanager
def _told_of(kernel: CudaKernel, device: Device) -> Iterator[None]:
    """Make the emulation pass for a device on which nothing runs."""
    lib = kernel.library().lib
    lib.cellgen_emulation_device(device.processors, device.shared)
    lib.cellgen_emulation_dry(1)
    try:
        yield
    finally:
        lib.cellgen_emulation_dry(0)
        lib.cellgen_emulation_device(*EMULATED)
