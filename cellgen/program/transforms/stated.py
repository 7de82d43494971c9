"""Statements of a derived program as equations of a class body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sympy import preorder_traversal

from cellgen.language.value import Apply, Value
from cellgen.program.ssa import Statement


def needed(
    statements: Sequence[Statement], results: Iterable[Value], own: set[Value]
) -> list[Statement]:
    """Statements that some results read and that the cell's equations do not state."""
    wanted, statements_read = set(results), []
    for statement in reversed(statements):
        if statement.target in wanted and statement.target not in own:
            statements_read.append(statement)
            wanted |= statement.expression.atoms(Value)
    return statements_read[::-1]


def readers_of(statements: Iterable[Statement]) -> dict[Value, list[Statement]]:
    """Statements that read each value, as often as they do."""
    readers: dict[Value, list[Statement]] = {}
    for statement in statements:
        for node in preorder_traversal(statement.expression):
            if isinstance(node, Value):
                readers.setdefault(node, []).append(statement)
    return readers


def stands_in(statement: Statement, readers: Sequence[Statement]) -> bool:
    """Whether a term may be written where it is read.

    Once, in a sum, or as a factor that is no sum, since SymPy multiplies numbers into those.
    """
    if len(readers) != 1:
        return False
    expression, reader = statement.expression, readers[0].expression
    if isinstance(reader, Apply) or reader == statement.target:
        return True
    is_term = reader.is_Add and statement.target in reader.args
    return is_term or not expression.is_Add
