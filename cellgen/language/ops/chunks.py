"""Operators over the rows of a chunk: products, masks, one row, values beside each other.

A chunk holds consecutive steps of each row and head: (B, ..., C, K), the steps along the axis
before the last. Authors write none of these; programs of whole chunks (``program.chunks``) are made
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from sympy import Expr, Integer

from cellgen.language.ops.operator import (
    AdjointRule,
    Array,
    Motion,
    Operator,
    TangentRule,
    mismatch,
)
from cellgen.language.value import Apply, Shape, Value, format_shape

Attributes: TypeAlias = Sequence[Expr]
Size: TypeAlias = Callable[[Expr], int]

ONE = Integer(1)


def rows_of(shape: Shape, what: str) -> tuple[Shape, Expr, Expr]:
    """The axes in front, the steps and the units."""
    if len(shape) < 3:
        raise mismatch(f"{what} takes chunks (B, C, K), found {format_shape(shape)}")
    return shape[:-2], shape[-2], shape[-1]


def listed_shapes(shapes: Sequence[Shape]) -> str:
    """Shapes in a row of text."""
    return " and ".join(format_shape(shape) for shape in shapes)


# --- products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """Which factor of a product is transposed, and the products that are its adjoints."""

    name: str
    first: bool
    second: bool
    text: str
    latex: str

    def shape(self, shapes: Sequence[Shape], attributes: Attributes) -> Shape:
        (front, *a), (front_b, *b) = (rows_of(shape, self.name) for shape in shapes)
        (rows, inner), (inner_b, columns) = (
            a[:: -1 if self.first else 1],
            b[:: -1 if self.second else 1],
        )
        if front != front_b or inner != inner_b:
            raise mismatch(f"{self.name} of {listed_shapes(shapes)}")
        return (*front, rows, columns)

    def numpy(self, arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
        a, b = arrays
        a = np.swapaxes(a, -1, -2) if self.first else a
        return np.asarray(a @ (np.swapaxes(b, -1, -2) if self.second else b))


def _bilinear(name: str) -> TangentRule:
    def tangent(
        y: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Attributes,
    ) -> tuple[Expr, ...]:
        (a, b), (t_a, t_b) = operands, tangents
        terms = [Apply(name, (t_a, b))] if t_a is not None else []
        return (*terms, *([Apply(name, (a, t_b))] if t_b is not None else []))

    return tangent


def _product(form: _Form, adjoint: AdjointRule) -> Operator:
    return Operator(
        form.name,
        form.shape,
        form.numpy,
        adjoint,
        tangent=_bilinear(form.name),
        mixes_units=True,
        text=form.text,
        latex=form.latex,
    )


_PRODUCTS = (
    # y = a b:    d_a = d_y b^T,  d_b = a^T d_y
    _product(
        _Form("chunk_nn", False, False, "{0} @ {1}", r"{0} \, {1}"),
        lambda y, d_y, ab, attributes: (
            Apply("chunk_nt", (d_y, ab[1])),
            Apply("chunk_tn", (ab[0], d_y)),
        ),
    ),
    # y = a b^T:  d_a = d_y b,    d_b = d_y^T a
    _product(
        _Form("chunk_nt", False, True, "{0} @ {1}.T", r"{0} \, {1}^{{\top}}"),
        lambda y, d_y, ab, attributes: (
            Apply("chunk_nn", (d_y, ab[1])),
            Apply("chunk_tn", (d_y, ab[0])),
        ),
    ),
    # y = a^T b:  d_a = b d_y^T,  d_b = a d_y
    _product(
        _Form("chunk_tn", True, False, "{0}.T @ {1}", r"{0}^{{\top}} \, {1}"),
        lambda y, d_y, ab, attributes: (
            Apply("chunk_nt", (ab[1], d_y)),
            Apply("chunk_nn", (ab[0], d_y)),
        ),
    ),
)


# --- what earlier steps are to later ones --------------------------------------------------------


def _square(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    _, rows, columns = rows_of(shapes[0], "a mask")
    if rows != columns:
        raise mismatch(f"a mask takes (B, C, C), found {format_shape(shapes[0])}")
    return shapes[0]


def _mask(name: str, below: int) -> Operator:
    return Operator(
        name,
        _square,
        lambda arrays, attributes, size: np.tril(arrays[0], -below),
        lambda y, d_y, operands, attributes: (Apply(name, (d_y,)),),
        tangent=Motion.LINEAR,
        mixes_units=True,
        stem=name,
    )


_MASKS = (
    _mask("lower", 0),  # on the diagonal and below it
    _mask("strictly_lower", 1),
)


# --- one row of a chunk --------------------------------------------------------------------------


def _row_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    front, _, units = rows_of(shapes[0], "a row")
    return (*front, ONE, units)


def _placed_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    front, rows, units = rows_of(shapes[0], "a row")
    if rows != 1:
        raise mismatch(f"one row is placed, found {format_shape(shapes[0])}")
    return (*front, attributes[0], units)


def _row(name: str, placed: str, at: slice) -> tuple[Operator, Operator]:
    """One row of a chunk, and a chunk with nothing but that row, of so many steps."""

    def place(arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
        front, units = arrays[0].shape[:-2], arrays[0].shape[-1]
        chunk = np.zeros((*front, size(attributes[0]), units), arrays[0].dtype)
        chunk[..., at, :] = arrays[0]
        return chunk

    return (
        Operator(
            name,
            _row_shape,
            lambda arrays, attributes, size: arrays[0][..., at, :],
            lambda y, d_y, of, attributes: (Apply(placed, (d_y,), (of[0].shape[-2],)),),
            tangent=Motion.LINEAR,
            mixes_units=True,
            stem=name,
        ),
        Operator(
            placed,
            _placed_shape,
            place,
            lambda y, d_y, of, attributes: (Apply(name, (d_y,)),),
            tangent=Motion.LINEAR,
            mixes_units=True,
            stem=placed,
        ),
    )


_ROWS = (
    *_row("first_row", "into_first_row", slice(None, 1)),
    *_row("last_row", "into_last_row", slice(-1, None)),
)


# --- several values beside each other ------------------------------------------------------------


def _stack_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    if any(shape != shapes[0] for shape in shapes) or not shapes[0]:
        raise mismatch(f"stack of {listed_shapes(shapes)}")
    return (shapes[0][0], Integer(len(shapes)), *shapes[0][1:])


def _entry_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    shape, at = shapes[0], attributes[0]
    if len(shape) < 2 or not shape[1].is_Integer or not at < shape[1]:
        raise mismatch(f"entry {at} of {format_shape(shape)}")
    return (shape[0], *shape[2:])


def _into_entry_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    at, count = attributes
    if not shapes[0] or not at < count:
        raise mismatch(f"{format_shape(shapes[0])} as entry {at} of {count}")
    return (shapes[0][0], count, *shapes[0][1:])


def _np_into_entry(arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
    at, count = map(int, attributes)
    return np.stack([arrays[0] if n == at else 0 * arrays[0] for n in range(count)], axis=1)


_STACKS = (
    Operator(
        "stacked",
        _stack_shape,
        lambda arrays, attributes, size: np.stack(arrays, axis=1),
        lambda y, d_y, of, attributes: tuple(
            Apply("entry", (d_y,), (Integer(n),)) for n in range(len(of))
        ),
        tangent=Motion.LINEAR,
        is_repeatable=True,
        stem="stacked",
    ),
    Operator(
        "entry",
        _entry_shape,
        lambda arrays, attributes, size: arrays[0][:, int(attributes[0])],
        lambda y, d_y, of, attributes: (
            Apply("into_entry", (d_y,), (attributes[0], of[0].shape[1])),
        ),
        tangent=Motion.LINEAR,
        is_repeatable=True,
        prints_attributes=True,
        stem="entry",
    ),
    Operator(
        "into_entry",
        _into_entry_shape,
        _np_into_entry,
        lambda y, d_y, of, attributes: (Apply("entry", (d_y,), attributes[:1]),),
        tangent=Motion.LINEAR,
        is_repeatable=True,
        prints_attributes=True,
        stem="into_entry",
    ),
)

CHUNKS = (*_PRODUCTS, *_MASKS, *_ROWS, *_STACKS)
