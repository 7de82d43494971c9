"""Rewrites that copy: to all units of all heads, and to a place in memory."""

from __future__ import annotations

from cellgen.language.names import Names
from cellgen.language.ops import Traits
from cellgen.language.value import Apply, Value
from cellgen.program.ssa import Program, Statement


def materialize(program: Program) -> Program:
    """Copy what has to lie in memory at a place of its own.

    An optional argument that an operator reads (it may be missing), a result that is a part or the
    transpose of another value, a transpose that an operator reads, and an operand of a
    concatenation that already lives elsewhere: an argument, a result, a part, one used twice.
    """
    names = Names(str(value.name) for value in program.values)
    definitions = program.definitions
    placed: set[Value] = set()
    present: dict[Value, Value] = {}
    statements: list[Statement] = []

    def copy_of(value: Value) -> Value:
        name = names.fresh(f"{value.name}_copy")
        copied = Value(name, value.shape, value.role, value.owner, value.order)
        statements.append(Statement(copied, value))
        return copied

    def in_place(value: Value, reader: Traits) -> Value:
        source = definitions.get(value)
        is_transposed = source is not None and source.traits.is_transpose
        if not reader.is_join:
            if value not in program.optional and not is_transposed:
                return value
            if value not in present:
                present[value] = copy_of(value)
            return present[value]
        fixed = source is None or source.traits.is_view or value in program.results
        if fixed or is_transposed or value in placed:
            return copy_of(value)
        placed.add(value)
        return value

    for statement in program.statements:
        node = statement.expression
        if isinstance(node, Apply):
            operands = [in_place(operand, statement.traits) for operand in node.operands]
            node = Apply(node.op, operands, node.attributes)
            if statement.traits.is_view and statement.target in program.results:
                like = statement.target
                name = names.fresh(f"{like.name}_view")
                view = Value(name, like.shape, like.role, like.owner, like.order)
                statements.append(Statement(view, node))
                node = view
        statements.append(Statement(statement.target, node))
    return program.with_statements(statements)
