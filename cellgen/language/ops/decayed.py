"""Products of rows of a chunk whose keys decay between their steps, one number a key.

    nt:  y[t, i] = sum_k a[t, k] b[i, k] e[t, i, k]
    nn:  y[t, k] = sum_i a[t, i] b[i, k] e[t, i, k]
    tn:  y[i, k] = sum_t a[t, i] b[t, k] e[t, i, k]

where ``e[t, i, k] = exp(g[t, k] - h[i, k])`` for i up to t (before t: the attribute 1), else 0; g
and h are sums of logarithms of decays up to each step. They are exact for decays of any strength:
no exponential of a sum stands alone. The three are each other's adjoints; what reaches the
logarithms is a product with what reaches queries and keys, so that no gradient of e is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from sympy import Expr

from cellgen.language.ops.chunks import Attributes, Size, listed_shapes, rows_of
from cellgen.language.ops.operator import Array, Operator, mismatch
from cellgen.language.value import Apply, Shape, Value

Pair: TypeAlias = Callable[[Array, Array, Array], Array]


def _shape(name: str, square_first: bool) -> Callable[[Sequence[Shape], Attributes], Shape]:
    def shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
        a, b, g, h = shapes
        front, rows, _ = rows_of(b, name)
        square = (*front, rows, rows)
        fits = b == g == h and a == (square if square_first else b)
        if not fits:
            raise mismatch(f"{name} of {listed_shapes(shapes)}")
        return b if square_first else square

    return shape


def _decays(g: Array, h: Array, t: int, strict: bool) -> Array:
    """What remains at step t of each earlier step: (..., i, K)."""
    end = t if strict else t + 1
    return np.asarray(np.exp(g[..., t : t + 1, :] - h[..., :end, :]))


def _np_nt(arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
    a, b, g, h = arrays
    steps, strict = a.shape[-2], bool(attributes[0])
    y = np.zeros((*a.shape[:-1], steps), np.result_type(*arrays))
    for t in range(steps):
        e = _decays(g, h, t, strict)
        y[..., t, : e.shape[-2]] = (a[..., t : t + 1, :] * b[..., : e.shape[-2], :] * e).sum(-1)
    return y


def _np_nn(arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
    a, b, g, h = arrays
    y = np.zeros(b.shape, np.result_type(*arrays))
    for t in range(b.shape[-2]):
        e = _decays(g, h, t, bool(attributes[0]))
        end = e.shape[-2]
        y[..., t, :] = (a[..., t, :end, None] * b[..., :end, :] * e).sum(-2)
    return y


def _np_tn(arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
    a, b, g, h = arrays
    y = np.zeros(b.shape, np.result_type(*arrays))
    for t in range(b.shape[-2]):
        e = _decays(g, h, t, bool(attributes[0]))
        end = e.shape[-2]
        y[..., :end, :] += a[..., t, :end, None] * b[..., t : t + 1, :] * e
    return y


def _nt(y: Value, d: Value, of: Sequence[Value], attributes: Attributes) -> tuple[Expr, ...]:
    a, b, g, h = of
    d_a = Apply("decayed_nn", (d, b, g, h), attributes)
    d_b = Apply("decayed_tn", (d, a, g, h), attributes)
    return d_a, d_b, a * d_a, -b * d_b


def _nn(y: Value, d: Value, of: Sequence[Value], attributes: Attributes) -> tuple[Expr, ...]:
    a, b, g, h = of
    d_b = Apply("decayed_tn", (a, d, g, h), attributes)
    return Apply("decayed_nt", (d, b, g, h), attributes), d_b, d * y, -b * d_b


def _tn(y: Value, d: Value, of: Sequence[Value], attributes: Attributes) -> tuple[Expr, ...]:
    a, b, g, h = of
    d_b = Apply("decayed_nn", (a, d, g, h), attributes)
    return Apply("decayed_nt", (b, d, g, h), attributes), d_b, b * d_b, -d * y


def _row(
    name: str,
    square_first: bool,
    meaning: Callable[[Sequence[Array], Attributes, Size], Array],
    adjoint: Callable[[Value, Value, Sequence[Value], Attributes], tuple[Expr, ...]],
    later: Callable[[str, Sequence[Value], Value, Attributes, Value], Expr],
    earlier: Callable[[str, Sequence[Value], Value, Attributes, Value], Expr],
) -> Operator:
    """A row: how the sums of the later and of the earlier step move it is said apart."""

    def tangent(
        y: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Attributes,
    ) -> tuple[Expr, ...]:
        (a, b, g, h), (t_a, t_b, t_g, t_h) = operands, tangents
        terms: list[Expr] = []
        if t_a is not None:
            terms.append(Apply(name, (t_a, b, g, h), attributes))
        if t_b is not None:
            terms.append(Apply(name, (a, t_b, g, h), attributes))
        if t_g is not None:
            terms.append(later(name, operands, t_g, attributes, y))
        if t_h is not None:
            terms.append(-earlier(name, operands, t_h, attributes, y))
        return tuple(terms)

    return Operator(
        name,
        _shape(name, square_first),
        meaning,
        adjoint,
        tangent=tangent,
        mixes_units=True,
        prints_attributes=True,
        stem="decayed",
    )


def _moved_first(
    name: str, of: Sequence[Value], t: Value, attributes: Attributes, y: Value
) -> Expr:
    return Apply(name, (of[0] * t, *of[1:]), attributes)


def _moved_second(
    name: str, of: Sequence[Value], t: Value, attributes: Attributes, y: Value
) -> Expr:
    return Apply(name, (of[0], of[1] * t, *of[2:]), attributes)


def _moved_result(
    name: str, of: Sequence[Value], t: Value, attributes: Attributes, y: Value
) -> Expr:
    return y * t


DECAYED = (
    _row("decayed_nt", False, _np_nt, _nt, _moved_first, _moved_second),
    _row("decayed_nn", True, _np_nn, _nn, _moved_result, _moved_second),
    _row("decayed_tn", True, _np_tn, _tn, _moved_second, _moved_result),
)
