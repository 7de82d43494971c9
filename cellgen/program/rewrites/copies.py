"""Rewrites that copy: to all units of all heads, and to a place in memory."""

from __future__ import annotations

from sympy import Integer

from cellgen.language.names import Names
from cellgen.language.ops import Traits
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.ssa import Program, Statement


def spread_heads(program: Program) -> Program:
    """Copy what differs between heads or units alone to all units of all heads.

    A loop runs over rows and over the units of all heads side by side; what has one of those two
    axes only is read there by way of a copy that has both.
    """
    names = Names(str(value.name) for value in program.values)
    known: dict[tuple[Value, Shape], Value] = {}
    statements: list[Statement] = []
    for statement in program.statements:
        swap: dict[Value, Value] = {}
        shape = statement.target.shape
        if statement.is_pointwise and len(shape) == 3:
            for operand in statement.operands:
                wide = shape if len(operand.shape) == 3 else shape[1:]
                if not _differs_by_one(operand.shape, shape):
                    continue
                if (operand, wide) not in known:
                    name = names.fresh(f"{operand.name}_spread")
                    role = operand.role if operand.role is Role.ADJOINT else Role.TEMPORARY
                    copied = Value(name, wide, role, operand.owner, operand.order)
                    known[operand, wide] = copied
                    statements.append(Statement(copied, Apply("spread", (operand,), wide)))
                swap[operand] = known[operand, wide]
        statements.append(Statement(statement.target, statement.expression.xreplace(swap)))
    return program.with_statements(statements)


def _differs_by_one(shape: Shape, space: Shape) -> bool:
    """Whether a shape has one of the axes (heads, units) of a space, and not the other."""
    own = (Integer(1),) * (3 - len(shape)) + tuple(shape)
    is_whole = space[1] != 1 and space[2] != 1
    return is_whole and bool((own[1] == 1) != (own[2] == 1))


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
        is_turned = source is not None and source.traits.is_transpose
        if not reader.is_join:
            if value not in program.optional and not is_turned:
                return value
            if value not in present:
                present[value] = copy_of(value)
            return present[value]
        fixed = source is None or source.traits.is_part or value in program.results
        if fixed or is_turned or value in placed:
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
