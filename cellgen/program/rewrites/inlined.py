"""Rewrites that write a pointwise value into the one statement that reads it."""

from __future__ import annotations

from collections.abc import Callable

from sympy import Expr

from cellgen.language.ops import shape_of
from cellgen.language.value import Role, Value
from cellgen.program.ssa import Program, Statement


def inline_sums(program: Program) -> Program:
    """Write a temporary sum into the one sum of which it is a term: all terms stand together.

    Only where it is a term as it stands: SymPy would multiply a number into every term, and
    products that are added to each other would no longer be found as such.
    """
    return _inline(
        program,
        lambda s: s.is_pointwise and bool(s.expression.is_Add),
        lambda target, reader: bool(reader.is_Add) and target in reader.args,
    )


def inline_temporaries(program: Program) -> Program:
    """Write an unnamed pointwise intermediate back into the one statement that reads it."""
    return _inline(program, lambda s: s.is_pointwise)


def _inline(
    program: Program,
    accept: Callable[[Statement], bool],
    into: Callable[[Value, Expr], bool] = lambda target, reader: True,
) -> Program:
    uses = program.uses
    swap: dict[Value, Expr] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        target = statement.target
        readers = uses[target]
        single = (
            target.role is Role.TEMPORARY
            and target not in program.results
            and len(readers) == 1
            and readers[0].is_pointwise
            and _occurrences(readers[0].expression, target) == 1
            and shape_of(expression) == target.shape
            and target.is_batched == readers[0].target.is_batched
            and (len(target.shape) < 3 or target.shape == readers[0].target.shape)
        )
        if single and accept(statement) and into(target, readers[0].expression):
            swap[target] = expression
        else:
            statements.append(Statement(target, expression))
    return program.with_statements(statements)


def _occurrences(expression: Expr, value: Value) -> int:
    if expression == value:
        return 1
    return sum(_occurrences(argument, value) for argument in expression.args)
