"""Which nests are matrix products of each row: tiles of a product may form them in place of a loop.

Input: a planned loop and the inner axes of its nest. Output: how its arrays move along these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr

from cellgen.language.ops import Form
from cellgen.language.value import Shape
from cellgen.schedule.lower.touches import walk_in
from cellgen.schedule.schedule import Line, Load, Loop, Store

INNER = 3
"""Axes that a product tells apart, one of which is summed along."""

Moves = tuple[bool, bool, bool]


@dataclass(frozen=True)
class TileKind:
    """A product, and along which of the three axes each array moves: target, left and right.

    ``unit`` is the axis along which each has no gaps, ``sizes`` are rows and columns of the target
    and the length of its sums, by axis. ``adds``: it goes on from what the target has.
    """

    form: Form
    target: Moves
    left: Moves
    right: Moves
    unit: tuple[int, int, int]
    sizes: tuple[int, int, int]
    adds: bool = False


ROWS, INNERS, COLUMNS = (True, False, True), (True, True, False), (False, True, True)
TILE_KINDS = (
    TileKind(Form.NN, ROWS, INNERS, COLUMNS, (2, 1, 2), (0, 2, 1)),
    TileKind(Form.NT, INNERS, ROWS, COLUMNS, (1, 2, 2), (0, 1, 2)),
    TileKind(Form.TN, COLUMNS, INNERS, ROWS, (2, 1, 2), (1, 2, 0), adds=True),
)
"""By a weight, by its transpose, and the weight's own gradient, a sum over rows too."""


@dataclass(frozen=True)
class TileProduct:
    """A nest that is a product: target, left and right, and by how much each moves by axis."""

    kind: TileKind
    arrays: tuple[Line, Load, Load]
    strides: tuple[tuple[Expr, ...], ...]


def tile_product(loop: Loop, axes: Shape) -> TileProduct | None:
    """The product that a nest is; None where it is something else."""
    if len(loop.lines) != 1 or len(loop.loads) != 2 or loop.axes != axes or len(axes) < INNER:
        return None
    (line,), term = loop.lines, loop.lines[0].statement.expression
    if not term.is_Mul or {*term.args} != {load.value for load in loop.loads}:
        return None
    for left, right in (loop.loads, loop.loads[::-1]):
        arrays = (line, left, right)
        strides = tuple(walk_in(one, loop, axes).strides for one in arrays)
        kind = next((one for one in TILE_KINDS if _is(one, line.store, strides)), None)
        if kind is not None:
            return TileProduct(kind, arrays, strides)
    return None


def _is(kind: TileKind, store: Store, strides: Sequence[Sequence[Expr]]) -> bool:
    """Whether arrays move as those of a product do, every entry of the target having one sum."""
    moves = [tuple(stride != 0 for stride in each[-INNER:]) for each in strides]
    along = [each[-INNER:][axis] for each, axis in zip(strides, kind.unit, strict=True)]
    return (
        store is (Store.ADD_ROWS if kind.adds else Store.ADD_UNITS)
        and moves == [kind.target, kind.left, kind.right]
        and all(stride != 0 for stride in strides[0][:-INNER])
        and along == [1, 1, 1]
    )
