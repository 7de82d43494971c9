"""What a device allows: peak rates of data sheets, floors of recurrences, bytes and operations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cellgen.runtime.abi import Argument, Function, axis_length
from cellgen.runtime.kernel import Kernel

SIZE = {"float32": 4, "float32 with TF32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Peak:
    """Bytes and operations a second, by element type, without sparsity; where that is stated."""

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    source: str


def _peak(bandwidth: float, tensor: float, tf32: float, plain: float, source: str) -> Peak:
    rates = {"bfloat16": tensor, "float16": tensor, "float32 with TF32": tf32, "float32": plain}
    return Peak(bandwidth, rates, source)


PEAKS = {
    "H200": _peak(4.8e12, 989e12, 494e12, 67e12, "NVIDIA H200 data sheet, SXM, dense rates"),
    "H100": _peak(3.35e12, 989e12, 494e12, 67e12, "NVIDIA H100 data sheet, SXM, dense rates"),
    "A100": _peak(2.039e12, 312e12, 156e12, 19.5e12, "NVIDIA A100 80GB data sheet, SXM, dense"),
}
"""By a part of the device's name."""

FLOORS = {
    ("lstm", (100, 32, 256), "bfloat16"): (0.040, 0.100),
    ("lstm", (100, 64, 512), "bfloat16"): (0.050, 0.150),
    ("lstm", (512, 16, 1024), "bfloat16"): (0.55, 1.4),
    ("slstm_finished", (1024, 16, 768), "bfloat16"): (0.18, 0.40),
}
"""Milliseconds of an H200, forward and with the backward pass, below which the chain of steps is
not expected to go. Estimates of this project, not measurements: T times what a step takes at least
until the state is where it is needed (about 0.2 us inside a multiprocessor, 0.4 us in a cluster,
1 us through the L2 cache), products of all steps at 80 % of the peak rate on top."""


@dataclass(frozen=True)
class Limit:
    """Milliseconds that a call takes at least, and what says so."""

    f_ms: float
    fb_ms: float
    source: str


def limit_of(
    kernel: Kernel,
    cell: str,
    shape: tuple[int, ...],
    dtype: str,
    sizes: Mapping[str, int],
    device: str,
) -> Limit | None:
    """The floor of the recurrence where one is stated, else the roofline of the data sheet; None
    for a device without either."""
    floor = FLOORS.get((cell, shape, dtype))
    if floor is not None and "H200" in device:
        return Limit(*floor, "estimated floor of the recurrence on an H200")
    peak = next((peak for name, peak in PEAKS.items() if name in device), None)
    if peak is None:
        return None
    moved, work = bytes_of(kernel, sizes, dtype), flops_of(kernel, sizes)
    rate = peak.flops_per_s[dtype]
    forward = max(moved[0] / peak.bytes_per_s, work / rate)
    both = forward + max(moved[1] / peak.bytes_per_s, 2 * work / rate)
    return Limit(forward * 1e3, both * 1e3, f"roofline of the {peak.source}")


def _count(argument: Argument, sizes: Mapping[str, int]) -> int:
    return math.prod(axis_length(axis, sizes) for axis in argument.shape)


def _total(arguments: list[Argument], sizes: Mapping[str, int], dtype: str) -> int:
    return SIZE[dtype] * sum(_count(a, sizes) for a in arguments)


def bytes_of(kernel: Kernel, sizes: Mapping[str, int], dtype: str) -> tuple[int, int]:
    """Bytes that forward and backward pass move at least: each array of the caller once, of
    upstream gradients ``d_h`` alone, of what is saved between the two nothing."""
    moved = []
    for name in ("sequence_forward", "sequence_backward"):
        function: Function = kernel.functions[name].function
        read = [
            a
            for a in function.arguments
            if not (a.is_scalar or a.saved or (a.optional and a.name != "d_h"))
            and (a.used or a.optional)
        ]
        written = [a for a in function.results if not a.saved]
        moved.append(_total([*read, *written], sizes, dtype))
    return moved[0], moved[1]


def flops_of(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Operations of the products of a forward pass: each weight with each row; a backward pass has
    twice as many."""
    arguments = kernel.functions["sequence_forward"].function.arguments
    weights = [a for a in arguments if a.text == "weight" and len(a.shape) > 1]
    return 2 * sizes["T"] * sizes["B"] * sum(_count(a, sizes) for a in weights)
