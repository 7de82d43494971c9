"""What a row is, for operators that look across elements, and how shapes agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sympy import Expr, Integer

from cellgen.errors import DeclarationError
from cellgen.language.value import (
    B,
    Shape,
    Value,
    format_axis,
    format_shape,
)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Operator:
    """One operator that looks across elements.

    ``shape`` maps operand shapes and attributes to the result's shape and raises
    ``DeclarationError`` on a mismatch. ``numpy`` takes arrays, attributes and a function that
    evaluates a dimension. ``adjoint`` maps (adjoint of the result, operands, attributes) to one
    contribution per operand (None where there is none). Products (``is_product``) are bilinear; a
    result that ``is_still`` does not move with its operands, except in jumps; every other operator
    is linear, and its own tangent.
    """

    name: str
    shape: Callable[[Sequence[Shape], Sequence[Expr]], Shape]
    numpy: Callable[[Sequence[Array], Sequence[Expr], Callable[[Expr], int]], Array]
    adjoint: Callable[[Value, Sequence[Value], Sequence[Expr]], tuple[Expr | None, ...]]
    is_product: bool = False
    is_still: bool = False
    text: str = ""


def mismatch(what: str) -> DeclarationError:
    return DeclarationError(f"shapes do not agree: {what}", code="declaration.shape")


def matrix(shape: Shape, what: str) -> tuple[Expr, Expr]:
    if len(shape) != 2:
        raise mismatch(f"{what} needs two axes, found {format_shape(shape)}")
    return shape[0], shape[1]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Combine shapes as NumPy does, aligned at the last axis.

    Raises:
        DeclarationError: two axes that are neither equal nor 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Expr] = [Integer(1)] * rank
    for shape in shapes:
        for position, axis in enumerate(shape, start=rank - len(shape)):
            if axis == 1:
                continue
            if result[position] not in (1, axis):
                listed = " and ".join(
                    dict.fromkeys(format_shape(other) for other in shapes if len(other))
                )
                one_a_row = rank == 3 and any(other == (B, 1) for other in shapes)
                raise mismatch(
                    f"{listed} ({format_axis(result[position])} against {format_axis(axis)})"
                    + ("; beside heads a number for each row is Input(1, 1)" if one_a_row else "")
                )
            result[position] = axis
    return tuple(result)
