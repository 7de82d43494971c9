"""Operators that form nothing: they say which elements of a value another one's are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import sympy
from sympy import Expr, Integer, sympify

from cellgen.language.lines import located
from cellgen.language.ops.operator import Array, Operator, broadcast, matrix, mismatch
from cellgen.language.value import (
    Apply,
    B,
    Shape,
    Value,
    format_shape,
)


def _transpose_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    rows, columns = matrix(shapes[0], "transpose")
    if rows == B:
        raise mismatch(f"transpose takes a weight, found {format_shape(shapes[0])} with rows")
    return (columns, rows)


def _concat_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    axis = int(attributes[0])
    first = shapes[0]
    if len(first) > 2 and axis > 0:  # rows of a weight that maps into heads may be joined
        raise mismatch(f"concat of {format_shape(first)}: the units of heads lie apart")
    if any(len(shape) != len(first) for shape in shapes) or len(first) <= axis:
        listed = ", ".join(format_shape(shape) for shape in shapes)
        raise mismatch(f"concat of {listed}: every operand needs the same number of axes")
    for shape in shapes[1:]:
        if shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            raise mismatch(
                f"concat of {format_shape(first)} and {format_shape(shape)} differs off axis {axis}"
            )
    total = sympy.Add(*(shape[axis] for shape in shapes))
    return (*first[:axis], total, *first[axis + 1 :])


def _part_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    axis, _, size = attributes
    shape = shapes[0]
    return (*shape[: int(axis)], size, *shape[int(axis) + 1 :])


def _spread_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    target: Shape = tuple(attributes)
    if broadcast((shapes[0], target)) != target:
        raise mismatch(f"spread of {format_shape(shapes[0])} to {format_shape(target)}")
    return target


def _np_part(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    axis, start, length = (size(attribute) for attribute in attributes)
    index = [slice(None)] * arrays[0].ndim
    index[axis] = slice(start, start + length)
    return arrays[0][tuple(index)]


def _np_spread(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    return np.broadcast_to(arrays[0], tuple(size(axis) for axis in attributes))


def _concat_adjoint(
    d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
) -> tuple[Expr | None, ...]:
    axis, start, parts = int(attributes[0]), Integer(0), []
    for operand in operands:
        size = operand.shape[axis]
        parts.append(part(d_y, axis, start, size))
        start = start + size
    return tuple(parts)


VIEWS = (
    Operator(
        "transpose",
        _transpose_shape,
        lambda arrays, attributes, size: arrays[0].T,
        lambda d_y, operands, attributes: (Apply("transpose", (d_y,)),),
        is_transpose=True,
        stem="transposed",
        text="{0}.T",
        latex=r"{0}^{{\top}}",
    ),
    Operator(
        "concat",
        _concat_shape,
        lambda arrays, attributes, size: np.concatenate(arrays, axis=int(attributes[0])),
        _concat_adjoint,
        is_join=True,
        is_repeatable=True,
    ),
    # The adjoint of a part is gathered with those of its siblings: see derive.
    Operator(
        "part",
        _part_shape,
        _np_part,
        lambda d_y, operands, attributes: (None,),
        is_part=True,
        is_repeatable=True,
    ),
    # What NumPy's broadcasting does, as a copy: between heads and units loops cannot.
    Operator(
        "spread",
        _spread_shape,
        _np_spread,
        lambda d_y, operands, attributes: (Apply("sum_to", (d_y,), operands[0].shape),),
        is_spread=True,
        is_routine=True,
        is_repeatable=True,
    ),
)


@located
def part(a: Expr, axis: int, start: Expr, size: Expr) -> Apply:
    """Take ``size`` entries from ``start`` along one axis."""
    return Apply("part", (a,), (Integer(axis), sympify(start), sympify(size)))
