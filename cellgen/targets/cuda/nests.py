"""Spell what a thread does in a nest, a loop that tells the inner axes of a row apart, in CUDA.

Input: the axes of a nest and how it goes through an array. Output: lines of C. A thread has one
place of the nest. One entry of sums along the same axes is shared by threads of a warp, side by
side along the last axis that is added up; where rows are added up too, a thread has a chunk of
them.
"""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.language.value import Shape
from cellgen.schedule.schedule import Walk
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.dialect import DeviceDialect


def places_of_axes(axes: Shape, walk: Walk | None) -> list[str]:
    """Declare where a thread stands along each axis: along all, or those of a sum's entry."""
    strides = walk.strides if walk is not None else axes
    index, after = "unit" if walk is None else "entry", Integer(1)
    lines: list[str] = []
    for number in range(len(axes), 0, -1):  # the last axis is the fastest
        if strides[number - 1] == 0:
            continue
        place = index if after == 1 else f"{index} / {_factor(after)}"
        lines.append(f"const int64_t axis{number} = ({place}) % {c_factor(axes[number - 1])};")
        after = after * axes[number - 1]
    return lines


def place_in_nest(walk: Walk) -> tuple[str, str]:
    """Row and column of an operand's memory."""
    terms = [
        f"axis{number}" if stride == 1 else f"axis{number} * {_factor(stride)}"
        for number, stride in enumerate(walk.strides, start=1)
        if stride != 0
    ]
    return "row" if walk.rows else "0", " + ".join(terms) or "0"


def added_up(
    axes: Shape, walk: Walk, inner: list[str], words: DeviceDialect, *, over_rows: bool
) -> list[str]:
    """Wrap what is done at one place into loops over the axes that a sum goes along."""
    summed = _summed(axes, walk)
    loops = [
        f"for (int64_t axis{n} = 0; axis{n} < {c_axis(axis)}; ++axis{n}) {{" for n, axis in summed
    ]
    if over_rows:
        first = "chunk * CELLGEN_CHUNK_ROWS"
        rows = f"row < {first} + CELLGEN_CHUNK_ROWS && row < nest_rows"
        loops.insert(0, f"for (int64_t row = {first}; {rows}; ++row) {{")
    elif summed:
        number, axis = summed[-1]
        at = f"axis{number}"
        bound = f"is_mine && {at} < {c_axis(axis)}"
        first = words.thread[0]
        loops[-1] = f"for (int64_t {at} = {first}; {bound}; {at} += {words.threads}) {{"
    return [*loops, *inner, *["}"] * len(loops)]


def shared_length(axes: Shape, walk: Walk) -> str:
    """The length of the axis along which the threads of an entry lie side by side."""
    summed = _summed(axes, walk)
    return c_axis(summed[-1][1]) if summed else "1"


def _summed(axes: Shape, walk: Walk) -> list[tuple[int, Expr]]:
    """The axes that a sum goes along, with their numbers."""
    both = zip(axes, walk.strides, strict=True)
    return [(n, axis) for n, (axis, stride) in enumerate(both, start=1) if stride == 0]


def _factor(length: Expr) -> str:
    return f"({c_axis(length)})"
