"""Bound values by interval arithmetic over the equations that form them.

Input: an expression and the statements of a program. Output: an interval that holds whatever finite
numbers the arguments are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sympy import Expr

from cellgen.language.ops import Pointwise
from cellgen.language.ops.intervals import ANY, Interval, bound_of
from cellgen.language.value import Value
from cellgen.program.ssa import Statement

DEPTH = 64
"""Statements that are looked through; beyond them nothing is claimed."""


def interval(expression: Expr, by: Mapping[Value, Statement], depth: int = 0) -> Interval:
    """Bound an expression, from the functions that form it."""
    if expression.is_number:
        number = float(expression)
        exact = expression.is_Integer and abs(number) < 2**53
        return Interval(number, number) if exact else Interval(number, number).outward
    if depth > DEPTH:
        return ANY
    if isinstance(expression, Value):
        return _of_value(expression, by, depth)
    if expression.is_Pow:
        is_square = expression.exp.is_Integer and int(expression.exp) % 2 == 0
        return Interval(0.0, math.inf) if is_square else ANY
    of = [interval(argument, by, depth + 1) for argument in expression.args]
    return _of_node(expression, of)


def _of_value(value: Value, by: Mapping[Value, Statement], depth: int) -> Interval:
    statement = by.get(value)
    if statement is None:
        return ANY
    if statement.is_pointwise:
        return interval(statement.expression, by, depth + 1)
    is_view = statement.traits.is_reshape or statement.traits.is_part
    return interval(statement.operands[0], by, depth + 1) if is_view else ANY


def _of_node(expression: Expr, of: Sequence[Interval]) -> Interval:
    if not (expression.is_Add or expression.is_Mul):
        return bound_of(expression, of) if isinstance(expression, Pointwise) else ANY
    total = of[0]
    for one in of[1:]:
        total = total + one if expression.is_Add else total * one
    return ANY if math.isnan(total.low) or math.isnan(total.high) else total
