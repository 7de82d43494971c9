"""Where the values of a function live: buffers of their own, or views of another's.

Input: a ``Program``. Output: a buffer for each value that has one, and a view for every value.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer

from cellgen.errors import DerivationError
from cellgen.language.value import Role, Value
from cellgen.program.ssa import Program, Statement
from cellgen.schedule.schedule import (
    Buffer,
    BufferKind,
    View,
)


class Placement:
    """Buffers and views; parts, operands of concatenations and growing sums lie in another's."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.definitions = program.definitions
        self.buffers: dict[Value, Buffer] = {}
        self.views: dict[Value, View] = {}
        self._own_buffers()
        self._place()

    def _own_buffers(self) -> None:
        results = set(self.program.results)
        for value in self.program.arguments:
            kind = BufferKind.OPTIONAL if value in self.program.optional else BufferKind.ARGUMENT
            self._buffer(value, BufferKind.SCALAR if value.role is Role.SCALAR else kind)
        for value in self.program.results:
            self._buffer(value, BufferKind.RESULT)
        for statement in self.program.statements:
            if statement.target not in results and not statement.traits.is_view:
                self._buffer(statement.target, BufferKind.WORKSPACE)

    def _buffer(self, value: Value, kind: BufferKind) -> None:
        self.buffers[value] = Buffer(value, kind)
        shape = self.buffers[value].shape
        self.views[value] = View(self.buffers[value], tuple(Integer(0) for _ in shape), shape)

    def _place(self) -> None:
        """Give parts, operands of concatenations and growing sums their place."""
        for statement in reversed(self.program.statements):
            if statement.traits.is_join:
                self._place_concat(statement)
            elif statement.traits.is_onto:
                self._place_seed(statement)
        for statement in self.program.statements:
            if statement.traits.is_part:
                axis, start, size = statement.expression.attributes
                source = self.views[statement.expression.operands[0]]
                self.views[statement.target] = source.part(int(axis), start, size)
            elif statement.traits.is_transpose:
                source = self.views[statement.expression.operands[0]]
                self.views[statement.target] = replace(source, transposed=True)
            elif statement.traits.is_reshape:
                self.views[statement.target] = self.views[statement.expression.operands[0]]

    def _place_concat(self, statement: Statement) -> None:
        whole = self.views[statement.target]
        axis, position = int(statement.expression.attributes[0]), Integer(0)
        for piece in statement.expression.operands:
            self._require_free(piece, statement)
            size = piece.shape[axis]
            self.views[piece] = whole.part(axis, position, size)
            position = position + size

    def _require_free(self, value: Value, reader: Statement) -> None:
        """A value may live inside another's buffer if it has no place yet.

        ``materialize`` sees to that.
        """
        source = self.definitions.get(value)
        fixed = source is None or source.traits.is_view or value in self.program.results
        if fixed or self.views[value].buffer.value != value:
            raise DerivationError(
                f"{self.program.cell}.{self.program.function}: {value} has a place already and "
                f"cannot be formed inside `{reader}`",
                code="schedule.place",
            )

    def _place_seed(self, statement: Statement) -> None:
        seed = statement.expression.operands[0]
        self._require_free(seed, statement)
        self.views[seed] = self.views[statement.target]
