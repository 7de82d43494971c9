"""Vectors and matrices of a row: axes put in, products for each row and head.

A value of one axis in a row is a vector, one of two a matrix; axes before them are heads.
"""

from __future__ import annotations

import sympy
from sympy import Expr, Integer, sympify

from cellgen.accept import is_whole, quoted
from cellgen.errors import DeclarationError
from cellgen.language.lines import located
from cellgen.language.ops.operator import broadcast, mismatch
from cellgen.language.ops.table import operator_of, shape_of
from cellgen.language.value import Apply, B, Shape, as_operand, format_axis, format_shape

ONE = Integer(1)


@located
def expand_dims(a: Expr, axis: int) -> Apply:
    """Put in an axis of length 1: (B, K) with ``axis=-1`` is (B, K, 1), with ``axis=-2`` (B, 1, K).

    The first axis, of rows, stays where it is.
    """
    a = as_operand(a)
    shape = shape_of(a)
    is_place = is_whole(axis, -len(shape), len(shape))
    place = (axis if axis >= 0 else len(shape) + 1 + axis) if is_place else 0
    if len(shape) < 2 or not 0 < place <= len(shape):
        raise DeclarationError(
            f"expand_dims({format_shape(shape)}, axis={quoted(axis)}): an axis is put "
            f"in behind the first one of a value with rows; declare a weight with its axis of "
            f"length 1",
            code="declaration.axis",
        )
    return as_shape(a, (*shape[:place], ONE, *shape[place:]))


@located
def heads(a: Expr, count: Expr | int) -> Apply:
    """Cut the last axis into so many heads: (B, N * D) is (B, N, D).

    Raises:
        DeclarationError: an axis that is no multiple of the count.
    """
    a, count = as_operand(a), sympify(count)
    shape = shape_of(a)
    is_count = isinstance(count, Integer) and count > 0
    if not is_count and (not isinstance(count, Expr) or count.is_number):
        raise mismatch(f"{count} heads of {format_shape(shape)}: give a number from 1, or Dim('N')")
    units = sympy.expand(shape[-1] / count) if shape else ONE
    if len(shape) < 2 or units.as_numer_denom()[1] != 1:
        raise mismatch(
            f"{format_axis(count)} heads of {format_shape(shape)}, whose last axis is no multiple"
        )
    return as_shape(a, (*shape[:-1], count, units))


@located
def flatten(a: Expr) -> Apply:
    """Lay all axes of a row side by side: (B, N, D) is (B, N * D)."""
    shape = shape_of(as_operand(a))
    if len(shape) < 2:
        raise mismatch(f"flatten takes a value with rows, found {format_shape(shape)}")
    return as_shape(a, (shape[0], sympy.expand(sympy.Mul(*shape[1:]))))


def as_shape(a: Expr, shape: Shape) -> Apply:
    """The same elements of each row along other axes."""
    node = Apply("reshape", (as_operand(a),), shape)
    shape_of(node)
    return node


@located
def outer(a: Expr, b: Expr) -> Expr:
    """Every product of two vectors of a row: (B, D) and (B, K) give (B, D, K), head by head."""
    a, b = as_operand(a), as_operand(b)
    shapes = shape_of(a), shape_of(b)
    if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 2:
        listed = " and ".join(map(format_shape, shapes))
        raise mismatch(f"outer of {listed}: both need a row and equally many axes, (B, D), (B, K)")
    return expand_dims(a, -1) * expand_dims(b, -2)


def product_of_rows(node: Apply) -> Apply | None:
    """``a @ b`` of matrices of each row, as what it is made of: products, and a sum along an axis.

    A matrix times a vector contracts the matrix's last axis, a vector times a matrix the one before
    it; two matrices are multiplied as such, and so is a matrix of each row by a weight. None of
    any other operation.
    """
    if not operator_of(node).is_matmul:
        return None
    a, b = node.operands
    first, second = shape_of(a), shape_of(b)
    if first[:1] != (B,) or not (B in second or len(first) == len(second) + 1 > 2):
        return None
    shape = shape_of(node)
    if B not in second:  # matrix, weight; both of each head where there are heads
        by = b if len(second) == 2 else as_shape(b, (*second[:-2], ONE, *second[-2:]))
        terms, axis = expand_dims(a, -1) * by, -2
    elif len(first) > len(second):  # matrix, vector
        terms = a * expand_dims(b, -2)
        axis = -1
    elif len(first) < len(second):  # vector, matrix
        terms, axis = expand_dims(a, -1) * b, -2
    else:
        terms, axis = expand_dims(a, -1) * expand_dims(b, -3), -2
    wide = list(broadcast((shape_of(terms),)))
    wide[axis] = ONE
    return as_shape(Apply("sum_to", (terms,), wide), shape)
