"""Follow one state through a step as an affine form.

Input: a forward Program and a state. Output: the new state, and everything else that the state
reaches, as sums of ``coefficient * basis``. A basis is the state itself, before or after the step,
a contraction of it with a weight along one axis, or 1. Coefficients are pointwise expressions of
values that the state does not reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import sympy
from sympy import Add, Basic, Expr, Mul
from sympy import S as NUMBERS

from cellgen.language.ops import Pointwise, shape_of
from cellgen.language.value import Apply, B, Value
from cellgen.program.chunks.layers import ForbiddenError
from cellgen.program.chunks.streams import ONE, Streams, moved_axes, varies
from cellgen.program.ssa import Program, Statement


@dataclass(frozen=True)
class Basis:
    """The state (before a step, or after it), or what a weight reads of it along an axis."""

    after: bool
    weight: Expr | None = None
    axis: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is the state itself."""
        return self.weight is None


Terms: TypeAlias = dict[Basis | None, Expr]
"""Coefficients by basis; None is the basis 1."""

NOT_LINEAR = "is not linear in the state"
BEFORE, AFTER = Basis(after=False), Basis(after=True)


def is_affine(expression: Expr, reached: Set[Value]) -> bool:
    """Whether a pointwise expression is affine in some values; no cancellation is looked for."""
    return _degree(expression, reached, {}) <= 1


def _degree(expression: Basic, reached: Set[Value], known: dict[int, int]) -> int:
    """0 where it reads none of the values, 1 where it is affine in them, else 2.

    What stands in many places of an expression is one object, and looked at once.
    """
    if isinstance(expression, Value):
        return int(expression in reached)
    if id(expression) not in known:
        degrees = [_degree(argument, reached, known) for argument in expression.args]
        known[id(expression)] = _degree_of(expression, degrees)
    return known[id(expression)]


def _degree_of(expression: Basic, degrees: Sequence[int]) -> int:
    highest = max(degrees, default=0)
    if highest == 0 or expression.is_Add:
        return highest
    if expression.is_Mul:
        return min(2, sum(degrees))
    if isinstance(expression, Pointwise) and expression.row.affine_in:
        bent = any(d for n, d in enumerate(degrees) if n not in expression.row.affine_in)
        return 2 if bent else highest
    return 2


def cone(program: Program, value: Value, known: Set[Value]) -> set[Value]:
    """A value and what it waits for, as far as it is not known."""
    needed = {value}
    for statement in reversed(program.statements):
        if statement.target in needed and statement.target not in known:
            needed.update(statement.operands)
    return needed


def reached_by(program: Program, values: Iterable[Value], known: Set[Value]) -> set[Value]:
    """What some values reach, themselves among it, but for what is known."""
    reached = set(values)
    for statement in program.statements:
        if statement.target not in known and reached.intersection(statement.operands):
            reached.add(statement.target)
    return reached


