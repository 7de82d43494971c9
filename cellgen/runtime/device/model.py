"""Say how a cell's functions over time would run on a device that need not be there, and why.

Input: a kernel compiled for the emulation, lengths, an element type, a device's figures. Output:
``Choice`` records. The choice is made by the text that a device's host runs, told of the device
(``cellgen_choose_blocks`` in ``cellgen_cuda_tiers.cuh``, ``cellgen_choose_together`` in
``cellgen_persist_choice.cuh``); nothing is launched, and no arithmetic is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.device.nvcc import PRODUCTS, PRODUCTS_VARIABLE
from cellgen.runtime.directions import AUTO, BOTH, DIRECTIONS_VARIABLE, HALF


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
    capability: int = 90

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.processors} multiprocessors of {self.registers:,} registers, "
            f"{self.shared >> 10} KiB of shared memory for a block ({self.source})"
        )


GUIDE = "compute capability {} in NVIDIA's CUDA programming guide"
DEVICES = {
    "a100": Device("A100", 108, 163 << 10, 65536, GUIDE.format("8.0"), 80),
    "h100": Device("H100", 132, 227 << 10, 65536, GUIDE.format("9.0")),
    "h200": Device("H200", 132, 227 << 10, 65536, GUIDE.format("9.0")),
}
REGISTERS = 128
"""What kernels over all steps take of them at most, for a thread; tests ask the compiler."""
TOGETHER = ("", "blocks stay on the device together", "blocks stay together in clusters")
"""How blocks that wait for each other are there, by the numbers of ``cellgen_persist_choice``."""
WAYS = ("launch by launch", "in blocks", "in blocks with matrix units")
"""How all steps run, by the numbers of ``cellgen_cuda_tiers.cuh``."""
LAUNCHED = 0
"""The count of launches, of ``cellgen_emulation_count``."""
EMULATED, EMULATED_CAPABILITY = (4, 99 << 10), 80
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
class Together:
    """What the host weighed of blocks that stay on the device.

    The way (0: not taken), blocks of a layer, heads, sets of blocks, threads and bytes of shared
    memory of a block, how float is multiplied and how it was asked to be; nanoseconds of a step
    over the device and in clusters (0: they do not fit), launch by launch.
    """

    way: float
    blocks: float
    heads: float
    sets: float
    threads: float
    shared: float
    products: float
    wanted: float
    by_device: float
    by_cluster: float
    by_steps: float

    @property
    def ns(self) -> float:
        """Nanoseconds of a step in the way that is taken."""
        return (self.by_steps, self.by_device, self.by_cluster)[int(self.way)]


Told = TypeVar("Told", Weighed, Together)


@dataclass(frozen=True)
class Choice:
    """How one function runs: launches as chosen and step by step.

    ``weighed`` None for a function that has one way only, ``together`` where blocks never stay.
    ``halved`` is what the host weighs for a direction that runs beside the other one, where a
    process asks for that.
    """

    function: str
    launches: int
    stepwise: int
    weighed: Weighed | None
    together: Together | None = None
    halved: Together | None = None

    @property
    def taken(self) -> str:
        """The way that is taken."""
        if self.together is not None and self.together.way:
            return TOGETHER[int(self.together.way)]
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


def describe(device: Device, choices: tuple[Choice, ...]) -> list[str]:
    """Say what was chosen and why, one line each."""
    lines = [str(device)]
    for choice in choices:
        less = f", {choice.stepwise:,} step by step" if choice.launches != choice.stepwise else ""
        lines.append(f"  {choice.function}: {choice.taken}; {choice.launches:,} launches{less}")
        if choice.weighed is not None:
            lines += [f"    {line}" for line in _reasons(device, choice.weighed)]
        if choice.together is not None:
            lines += [f"    {line}" for line in _together(choice.together)]
            lines += [f"    {line}" for line in _directions(choice.together, choice.halved)]
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


def _together(t: Together) -> Iterator[str]:
    named = ((TOGETHER[1], t.by_device), (TOGETHER[2], t.by_cluster))
    for way, time in named:
        said = f"{time / 1e3:.2f} us a step" if time else "do not fit, or not all of them at once"
        yield f"{way}: {said}"
    yield f"against that, launch by launch: {t.by_steps / 1e3:.2f} us a step"
    if t.way:
        yield (
            f"{t.blocks:.0f} blocks for a layer, {t.heads:.0f} heads, {t.sets:.0f} sets of rows, "
            f"{t.threads:.0f} threads and {t.shared / 1024:,.0f} KiB of shared memory a block"
        )
        yield from _products(t)


def _directions(t: Together, halved: Together | None) -> Iterator[str]:
    """Say what two directions take, in turn and at once in half of the processors each."""
    if halved is None:
        return
    heading = f"both directions at once, as {DIRECTIONS_VARIABLE}={BOTH} has it in PyTorch"
    if halved.way:
        yield (
            f"{heading}: {TOGETHER[int(halved.way)]}, {halved.ns / 1e3:.2f} us a step of both, in "
            f"turn {2 * t.ns / 1e3:.2f}, by the model; no device has timed it"
        )
    else:
        yield (
            f"{heading}: no blocks stay in half of the processors; both are launched side by side, "
            f"of which the model knows no time"
        )


def _products(t: Together) -> Iterator[str]:
    if not t.wanted:
        return
    wanted = PRODUCTS[int(t.wanted)]
    if t.products == t.wanted:
        yield f"float32 is multiplied as {PRODUCTS_VARIABLE}={wanted} has it, at estimated times"
    else:
        yield (
            f"float32 is multiplied by fused multiply-adds: with {PRODUCTS_VARIABLE}={wanted} the "
            f"weights do not fit a block's shared memory"
        )


def _choice(kernel: CudaKernel, function: Function, sizes: Mapping[str, int], dtype: str) -> Choice:
    library, lengths = kernel.library(), dict(sizes)
    arguments: dict[str, Any] = {
        a.name: DeviceArray(library, tuple(axis_length(n, lengths) for n in a.shape), dtype, 0, 0)
        for a in function.arguments
        if not a.is_scalar
    }
    lib = library.lib

    def launched(tier: str) -> int:
        """Launches of a call."""
        before = int(lib.cellgen_emulation_count(LAUNCHED))
        kernel.functions[function.name](**arguments, graph=False, tier=tier)
        return int(lib.cellgen_emulation_count(LAUNCHED)) - before

    def weighed_as(kind: type[Told], tell: Callable[..., int]) -> Told | None:
        """What the host weighed in the last call."""
        figures = library.ffi.new("double[]", len(fields(kind)))
        return kind(*figures) if tell(figures, len(figures)) == len(figures) else None

    stepwise, chosen = launched("steps"), launched(AUTO)
    weighed = weighed_as(Weighed, lib.cellgen_emulation_told)
    together = weighed_as(Together, lib.cellgen_emulation_told_together)
    halved = None
    if together is not None and os.environ.get(DIRECTIONS_VARIABLE) == BOTH:
        launched(HALF)
        halved = weighed_as(Together, lib.cellgen_emulation_told_together)
    return Choice(function.name, chosen, stepwise, weighed, together, halved)


@contextmanager
def _told_of(kernel: CudaKernel, device: Device) -> Iterator[None]:
    """Make the emulation pass for a device on which nothing runs."""
    lib = kernel.library().lib
    lib.cellgen_emulation_device(device.processors, device.shared)
    lib.cellgen_emulation_machine(1, 0, device.capability)
    lib.cellgen_emulation_dry(1)
    try:
        yield
    finally:
        lib.cellgen_emulation_dry(0)
        lib.cellgen_emulation_machine(1, 0, EMULATED_CAPABILITY)
        lib.cellgen_emulation_device(*EMULATED)
