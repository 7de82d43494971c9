"""Where loops over the same inner axes touch arrays, and which of them may run strip by strip.

Input: loops, and inner axes (..., D, K). A strip is some neighbours along D, at one place along the
axes before it. Loops go through strips together if what one leaves for another is there as soon as
the one has gone through the strip: entry by entry at the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Mul, expand

from cellgen.language.value import Shape
from cellgen.schedule.schedule import (
    Access,
    Buffer,
    BufferKind,
    Line,
    Load,
    Loop,
    Store,
    View,
    Walk,
)

_POINTWISE = frozenset((Store.LOCAL, Store.WRITE))


@dataclass(frozen=True)
class Touch:
    """One array in a loop: how places of the axes are found in it.

    ``whole``: after a strip, what the loop leaves in it for these rows is complete.
    """

    buffer: Buffer
    walk: Walk
    start: tuple[Expr, ...]
    writes: bool
    whole: bool


def fits(loop: Loop, axes: Shape) -> bool:
    """Whether a loop is a nest over the axes, or pointwise over all but the last of them."""
    if loop.axes == axes:
        return all(line.store in _POINTWISE | {Store.ADD_UNITS} for line in loop.lines)
    if any(line.store not in _POINTWISE for line in loop.lines):
        return False
    if loop.is_nest:
        return loop.axes == axes[:-1]
    if any(load.access is Access.COLUMN for load in loop.loads) or len(loop.space) != 2:
        return False
    return bool(expand(loop.space[-1] - Mul(*axes[:-1])) == 0)


def touches(loop: Loop, axes: Shape) -> Iterator[Touch]:
    """What a loop that fits reads and writes."""
    for load in loop.loads:
        if load.view.buffer.kind is not BufferKind.SCALAR:
            yield Touch(
                load.view.buffer, walk_in(load, loop, axes), _start(load.view), False, whole=True
            )
    for line in loop.lines:
        if line.view is not None:
            walk = walk_in(line, loop, axes)
            *outer, last = walk.strides
            whole = line.store is Store.WRITE or (last == 0 and all(s != 0 for s in outer))
            yield Touch(line.view.buffer, walk, _start(line.view), True, whole)


def _start(view: View) -> tuple[Expr, ...]:
    return (*view.start, view.buffer.shape[-1] if view.buffer.shape else Integer(1))


def walk_in(item: Load | Line, loop: Loop, axes: Shape) -> Walk:
    """How the places of the axes are found; an axis that the loop lacks does not move it."""
    missing = (Integer(0),) * (len(axes) - len(loop.axes))
    if item.walk is not None:
        return Walk(item.walk.rows, item.walk.strides + missing)
    access = item.access if isinstance(item, Load) else Access.ELEMENT
    rows = access in (Access.ELEMENT, Access.ROW)
    if access in (Access.ROW, Access.SCALAR):
        return Walk(rows, (Integer(0),) * len(axes))
    return Walk(rows, (*side_by_side(axes[:-1]), Integer(0)))


def side_by_side(axes: Shape) -> tuple[Expr, ...]:
    """How far neighbours along each axis are apart in a row without gaps."""
    return tuple(Mul(*axes[number + 1 :]) for number in range(len(axes)))


def go_together(first: Loop, second: Loop, axes: Shape) -> bool:
    """Whether a later loop may go through each strip directly after an earlier one."""
    before, after = list(touches(first, axes)), list(touches(second, axes))
    return all(
        a.whole and b.whole and (a.walk, a.start) == (b.walk, b.start)
        for a in before
        for b in after
        if a.buffer == b.buffer and (a.writes or b.writes)
    )


def are_apart(first: Loop, second: Loop) -> bool:
    """Whether two loops may run in either order."""
    reads = [{load.view.buffer for load in loop.loads} for loop in (first, second)]
    writes = [
        {line.view.buffer for line in loop.lines if line.view is not None}
        for loop in (first, second)
    ]
    return not (writes[0] & (reads[1] | writes[1]) or writes[1] & reads[0])


def in_vectors(loop: Loop, axes: Sequence[Expr]) -> bool:
    """Whether a nest is arithmetic on entries that lie side by side along its last axis."""
    walks = [load.walk for load in loop.loads] + [line.walk for line in loop.lines]
    return (
        loop.axes == tuple(axes)
        and all(walk.strides[-1] in (0, 1) for walk in walks if walk is not None)
        and all(is_arithmetic(line.statement.expression) for line in loop.lines)
    )


def is_arithmetic(expression: Expr) -> bool:
    """Whether an expression has sums, products, quotients and small powers alone."""
    if expression.is_Pow:
        powers = expression.exp
        return bool(powers.is_Integer and abs(powers) <= 2 and is_arithmetic(expression.base))
    if expression.is_Add or expression.is_Mul:
        return all(map(is_arithmetic, expression.args))
    return bool(expression.is_Symbol or expression.is_Number)
