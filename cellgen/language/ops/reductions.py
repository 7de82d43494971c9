"""Sums over axes, and where the largest unit stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from sympy import Expr, Integer

from cellgen.language.ops.operator import Array, Motion, Operator, broadcast, mismatch
from cellgen.language.value import (
    Shape,
    format_shape,
)


def _first_max_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    if len(shapes[0]) < sum(map(int, attributes)):
        raise mismatch(f"max over {attributes[0]} axes of {format_shape(shapes[0])}")
    return shapes[0]


def _sum_to_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    target: Shape = tuple(attributes)
    if broadcast((shapes[0], target)) != shapes[0]:
        raise mismatch(f"sum of {format_shape(shapes[0])} to {format_shape(target)}")
    return target


def _axes_after_of_many(attributes: Sequence[Expr]) -> int:
    """How many axes stand behind those of the largest unit, which the first attribute counts."""
    return int(attributes[1]) if len(attributes) > 1 else 0


def _np_first_max(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    shape = arrays[0].shape
    after = len(shape) - _axes_after_of_many(attributes)
    rows = after - int(attributes[0])
    array = np.real(arrays[0]).reshape(*shape[:rows], math.prod(shape[rows:after]), *shape[after:])
    chosen = np.zeros(array.shape)
    if array.size:
        np.put_along_axis(chosen, array.argmax(axis=rows, keepdims=True), 1.0, axis=rows)
    return chosen.reshape(shape)


def _np_sum_to(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    array = arrays[0]
    array = np.asarray(array.sum(axis=tuple(range(array.ndim - len(attributes)))))
    # By the symbolic shape, not the lengths: an axis of length 1 that is not summed stays as it is.
    for axis, length in enumerate(attributes):
        if length == 1:
            array = np.asarray(array.sum(axis=axis, keepdims=True))
    return array


REDUCTIONS = (
    # Sums over every axis along which the target was broadcast; the adjoint broadcasts back.
    Operator(
        "sum_to",
        _sum_to_shape,
        _np_sum_to,
        lambda y, d_y, operands, attributes: (d_y,),
        tangent=Motion.LINEAR,
        mixes_units=True,
        is_sum=True,
        stem="sum",
    ),
    # 1 where the largest unit stands, the first of equal ones, else 0; over so many axes.
    Operator(
        "first_max",
        _first_max_shape,
        _np_first_max,
        lambda y, d_y, operands, attributes: (Integer(0),),
        tangent=Motion.STILL,
        mixes_units=True,
        is_indicator=True,
        is_routine=True,
        unit_axes=lambda attributes: int(attributes[0]),
        axes_after=_axes_after_of_many,
        stem="largest",
    ),
)
