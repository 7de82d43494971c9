"""How many elements arrays and their rows have."""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.language.value import Shape, Value


def length(shape: Shape) -> Expr:
    """How many elements an array of a shape has."""
    product: Expr = Integer(1)
    for axis in shape:
        product = product * axis
    return product


def row_length(value: Value) -> Expr:
    """How many elements one row of a batched value has."""
    return length(value.shape[1:])


def total(lengths: list[Expr]) -> Expr | None:
    """The sum of some lengths; None where there is none."""
    return sum(lengths[1:], start=lengths[0]) if lengths else None
