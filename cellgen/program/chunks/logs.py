"""Take the logarithm of a decay by rewriting: ``log exp(u) = u``, ``log sigmoid(x)``, and so on.

Input: a positive expression. Output: its logarithm, in which an exponential that the equations form
is undone and none is formed again. A weight or an input that is a decay by itself is left with a
``log``; calls check that it is not negative.
"""

from __future__ import annotations

import sympy
from sympy import Add, Expr
from sympy import S as NUMBERS

from cellgen.language.ops import log
from cellgen.language.ops.logarithms import undone, undone_rest
from cellgen.language.value import Value
from cellgen.program.chunks.bounds import interval
from cellgen.program.chunks.layers import ForbiddenError
from cellgen.program.chunks.streams import Streams, moved_axes
from cellgen.program.ssa import Statement


class Logarithms:
    """Logarithms of the decays of one memory; ``positive`` are values that have to be."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.positive: dict[Value, None] = {}

    def of(self, expression: Expr) -> Expr:
        """The logarithm of an expression."""
        if expression.is_number:
            if not expression > 0:
                raise ForbiddenError(f"has the decay {expression}")
            return sympy.log(expression)
        if expression.is_Mul:
            return Add(*(self.of(factor) for factor in expression.args))
        if expression.is_Pow and expression.exp.is_number:
            return expression.exp * self.of(expression.base)
        written = self._of_function(expression)
        if written is None and isinstance(expression, Value):
            written = self._of_value(expression)
        return self._left_over(expression) if written is None else written

    def _of_function(self, expression: Expr) -> Expr | None:
        """Of exp(u): u; of sigmoid(x): log_sigmoid(x); of 1 - sigmoid(x): log_sigmoid(-x)."""
        written = undone(expression)
        if written is not None:
            return written
        is_rest = expression.is_Add and len(expression.args) == 2
        if is_rest and NUMBERS.One in expression.args:
            return self._of_rest(1 - expression)
        return None

    def _of_rest(self, gate: Expr) -> Expr | None:
        """Of 1 - gate, where that is a sigmoid."""
        statement = self._statement(gate)
        if statement is not None and statement.is_pointwise:
            return self._of_rest(statement.expression)
        if statement is not None and statement.traits.is_reshape:
            rest = self._of_rest(statement.operands[0])
            return None if rest is None else self._viewed(rest, statement)
        return undone_rest(gate)

    def _statement(self, expression: Expr) -> Statement | None:
        is_value = isinstance(expression, Value)
        return self.streams.definitions.get(expression) if is_value else None

    def _of_value(self, value: Value) -> Expr | None:
        statement = self._statement(value)
        if statement is None:
            self.positive[value] = None
            return log(value)
        if statement.is_pointwise:
            return self.of(statement.expression)
        if statement.traits.is_reshape:
            return self._viewed(self.of(statement.operands[0]), statement)
        return None

    def _viewed(self, logarithm: Expr, statement: Statement) -> Expr:
        """A logarithm along the axes of a view of what it is of."""
        origin, value = statement.operands[0], statement.target
        moved = moved_axes(origin.shape, value.shape)
        if moved is None:
            raise ForbiddenError(f"decays by {value}, whose axes are others", statement)
        return self.streams.view(logarithm, moved, len(origin.shape), len(value.shape))

    def _left_over(self, expression: Expr) -> Expr:
        if interval(expression, self.streams.definitions).low < 0:
            raise ForbiddenError(f"has the decay {expression}, which may be negative")
        return log(expression)
