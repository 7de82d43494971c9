"""Spell products of a row's matrices by weights in C: tiles of a matrix product in place of a loop.

Input: the stage of a strip whose one loop is a sum of products. Output: lines that are run for each
row. The chain of additions of an element is that of all products, fused, in the order of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sympy import Expr

from cellgen.language.value import Value
from cellgen.schedule.lower.plan import StripPlan
from cellgen.schedule.lower.touches import walk_in
from cellgen.schedule.schedule import Line, Load, Loop, Store
from cellgen.targets.c_expressions import c_axis, c_factor

INNER = 3
"""Axes that a product tells apart: rows of a matrix, then two of which one is summed along."""


@dataclass(frozen=True)
class TileProduct:
    """A routine of ``cellgen_gemm.h``, and along which of the three axes each array moves.

    ``unit`` is the axis along which each has no gaps, ``sizes`` are its three dimensions in order.
    """

    routine: str
    target: tuple[bool, bool, bool]
    left: tuple[bool, bool, bool]
    unit: tuple[int, int, int]
    sizes: tuple[int, int, int]


RIGHT = (False, True, True)
PRODUCTS = (
    TileProduct("cg_gemm_nn", (True, False, True), (True, True, False), (2, 1, 2), (0, 2, 1)),
    TileProduct("cg_gemm_nt", (True, True, False), (True, False, True), (1, 2, 2), (0, 1, 2)),
)
"""By a weight, and by its transpose; units of target, left and right."""


def product_lines(
    stage: StripPlan,
    values: Sequence[Expr],
    pointer: Callable[[Value], str],
    begin: Callable[[Load | Line], str],
) -> list[str]:
    """The lines of a stage that is one product, for a row; none for any other.

    ``values`` are the expressions of its lines; ``begin`` spells where an array begins.
    """
    (loop, *more) = stage.loops
    if more or len(loop.lines) != 1 or len(loop.loads) != 2 or len(stage.axes) < INNER:
        return []
    line, value = loop.lines[0], values[0]
    factors = {load.value for load in loop.loads}
    if line.store is not Store.ADD_UNITS or not value.is_Mul or {*value.args} != factors:
        return []
    for left, right in (loop.loads, loop.loads[::-1]):
        arrays = (line, left, right)
        strides = [walk_in(one, loop, stage.axes).strides for one in arrays]
        known = next((one for one in PRODUCTS if _is(one, strides)), None)
        if known is not None:
            return _spelled(known, loop, stage, arrays, strides, pointer, begin)
    return []


def _is(product: TileProduct, strides: Sequence[Sequence[Expr]]) -> bool:
    """Whether arrays move as those of a product do, every entry of the target having one sum."""
    moves = [tuple(stride != 0 for stride in each[-INNER:]) for each in strides]
    along = [each[-INNER:][axis] for each, axis in zip(strides, product.unit, strict=True)]
    once = all(stride != 0 for stride in strides[0][:-INNER])
    return once and moves == [product.target, product.left, RIGHT] and along == [1, 1, 1]


def _spelled(
    product: TileProduct,
    loop: Loop,
    stage: StripPlan,
    arrays: Sequence[Load | Line],
    strides: Sequence[Sequence[Expr]],
    pointer: Callable[[Value], str],
    begin: Callable[[Load | Line], str],
) -> list[str]:
    outer = [f"axis{n}" for n in range(1, len(stage.axes) - INNER + 1)]
    declared: list[str] = []
    places: list[str] = []
    for one, steps, unit in zip(arrays, strides, product.unit, strict=True):
        name = pointer(one.value if isinstance(one, Load) else one.statement.target)
        constant = "const " if isinstance(one, Load) else ""
        declared.append(f"{constant}real *{name} = {begin(one)};")
        at = [
            f" + {axis} * {c_factor(stride)}"
            for axis, stride in zip(outer, steps, strict=False)
            if stride != 0
        ]
        (gap,) = (s for n, s in enumerate(steps[-INNER:]) if s != 0 and n != unit)
        places.append(f"{name}{''.join(at)}, {c_factor(gap)}")
    target, left, right = places
    sizes = ", ".join(c_axis(stage.axes[-INNER:][axis]) for axis in product.sizes)
    loops = [
        f"for (int64_t {name} = 0; {name} < {c_axis(axis)}; ++{name})"
        for name, axis in zip(outer, stage.axes, strict=False)
    ]
    return [*declared, *loops, f"    {product.routine}({sizes}, {left}, {right}, {target}, 0);"]
