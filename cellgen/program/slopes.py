"""Differentiate a pointwise expression by a value, as SymPy's ``diff`` does, without its questions.

SymPy asks of every node, at every derivative, whether it is commutative, zero or a symbol that may
be differentiated by. Values are commutative and nothing else is known of them. What this gives is
the expression that ``diff`` gives, argument by argument; so generated sources are the same.
"""

from __future__ import annotations

import sympy
from sympy import Expr, Integer

from cellgen.language.ops import Pointwise
from cellgen.language.value import Value


def derivative(expression: Expr, by: Value) -> Expr:
    """Differentiate once; 0 where the value does not occur."""
    known: dict[Expr, Expr] = {by: Integer(1)}

    def slope(node: Expr) -> Expr:
        derivative = known.get(node)
        if derivative is None:
            derivative = known[node] = _of(node)
        return derivative

    def _of(node: Expr) -> Expr:
        slopes = [slope(argument) for argument in node.args]
        moving = [index for index, one in enumerate(slopes) if one != 0]
        if not moving:
            return Integer(0)
        return _chained(node, by, slopes, moving)

    return slope(expression)


def _chained(node: Expr, by: Value, slopes: list[Expr], moving: list[int]) -> Expr:
    """The derivative of a node from those of its arguments, of which some are not 0."""
    args = node.args
    if node.is_Add:
        return node.func(*slopes)
    if node.is_Mul:
        return sympy.Add(*(sympy.Mul(*args[:i], slopes[i], *args[i + 1 :]) for i in moving))
    if node.is_Pow and moving == [0]:
        return node * (slopes[0] * args[1] / args[0])
    if isinstance(node, Pointwise) and not node.row.is_choice:
        return sympy.Add(*(node.fdiff(i + 1) * slopes[i] for i in moving))
    slope: Expr = node.diff(by)  # a choice stays one
    return slope
