"""Add statements beside those of a step: streams, and views of what they read.

Input: the forward Program of a step. Output: statements in front of which nothing has to stand but
what they read; ``in_order`` sorts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.value import Apply, B, Role, Shape, Value
from cellgen.program.chunks.layers import ForbiddenError
from cellgen.program.ssa import Program, Statement

ONE = Integer(1)


def varies(expression: Expr, axis: int, rank: int) -> bool:
    """Whether an expression in ``rank`` axes varies along one of them, counted from the first."""
    for leaf in expression.atoms(Value):
        at = axis - (rank - len(leaf.shape))
        if at >= 0 and leaf.shape[at] != 1:
            return True
    return False


def moved_axes(old: Shape, new: Shape) -> Mapping[int, int] | None:
    """Where axes of a value lie in another shape of it, where only axes of 1 come and go."""
    before, after = ([n for n, axis in enumerate(shape) if axis != 1] for shape in (old, new))
    if [old[n] for n in before] != [new[n] for n in after]:
        return None
    return dict(zip(before, after, strict=True))


class Streams:
    """Statements that are added to those of a step."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.added: list[Statement] = []
        self.definitions = dict(program.definitions)
        self._names = Names(str(value.name) for value in program.values)
        self._order = 1 + max((value.order for value in program.values), default=0)
        self._views: dict[tuple[Value, Shape], Value] = {}

    def new(self, name: str, shape: Shape) -> Value:
        """A value that nothing defines yet."""
        self._order += 1
        return Value(self._names.fresh(name), shape, Role.TEMPORARY, "", self._order)

    def emit(self, name: str, expression: Expr, shape: Shape) -> Value:
        """Define a value."""
        target = self.new(name, shape)
        statement = Statement(target, expression)
        self.added.append(statement)
        self.definitions[target] = statement
        return target

    def view(self, expression: Expr, moved: Mapping[int, int], rank: int, into: int) -> Expr:
        """Give an expression other axes, leaf by leaf: pointwise work commutes with views."""
        swap = {}
        for leaf in sorted(expression.atoms(Value), key=lambda v: (v.order, str(v))):
            shape = _moved_shape(leaf, moved, rank, into)
            if shape != leaf.shape and leaf.shape:
                swap[leaf] = self._viewed(leaf, shape)
        return expression.xreplace(swap)

    def _viewed(self, leaf: Value, shape: Shape) -> Value:
        statement = self.definitions.get(leaf)
        if statement is not None and statement.traits.is_reshape:
            origin = statement.operands[0]
            return origin if origin.shape == shape else self._viewed(origin, shape)
        key = (leaf, shape)
        if key not in self._views:
            self._views[key] = self._known_view(leaf, shape) or self._new_view(leaf, shape)
        return self._views[key]

    def _known_view(self, leaf: Value, shape: Shape) -> Value | None:
        for statement in self.program.statements:
            is_view = statement.traits.is_reshape and statement.operands[0] == leaf
            if is_view and statement.target.shape == shape:
                return statement.target
        return None

    def _new_view(self, leaf: Value, shape: Shape) -> Value:
        if len(shape) < 2 or len(leaf.shape) < 2 or shape[0] != leaf.shape[0]:
            raise ForbiddenError(f"reads {leaf} along axes that it does not have")
        return self.emit(f"reshaped_{leaf.name}", Apply("reshape", (leaf,), shape), shape)

    def looked_through(self, expression: Expr) -> Expr:
        """Write an expression of the values that its views are of: equal streams become equal."""
        while True:
            swap = {
                leaf: statement.operands[0]
                for leaf in expression.atoms(Value)
                if (statement := self.definitions.get(leaf)) is not None
                and statement.traits.is_reshape
            }
            if not swap:
                return expression
            expression = expression.xreplace(swap)


def _moved_shape(leaf: Value, moved: Mapping[int, int], rank: int, into: int) -> Shape:
    offset = rank - len(leaf.shape)
    sized = {offset + n: axis for n, axis in enumerate(leaf.shape) if axis != 1}
    if any(n not in moved for n in sized):
        raise ForbiddenError(f"reads {leaf} along an axis that a reshape takes away")
    shape: list[Expr] = [ONE] * into
    for n, axis in sized.items():
        shape[moved[n]] = axis
    if B not in leaf.shape:  # of a weight: no more axes in front than it has
        if not sized:
            return (ONE,) * max(1, len(leaf.shape))
        while shape[0] == 1 and len(shape) > len(leaf.shape):
            shape.pop(0)
    return tuple(shape)


def in_order(statements: Iterable[Statement], arguments: Sequence[Value]) -> tuple[Statement, ...]:
    """Statements, each behind what it reads; those that read what is nowhere are left out."""
    known, pending, ordered = set(arguments), list(statements), list[Statement]()
    while pending:
        waiting = []
        for statement in pending:
            if all(value in known for value in statement.operands):
                ordered.append(statement)
                known.add(statement.target)
            else:
                waiting.append(statement)
        if len(waiting) == len(pending):
            break
        pending = waiting
    return tuple(ordered)