class AffineForms:
    """The affine forms of a state.

    ``next`` is that of the new state; ``read`` those of values that outputs or later states are
    formed from, each of contractions alone.
    """

    def __init__(
        self, program: Program, state: Value, following: Value, streams: Streams, known: Set[Value]
    ) -> None:
        self.streams = streams
        self._program = program
        self.rank = len(state.shape)
        self.next: Terms = {}
        self.read: dict[Value, Terms] = {}
        self._forms: dict[Value, Terms] = {state: {BEFORE: NUMBERS.One}}
        self._free: set[Value] = set()
        self._cone = cone(program, following, known)
        for statement in program.statements:
            if statement.target in known:
                continue
            self._follow(statement)
            if statement.target == following:
                self.next = self._forms.get(following, {None: statement.expression})
                self._forms[following] = {AFTER: NUMBERS.One}
        for result in program.results:
            if result != following and result in self._forms and result not in self._free:
                self._read_later(result, program.definitions[result])

    def _follow(self, statement: Statement) -> None:
        target = statement.target
        reached = [v for v in statement.operands if v in self._forms or v in self._free]
        if not reached:
            return
        try:
            if self._free.intersection(reached):
                raise ForbiddenError("is formed from what is not linear in the state")
            terms = self._terms_of(statement)
        except ForbiddenError as error:
            if target in self._cone:
                bent = self._bent_after(target) if statement.traits.is_reshape else None
                why = error.why if bent is None else NOT_LINEAR
                raise ForbiddenError(why, bent or statement) from None
            self._leave(statement)
            return
        self._forms[target] = terms
        is_read = not any(basis is not None and basis.is_whole for basis in terms)
        if target not in self._cone and is_read:
            self.read[target] = terms
            self._free.add(target)

    def _bent_after(self, value: Value) -> Statement | None:
        """The first statement that the new state waits for and that is not affine in a value.

        A product of a matrix begins with a reshape that no author wrote. It hides what forbids the
        form whatever way the product goes.
        """
        reached = {value}
        for statement in self._program.statements:
            if reached.isdisjoint(statement.operands) or statement.target not in self._cone:
                continue
            if statement.is_pointwise and not is_affine(statement.expression, reached):
                return statement
            reached.add(statement.target)
        return None

    def _terms_of(self, statement: Statement) -> Terms:
        if statement.is_pointwise:
            return self._pointwise(statement)
        if statement.traits.is_reshape:
            return self._reshaped(statement)
        if statement.traits.is_sum:
            return self._summed(statement, statement.operands[0])
        raise ForbiddenError("mixes units of the state")

    def _leave(self, statement: Statement) -> None:
        """End the form at a statement that is not affine, for which the new state does not wait."""
        for value in dict.fromkeys(statement.operands):
            if value in self._forms and value not in self._free:
                self._read_later(value, statement)
        self._free.add(statement.target)

    def _read_later(self, value: Value, statement: Statement) -> None:
        terms = self._forms[value]
        if any(basis is not None and basis.is_whole for basis in terms):
            raise ForbiddenError("hands the whole state on at every step", statement)
        self.read.setdefault(value, dict(terms))

    def _pointwise(self, statement: Statement) -> Terms:
        reached = [v for v in statement.operands if v in self._forms]
        expression = statement.expression
        if not is_affine(expression, set(reached)):
            raise ForbiddenError(NOT_LINEAR)
        terms: Terms = {}
        rest = expression.xreplace(dict.fromkeys(reached, NUMBERS.Zero))
        if rest != 0:
            terms[None] = rest
        for value in reached:
            slope = sympy.diff(expression, value)
            for basis, coefficient in self._forms[value].items():
                _add(terms, basis, slope * coefficient)
        return terms

    def _reshaped(self, statement: Statement) -> Terms:
        operand, target = statement.operands[0], statement.target
        terms = self._forms[operand]
        moved = moved_axes(operand.shape, target.shape)
        if moved is None or any(basis is not None and basis.is_whole for basis in terms):
            raise ForbiddenError("gives the state other axes")
        ranks = len(operand.shape), len(target.shape)
        return {basis: self.streams.view(c, moved, *ranks) for basis, c in terms.items()}

    def _summed(self, statement: Statement, operand: Value) -> Terms:
        """Sums along one axis: factors that vary along it weigh, the others stay outside."""
        target, rank = statement.target, len(operand.shape)
        pairs = zip(operand.shape, target.shape, strict=False)
        axes = [n for n, (a, b) in enumerate(pairs) if a != b]
        if len(target.shape) != rank or len(axes) != 1:
            raise ForbiddenError("is a sum of the state along several axes")
        axis, terms = axes[0], Terms()
        for basis, coefficient in self._forms[operand].items():
            if basis is not None and not basis.is_whole and basis.axis != axis:
                raise ForbiddenError("sums what was read along the other axis")
            for term in Add.make_args(sympy.expand_mul(coefficient)):
                factors = Mul.make_args(term)
                inside = Mul(*(f for f in factors if varies(f, axis, rank)))
                outside = Mul(*(f for f in factors if not varies(f, axis, rank)))
                if basis is not None and basis.is_whole:
                    _add(terms, Basis(basis.after, inside, axis), outside)
                else:
                    _add(terms, basis, outside * self._weight(inside, operand, axis))
        return terms

    def _weight(self, inside: Expr, operand: Value, axis: int) -> Expr:
        """The sum of a weight along an axis."""
        if inside == 1:
            return operand.shape[axis]
        rank, shape = len(operand.shape), shape_of(inside)
        if any(B in leaf.shape for leaf in inside.atoms(Value)):
            shape = ((ONE,) * (rank - len(shape))) + tuple(shape)
        at = axis - (rank - len(shape))
        into = (*shape[:at], ONE, *shape[at + 1 :])
        weight = self.streams.emit("inner", inside, shape)
        return self.streams.emit("sum_inner", Apply("sum_to", (weight,), into), into)


def _add(terms: Terms, basis: Basis | None, coefficient: Expr) -> None:
    total = terms.get(basis, NUMBERS.Zero) + coefficient
    if total == 0:
        terms.pop(basis, None)
    else:
        terms[basis] = total


def weights_of(terms: Iterable[Basis | None]) -> list[Basis]:
    """The bases that are contractions."""
    return [basis for basis in terms if basis is not None and not basis.is_whole]


def definitions_written(
    expression: Expr, by: Mapping[Value, Statement], where: Iterable[int], rank: int
) -> Expr:
    """Write out pointwise values that vary along all of some axes."""
    axes = tuple(where)
    while True:
        swap = {}
        for leaf in expression.atoms(Value):
            if all(varies(leaf, axis, rank) for axis in axes):
                statement = by.get(leaf)
                if statement is None or not statement.is_pointwise:
                    raise ForbiddenError(f"adds {leaf}, a matrix that is no outer product")
                swap[leaf] = statement.expression
        if not swap:
            return expression
        expression = expression.xreplace(swap)
