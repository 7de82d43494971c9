"""Matrix products, head by head too, and added onto a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from sympy import Expr

from cellgen.language.ops.operator import (
    AdjointRule,
    Array,
    Contraction,
    Form,
    Operator,
    TangentRule,
    broadcast,
    matrix,
    mismatch,
)
from cellgen.language.value import (
    Apply,
    B,
    Shape,
    Value,
    format_axis,
    format_shape,
)


def _into(shape: Shape, what: str) -> tuple[Expr, Shape]:
    """The first axis of a weight (K, N) or of one into several axes (I, K, D), and what remains."""
    if len(shape) < 2:
        raise mismatch(f"{what} needs two axes, or three for heads, found {format_shape(shape)}")
    return shape[0], shape[1:]


def _matmul_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    if all(B in shape for shape in shapes):
        return _product_of_rows_shape(*shapes)
    if len(shapes[0]) > 1 and any(axis.has(B) for axis in shapes[1]):
        raise _weight_on_the_left(*shapes)
    if all(len(shape) == 3 for shape in shapes):
        return _matmul_heads_shape(shapes, attributes)
    if shapes[0][:1] == (B,) and len(shapes[0]) > 2:
        return _matrices_by_weight_shape(*shapes)
    (rows, inner), (inner_w, columns) = matrix(shapes[0], "@"), _into(shapes[1], "@")
    if inner != inner_w:
        raise mismatch(
            f"{format_shape(shapes[0])} @ {format_shape(shapes[1])} contracts "
            f"{format_axis(inner)} with {format_axis(inner_w)}"
        )
    return (rows, *columns)


def _weight_on_the_left(w: Shape, rows: Shape) -> Exception:
    """What is wrong of a product whose rows are on its right, and how to write it."""
    fits = (*w[:-2], w[-1], w[-2]) if len(w) == len(rows) and w[-1] == rows[-1] else ()
    advice = f"{format_shape(rows)} @ {format_shape(fits) if fits else 'weight'}"
    return mismatch(
        f"{format_shape(w)} @ {format_shape(rows)}: the right side of @ must be a weight, it must "
        f"not have the batch axis B; write {advice}"
    )


def _product_of_rows_shape(a: Shape, b: Shape) -> Shape:
    """The shape of a product for each row: matrix and vector, vector and matrix, two matrices."""
    by = len(a) - len(b)
    if by == 1 and a[-1] == b[-1]:
        return (*broadcast((a[:-2], b[:-1])), a[-2])
    if by == -1 and a[-1] == b[-2]:
        return (*broadcast((a[:-1], b[:-2])), b[-1])
    if by == 0 and len(a) > 2 and a[-1] == b[-2]:
        return (*broadcast((a[:-2], b[:-2])), a[-2], b[-1])
    pair = f"{format_shape(a)} @ {format_shape(b)}"
    if by in (1, -1):
        inner = a[-1] if by == 1 else b[-2]
        vector = f"(B, ..., {format_axis(inner)})"
        raise mismatch(f"{pair}: what would fit is a vector of {vector}")
    raise mismatch(
        f"{pair}: the right side of @ must be a weight, it must not have the batch axis B; of two "
        f"values with rows a matrix and a vector fit, (B, D, K) @ (B, K), or two matrices; for "
        f"one sum write sum(a * b)"
    )


def _matrices_by_weight_shape(a: Shape, w: Shape) -> Shape:
    """The shape of (B, K, D) by (D, E), and of (B, N, K, D) by (N, D, E), head by head."""
    if len(w) != len(a) - 1 or w[-2] != a[-1] or w[:-2] != a[1:-2]:
        *heads, rows, inner = a[1:]
        fits = format_shape((*heads, inner, *(w[-1:] or (inner,))))
        raise mismatch(
            f"{format_shape(a)} @ {format_shape(w)}: matrices of {format_axis(rows)} x "
            f"{format_axis(inner)} fit a weight of {fits}"
        )
    return (*a[:-1], w[-1])


def _matmul_transposed_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, inner), (columns, inner_w) = (_into(shape, "@ transposed") for shape in shapes)
    if inner != inner_w:
        raise mismatch(f"{format_shape(shapes[0])} @ transpose of {format_shape(shapes[1])}")
    return (rows, columns)


def _outer_sum_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, inner), (rows_b, columns) = (
        matrix(shapes[0], "outer_sum"),
        _into(shapes[1], "outer_sum"),
    )
    if rows != rows_b:
        raise mismatch(f"outer_sum of {format_shape(shapes[0])} and {format_shape(shapes[1])}")
    return (inner, *columns)


def _heads(shapes: Sequence[Shape], what: str) -> list[tuple[Expr, Expr, Expr]]:
    if any(len(shape) != 3 for shape in shapes):
        listed = " and ".join(format_shape(shape) for shape in shapes)
        raise mismatch(f"{what} of heads needs three axes each, found {listed}")
    return [(shape[0], shape[1], shape[2]) for shape in shapes]


def _matmul_heads_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, heads, inner), (heads_w, inner_w, columns) = _heads(shapes, "@")
    if (heads, inner) != (heads_w, inner_w):
        raise mismatch(
            f"{format_shape(shapes[0])} @ {format_shape(shapes[1])} pairs {format_axis(heads)} "
            f"heads of {format_axis(inner)} with {format_axis(heads_w)} of {format_axis(inner_w)}"
        )
    return (rows, heads, columns)


def _matmul_heads_transposed_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, heads, inner), (heads_w, columns, inner_w) = _heads(shapes, "@ transposed")
    if (heads, inner) != (heads_w, inner_w):
        raise mismatch(f"{format_shape(shapes[0])} @ transpose of {format_shape(shapes[1])}")
    return (rows, heads, columns)


def _outer_sum_heads_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, heads, inner), (rows_b, heads_b, columns) = _heads(shapes, "outer_sum")
    if (rows, heads) != (rows_b, heads_b):
        raise mismatch(f"outer_sum of {format_shape(shapes[0])} and {format_shape(shapes[1])}")
    return (heads, inner, columns)


def _np_matmul(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    a, w = arrays
    if a.ndim == w.ndim == 2:
        return np.asarray(np.dot(a, w))
    inner = len(w)  # what tensordot does, less what it asks first
    rows, columns = a.shape[:-1], w.shape[1:]
    flat = np.dot(a.reshape(math.prod(rows), inner), w.reshape(inner, math.prod(columns)))
    return np.asarray(flat.reshape(rows + columns))


def _np_outer_sum(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    a, b = arrays
    if a.ndim == b.ndim == 2:
        return np.asarray(np.dot(a.T, b))
    return np.asarray(np.tensordot(a, b, axes=(0, 0)))


def _np_matmul_transposed(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    a, w = arrays
    if a.ndim == w.ndim == 2:
        return np.asarray(np.dot(a, w.T))
    axes = list(range(1, w.ndim))
    return np.asarray(np.tensordot(a, w, axes=(axes, axes)))


def _product_adjoint(first: str, second: str, swap_first: bool, swap_second: bool) -> AdjointRule:
    def adjoint(
        y: Value, d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
    ) -> tuple[Expr | None, ...]:
        a, b = operands
        d_a = Apply(first, (b, d_y) if swap_first else (d_y, b))
        d_b = Apply(second, (d_y, a) if swap_second else (a, d_y))
        return d_a, d_b

    return adjoint


def _bilinear(plain: str) -> TangentRule:
    """The tangent of a product, or of one added onto a seed: one factor moves at a time."""

    def tangent(
        y: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Sequence[Expr],
    ) -> tuple[Expr, ...]:
        *seed, t_a, t_b = tangents
        a, b = operands[-2:]
        terms: list[Expr] = [t_seed for t_seed in seed if t_seed is not None]
        if t_a is not None:
            terms.append(Apply(plain, (t_a, b), attributes))
        if t_b is not None:
            terms.append(Apply(plain, (a, t_b), attributes))
        return tuple(terms)

    return tangent


def _onto(row: Operator) -> Operator:
    """The product of ``row`` added onto a seed: ``y = seed + a w``, one sum in one buffer."""
    assert row.product is not None
    product = replace(row.product, onto=True)

    def shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
        formed = row.shape(shapes[1:], attributes)
        if shapes[0] != formed:
            raise mismatch(f"{format_shape(formed)} added onto {format_shape(shapes[0])}")
        return formed

    def meaning(
        arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
    ) -> Array:
        return arrays[0] + row.numpy(arrays[1:], attributes, size)

    def adjoint(
        y: Value, d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
    ) -> tuple[Expr | None, ...]:
        return (d_y, *row.adjoint(y, d_y, operands[1:], attributes))

    return Operator(
        product.grown,
        shape,
        meaning,
        adjoint,
        tangent=row.tangent,
        product=product,
        mixes_units=True,
    )


_PLAIN = (
    # y = a w:   d_a = d_y w^T,  d_w = a^T d_y (summed over rows)
    Operator(
        "matmul",
        _matmul_shape,
        _np_matmul,
        _product_adjoint("matmul_transposed", "outer_sum", False, False),
        tangent=_bilinear("matmul"),
        product=Contraction(Form.NN, "matmul", "matmul_transposed"),
        mixes_units=True,
        text="{0} @ {1}",
        latex=r"{0} \, {1}",
    ),
    # y = a w^T: d_a = d_y w,    d_w = d_y^T a
    Operator(
        "matmul_transposed",
        _matmul_transposed_shape,
        _np_matmul_transposed,
        _product_adjoint("matmul", "outer_sum", False, True),
        tangent=_bilinear("matmul_transposed"),
        product=Contraction(Form.NT, "matmul_transposed", "matmul"),
        mixes_units=True,
        text="{0} @ {1}.T",
        latex=r"{0} \, {1}^{{\top}}",
    ),
    # y = a^T b: d_a = b d_y^T,  d_b = a d_y
    Operator(
        "outer_sum",
        _outer_sum_shape,
        _np_outer_sum,
        _product_adjoint("matmul_transposed", "matmul", True, False),
        tangent=_bilinear("outer_sum"),
        product=Contraction(Form.TN, "outer_sum"),
        mixes_units=True,
        text="{0}.T @ {1}",
        latex=r"{0}^{{\top}} \, {1}",
    ),
    # The same head by head: a (B, K, D), w (K, D, E), y (B, K, E).
    Operator(
        "matmul_heads",
        _matmul_heads_shape,
        lambda arrays, attributes, size: np.einsum("bkd,kde->bke", *arrays),
        _product_adjoint("matmul_heads_transposed", "outer_sum_heads", False, False),
        tangent=_bilinear("matmul_heads"),
        product=Contraction(Form.NN, "matmul_heads", by_head=True),
        mixes_units=True,
        text="{0} @ {1}",
        latex=r"{0} \, {1}",
    ),
    Operator(
        "matmul_heads_transposed",
        _matmul_heads_transposed_shape,
        lambda arrays, attributes, size: np.einsum("bke,kde->bkd", *arrays),
        _product_adjoint("matmul_heads", "outer_sum_heads", False, True),
        tangent=_bilinear("matmul_heads_transposed"),
        product=Contraction(Form.NT, "matmul_heads_transposed", by_head=True),
        mixes_units=True,
        text="{0} @ {1}.T",
        latex=r"{0} \, {1}^{{\top}}",
    ),
    Operator(
        "outer_sum_heads",
        _outer_sum_heads_shape,
        lambda arrays, attributes, size: np.einsum("bkd,bke->kde", *arrays),
        _product_adjoint("matmul_heads_transposed", "matmul_heads", True, False),
        tangent=_bilinear("outer_sum_heads"),
        product=Contraction(Form.TN, "outer_sum_heads", by_head=True),
        mixes_units=True,
        text="{0}.T @ {1}",
        latex=r"{0}^{{\top}} \, {1}",
    ),
)

PRODUCTS = (*_PLAIN, *(_onto(row) for row in _PLAIN))
