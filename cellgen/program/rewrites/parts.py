"""Rewrites of parts: a part of a pointwise value, and of a concatenation."""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import part
from cellgen.language.value import Apply, Role, Value
from cellgen.program.rewrites.unused import drop_copies, drop_dead
from cellgen.program.ssa import Program, Statement


def narrow_parts(program: Program) -> Program:
    """A part of a pointwise value is the pointwise value of the parts.

    A wide value that is read in parts only is never formed; all its gates are then computed side by
    side, one unit at a time. One that is needed whole as well is joined from the parts.
    """
    narrowing = _Narrowing(program)
    return drop_dead(narrowing.run())


class _Narrowing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = Names(str(value.name) for value in program.values)
        self.parts: dict[tuple[Value, tuple[Expr, ...]], Value] = {}
        self.statements: list[Statement] = []
        self.uses = program.uses

    def run(self) -> Program:
        for statement in self.program.statements:
            if statement.traits.is_part:
                source = statement.expression.operands[0]
                known = self.parts.get((source, statement.expression.attributes))
                if known == statement.target:
                    continue
                if known is not None:
                    self.statements.append(Statement(statement.target, known))
                    continue
                self.parts[source, statement.expression.attributes] = statement.target
            slices = self._slices(statement)
            if not slices:
                self.statements.append(statement)
                continue
            pieces = [self._piece(statement, node) for node in slices]
            axis = slices[0].attributes[0]
            self.statements.append(Statement(statement.target, Apply("concat", pieces, (axis,))))
        return drop_copies(self.program.with_statements(self.statements))

    def _slices(self, statement: Statement) -> list[Apply]:
        """The parts that are read of a pointwise value, if together they are the whole of it."""
        if not statement.is_pointwise:
            return []
        readers = [s for s in self.uses[statement.target] if s.traits.is_part]
        nodes = sorted(
            {s.expression for s in readers}, key=lambda n: (str(n.attributes[0]), n.sort_key())
        )
        axes = {node.attributes[0] for node in nodes}
        last = len(statement.target.shape) - 1
        if axes != {Integer(last)}:
            return []
        ordered, position = [], Integer(0)
        while nodes:
            part = next((n for n in nodes if n.attributes[1] == position), None)
            if part is None:
                return []
            nodes.remove(part)
            ordered.append(part)
            position = position + part.attributes[2]
        return ordered if position == statement.target.shape[-1] else []

    def _piece(self, statement: Statement, node: Apply) -> Value:
        """The pointwise statement of one part, its operands narrowed the same way."""
        swap = {
            operand: self._operand(operand, node, statement.target)
            for operand in statement.operands
        }
        expression = statement.expression.xreplace(swap)
        target = next(s.target for s in self.uses[statement.target] if s.expression == node)
        self.statements.append(Statement(target, expression))
        self.parts[statement.target, node.attributes] = target
        return target

    def _operand(self, operand: Value, node: Apply, whole: Value) -> Value:
        if not operand.shape or operand.shape[-1] != whole.shape[-1]:
            return operand
        _, start, size = node.attributes
        axis = len(operand.shape) - 1
        attributes = (Integer(axis), start, size)
        known = self.parts.get((operand, attributes))
        if known is None:
            known = self._named(operand, node)
            self.statements.append(Statement(known, part(operand, axis, start, size)))
            self.parts[operand, attributes] = known
        return known

    def _named(self, source: Value, node: Apply) -> Value:
        _, start, size = node.attributes
        index = start / size
        suffix = str(index) if index.is_Integer else str(len(self.parts))
        role = source.role if source.role is Role.ADJOINT else Role.TEMPORARY
        shape = (*source.shape[:-1], size)
        return Value(
            self.names.fresh(f"{source.name}_{suffix}"), shape, role, source.owner, source.order
        )


def unwrap_parts(program: Program) -> Program:
    """A part of a concatenation along the same cuts is the operand itself."""
    definitions = program.definitions
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        if statement.traits.is_part:
            operand = _concat_operand(expression, definitions.get(expression.operands[0]))
            if operand is not None and statement.target in program.results:
                expression = operand.xreplace(swap)
            elif operand is not None:
                swap[statement.target] = operand.xreplace(swap)
                continue
        statements.append(Statement(statement.target, expression))
    return drop_dead(program.with_statements(statements))


def _concat_operand(node: Apply, source: Statement | None) -> Value | None:
    if source is None or not source.traits.is_join:
        return None
    axis, start, size = node.attributes
    if source.expression.attributes[0] != axis:
        return None
    position: Expr = Integer(0)
    for operand in source.operands:
        length = operand.shape[int(axis)]
        if position == start and length == size:
            return operand
        position = position + length
    return None
