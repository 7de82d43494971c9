"""Operators that form nothing: they say which elements of a value another one's are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import sympy
from sympy import Expr, Integer, sympify

from cellgen.language.lines import located
from cellgen.language.ops.operator import Array, Motion, Operator, matrix, mismatch
from cellgen.language.value import (
    Apply,
    B,
    Shape,
    Value,
    format_shape,
)


def _transpose_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    shape = shapes[0]
    if len(shape) > 2:
        return (*shape[:-2], shape[-1], shape[-2])
    rows, columns = matrix(shape, "transpose")
    if rows == B:
        raise mismatch(
            f"transpose takes a weight, or a matrix for each row, found {format_shape(shape)}"
        )
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


def _reshape_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    """The first axis stays, and how many elements it has of each of its entries."""
    shape, target = shapes[0], tuple(attributes)
    same = len(shape) > 1 and len(target) > 1 and shape[0] == target[0]
    if not same or sympy.expand(sympy.Mul(*shape[1:]) - sympy.Mul(*target[1:])) != 0:
        raise mismatch(f"{format_shape(shape)} as {format_shape(target)}: rows of other lengths")
    return target


def _np_part(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    axis, start, length = (size(attribute) for attribute in attributes)
    index = [slice(None)] * arrays[0].ndim
    index[axis] = slice(start, start + length)
    return arrays[0][tuple(index)]


def _np_reshape(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    return np.reshape(arrays[0], (len(arrays[0]), *(size(axis) for axis in attributes[1:])))


def _concat_adjoint(
    y: Value, d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
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
        lambda arrays, attributes, size: np.swapaxes(arrays[0], -1, -2),
        lambda y, d_y, operands, attributes: (Apply("transpose", (d_y,)),),
        tangent=Motion.LINEAR,
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
        tangent=Motion.LINEAR,
        is_join=True,
        is_repeatable=True,
    ),
    # The adjoint of a part is gathered with those of its siblings: see derive.
    Operator(
        "part",
        _part_shape,
        _np_part,
        lambda y, d_y, operands, attributes: (None,),
        tangent=Motion.LINEAR,
        is_part=True,
        is_repeatable=True,
    ),
    # Other axes within a row, the same elements in the same order.
    Operator(
        "reshape",
        _reshape_shape,
        _np_reshape,
        lambda y, d_y, operands, attributes: (Apply("reshape", (d_y,), operands[0].shape),),
        tangent=Motion.LINEAR,
        is_reshape=True,
        is_repeatable=True,
        stem="reshaped",
    ),
)


@located
def part(a: Expr, axis: int, start: Expr, size: Expr) -> Apply:
    """Take ``size`` entries from ``start`` along one axis."""
    return Apply("part", (a,), (Integer(axis), sympify(start), sympify(size)))
