"""Segments of time side by side in calls of frameworks: ``parallel="segments"`` of arrays.

Input: the layout of a call, its arrays as NumPy's, and what it says of segments. Output: arrays of
NumPy in the order of the layout. The forward pass is that of ``kernel.sequence_forward``; what it
saves is what step by step saves, so that gradients are formed as they always are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellgen.errors import ArgumentError
from cellgen.frameworks.layout import TensorLayout
from cellgen.frameworks.selection import with_products
from cellgen.runtime.call.segments import KEYWORDS, Segmentation
from cellgen.runtime.call.stored import STORED
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import FORWARD, OF_OPTIONS, SEGMENTS, Options
from cellgen.runtime.results import Array

SEGMENT_OPTIONS = tuple(sorted(KEYWORDS))
"""What a call says of segments, beside what ``shown.OUTPUT_OPTIONS`` lists."""

_KEPT = tuple(
    option.name for option in OF_OPTIONS if FORWARD in option.functions and option.name != "packed"
)


def refuse_narrow(label: str, element: str) -> None:
    """Refuse arrays of 16 bits. Raises ArgumentError."""
    if element in STORED:
        raise ArgumentError(
            f"{label}: parallel is {SEGMENTS!r} and the arrays are {element}, expected float32 or "
            f"float64: a segment starts from the state before it, which 16 bits would round; "
            f"convert them, or leave parallel out"
        )


def in_segments(
    kernel: Kernel,
    layout: TensorLayout,
    arrays: Mapping[str, Any],
    options: Options,
    cut: Segmentation,
    *,
    save: bool,
    threads: int | None,
) -> list[Array]:
    """Compute all steps: outputs and final states of the layout, then what is saved, if it is.

    ``options`` have the tables of the call. Raises ArgumentError, BuildError, MemoryError.
    """
    element = arrays[layout.theta[0].name].dtype.name
    chosen = with_products(options, element)
    stated = {name: getattr(chosen, name) for name in _KEPT}
    results: Any = kernel.functions["sequence_forward"](
        **arrays,
        **stated,
        parallel=SEGMENTS,
        segments=cut.segments,
        tolerance=cut.tolerance,
        sweeps=cut.sweeps,
        save=save,
        threads=threads,
    )
    named = results._asdict()
    saved = named.pop("saved")
    if save:
        named |= saved._asdict()
    formed = (*layout.outputs, *layout.saved) if save else layout.outputs
    return [named[item.name] for item in formed]
