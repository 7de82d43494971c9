"""Rewrites that leave out statements: equal ones, copies, and what no result needs."""

from __future__ import annotations

from sympy import Expr

from cellgen.language.value import Value
from cellgen.program.ssa import Program, Statement


def merge_equal(program: Program) -> Program:
    """Compute equal right-hand sides once; the first name stays."""
    known: dict[Expr, Value] = {}
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        same = known.get(expression)
        is_result = statement.target in program.results
        if same is not None and same.shape == statement.target.shape and not is_result:
            swap[statement.target] = same
            continue
        if expression.args:
            known.setdefault(expression, statement.target)
        statements.append(Statement(statement.target, expression))
    return program.with_statements(statements)


def drop_copies(program: Program) -> Program:
    """Read the original instead of a copy (``a = b``), except where the copy is a result."""
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        is_copy = isinstance(expression, Value) and expression.shape == statement.target.shape
        if is_copy and statement.target not in program.results:
            swap[statement.target] = expression
            continue
        statements.append(Statement(statement.target, expression))
    return program.with_statements(statements)


def drop_dead(program: Program) -> Program:
    """Keep only what a result needs."""
    needed = set(program.results)
    kept = []
    for statement in reversed(program.statements):
        if statement.target in needed:
            kept.append(statement)
            needed.update(statement.operands)
    return program.with_statements(reversed(kept))
