"""The axes of traces, and terms along them: of a parameter's factor, then of a state's units."""

from __future__ import annotations

from typing import cast

from sympy import Expr, Integer

from cellgen.language.ops import absolute, expand_dims, operator_of, shape_of, where, zeros_like
from cellgen.language.value import Apply, B, Shape, Value
from cellgen.program.transforms.probes import Manner, ProbePlace
from cellgen.program.transforms.traces import TraceGroup


def without_rows(expression: Expr) -> Expr:
    """An expression whose values without rows lie along the axes of others as they are.

    (K,), the same for all rows, is (B, 1, K) beside (B, D, K), and (1, H) is (B, H).
    """
    swap = {
        node: node.operands[0]
        for node in expression.atoms(Apply)
        if operator_of(node).is_reshape
        and B in node.attributes[:1]
        and B not in shape_of(node.operands[0])
        and _last_axes(shape_of(node.operands[0])) == _last_axes(node.attributes[1:])
    }
    return cast(Expr, expression.xreplace(swap))


def _last_axes(shape: Shape) -> Shape:
    """Axes without those of length 1 that stand before them."""
    return _last_axes(shape[1:]) if shape and shape[0] == 1 else shape


def row_shape(parameter: Value) -> Shape:
    """The axes of a parameter's gradient in a row: (I, H); of a number (1,)."""
    return parameter.shape[1:] if parameter.is_batched else parameter.shape or (Integer(1),)


def trace_axes(group: TraceGroup, units: Shape) -> Shape:
    """The axes of a trace along some units: with that of the factor in its place."""
    shape = group.parameter.shape
    if group.entry is Manner.PRODUCT:
        return (shape[0], *units)
    return units if group.entry is Manner.UNITS else (units[0], shape[1], *units[1:])


def factor_along(place: ProbePlace, rank: int) -> Expr:
    """The factor of a product along the axes of a trace that has so many units."""
    assert place.factor is not None
    factor = place.factor
    for _ in range(rank if place.entry is Manner.PRODUCT else rank - 1):
        factor = expand_dims(factor, -1)
    return factor


def gradient_at(place: ProbePlace, back: Expr) -> Expr:
    """The gradient of a parameter at one place, from that of its probe."""
    if place.factor is None:
        return back
    axis = 1 if place.entry is Manner.PRODUCT else 2
    return factor_along(place, len(place.probe.shape) - 1) * expand_dims(back, axis)


def diagonal(weight: Expr) -> Expr:
    """The diagonal of a square weight, (H,) or (K, D): entries whose row is their column."""
    ones = zeros_like(weight) + 1
    row, column = Apply("cumsum", (ones,), (Integer(1),)), Apply("cumsum", (ones,))
    own = where(absolute(row - column) < 0.5, weight, 0)
    heads, units = shape_of(weight)[:-2], shape_of(weight)[-1]
    if not heads:
        return Apply("sum_to", (own,), (units,))
    return Apply(
        "reshape", (Apply("sum_to", (own,), (*heads, units, Integer(1))),), (*heads, units)
    )
