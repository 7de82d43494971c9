"""Expressions over several operators as statements: one operator, or pointwise work, in each.

A row of the operator table may write its adjoint and its tangent as any expression of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from sympy import Expr

from cellgen.language.notation import order_key
from cellgen.language.value import Apply, Value

Name: TypeAlias = Callable[[Expr], Value]
"""Gives an operator of values, or pointwise work on values, a statement of its own."""


def unnested(expression: Expr, name: Name) -> Expr:
    """Return one operator of values, or pointwise work on values; ``name`` takes what is inside."""
    if isinstance(expression, Value) or not expression.args:
        return expression
    if isinstance(expression, Apply):
        operands = [_named(operand, name) for operand in expression.operands]
        return Apply(expression.op, operands, expression.attributes)
    inner = {node: _named(node, name) for node in _outermost(expression)}
    return expression.xreplace(inner) if inner else expression


def _named(expression: Expr, name: Name) -> Value:
    return expression if isinstance(expression, Value) else name(unnested(expression, name))


def _outermost(expression: Expr) -> Iterator[Apply]:
    """The operators of a pointwise expression that stand in no other one."""
    if isinstance(expression, Apply):
        yield expression
        return
    for argument in sorted(expression.args, key=order_key) if expression.has(Apply) else ():
        yield from _outermost(argument)
