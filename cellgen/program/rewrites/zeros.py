"""What stands still: products with 0 and terms that are 0 are not computed."""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.language.ops import zeros_like
from cellgen.language.value import Value
from cellgen.program.ssa import Program, Statement


def drop_zeros(program: Program) -> Program:
    """Leave out what ``zeros_like`` makes 0, and what that makes 0 in turn.

    A factor of 0 takes its product with it whatever the other factor is, as derivatives do whose
    branch is not taken. A result that is 0 stays, and so does a 0 beside others that are joined.
    """
    if not any(statement.expression.has(zeros_like) for statement in program.statements):
        return program
    zeros: dict[Expr, Expr] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression
        if statement.is_pointwise:
            nodes = {node: Integer(0) for node in expression.atoms(zeros_like)}
            expression = expression.xreplace({**nodes, **zeros})
        elif _vanishes(statement, zeros):
            expression = Integer(0)
        if expression == 0:
            zeros[statement.target] = Integer(0)
        statements.append(Statement(statement.target, expression))
    return program.with_statements(statements)


def _vanishes(statement: Statement, zeros: dict[Expr, Expr]) -> bool:
    """Whether an operator gives 0: a product with a factor that is 0, or a linear one of zeros."""
    operands: tuple[Value, ...] = statement.operands
    if statement.traits.is_product:
        return any(operand in zeros for operand in operands)
    return statement.traits.is_linear and all(operand in zeros for operand in operands)
