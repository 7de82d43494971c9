"""Derive the adjoint of a program: its vector-Jacobian product.

Input and output: a ``Program``, so that second derivatives are compositions. Operators are
differentiated by their row in the table, whose adjoint may be over several operators, pointwise
expressions by ``branches``; results are then written through values that are already there
(1 - tanh(c_bar)**2 becomes 1 - c**2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import sympy
from sympy import Expr, Integer

from cellgen.errors import DerivationError
from cellgen.language.names import Names
from cellgen.language.ops import broadcast, operator_of, shape_of
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.branches import Branches
from cellgen.program.derive.nested import unnested
from cellgen.program.derive.sums import Summing
from cellgen.program.ssa import Program, Statement

ADJOINT_ORDER = -1_000_000
"""Adjoints print before the values they multiply: d_h * (1 - u)."""


@dataclass
class _Contributions:
    """What flows back into one value: pointwise or operator terms, and parts of it."""

    terms: list[Expr] = field(default_factory=list)
    parts: list[tuple[Expr, Expr, Expr, Value]] = field(default_factory=list)


def adjoint(
    program: Program, upstream: Iterable[Value], wanted: Iterable[Value]
) -> tuple[Program, Mapping[Value, Value]]:
    """Derive the vector-Jacobian product of a program.

    The result holds the program's own statements and then the adjoint ones; its results are the
    gradients of ``wanted``, given optional upstream gradients ``d_<name>`` of ``upstream``. The
    mapping tells the adjoint of every value that has one. ``restrict`` makes functions of it.

    Raises:
        DerivationError: an operator without an adjoint.
    """
    reverse = _Reverse(program, tuple(upstream), tuple(wanted))
    return reverse.run()


class _Reverse:
    def __init__(
        self, program: Program, upstream: Sequence[Value], wanted: Sequence[Value]
    ) -> None:
        self.program = program
        self.wanted = wanted
        self.names = Names(str(value.name) for value in program.values)
        self.own = _own_names(self.names, (*upstream, *wanted))
        self.order = ADJOINT_ORDER + len(program.values)
        self.statements: list[Statement] = []
        self.branches = Branches(program.statements)
        self.received: dict[Value, _Contributions] = {}
        self.adjoints: dict[Value, Value] = {}
        self.upstream = {v: self._new(self.own[v], v.shape) for v in upstream}
        self.active = _active(program, wanted)
        # Through outputs: the forward value stands for its own right-hand side.
        self.through = {
            s.expression: s.target
            for s in reversed(program.statements)
            if s.is_pointwise and s.expression.args
        }
        # What stands inside adjoints of operators.
        self.inner: dict[Expr, Value] = {}
        # Adjoints that are the same for all units, as one number a row.
        self.narrow: dict[Value, Value] = {}
        self.sums = {
            (s.operands[0], s.target.shape): s.target for s in program.statements if s.traits.is_sum
        }

    def run(self) -> tuple[Program, Mapping[Value, Value]]:
        for value in self.program.values:
            self.received[value] = _Contributions()
        for statement in reversed(self.program.statements):
            self._finish(statement.target)
            if statement.target in self.adjoints:
                self._propagate(statement, self.adjoints[statement.target])
        for argument in reversed(self.program.arguments):
            self._finish(argument)
        results = self._results()
        upstream = tuple(self.upstream.values())
        full = Program(
            self.program.cell,
            f"{self.program.function}_adjoint",
            (*self.program.arguments, *upstream),
            (*self.program.statements, *self.statements),
            results,
            (*self.program.optional, *upstream),
        )
        full.verify()
        return full, dict(self.adjoints)

    def _new(self, name: str, shape: Shape) -> Value:
        self.order += 1
        return Value(name, shape, Role.ADJOINT, "", self.order)

    def _emit(self, name: str, shape: Shape, expression: Expr, is_own: bool = False) -> Value:
        target = self._new(name if is_own else self.names.fresh(name), shape)
        statement = Statement(target, expression)
        self.statements.append(statement)
        self.branches.learn(statement)
        return target

    # --- one value: sum what it received ---

    def _finish(self, value: Value) -> None:
        if value not in self.active and value not in self.upstream:
            return
        received = self.received[value]
        terms = list(received.terms)
        is_own = value in self.wanted and value not in self.upstream
        name = self.own[value] if is_own else f"d_{value.name}"
        if value in self.upstream:
            if not terms and not received.parts:
                self.adjoints[value] = self.upstream[value]
                return
            terms.insert(0, self.upstream[value])
            name += "_total"
        joined = self._join_parts(value, received.parts)
        if not terms and not joined:
            return
        terms += joined
        self.adjoints[value] = self._sum(name, value.shape, terms, is_own)

    def _sum(self, name: str, shape: Shape, terms: list[Expr], is_own: bool) -> Value:
        terms = self._joined_sums(name, terms)
        if len(terms) == 1:
            term = terms[0]
            if isinstance(term, Value) and term.shape == shape:
                return term
            target = self._emit(name, shape, term, is_own)
            if isinstance(term, Value):
                self.narrow[target] = term
            return target
        named, count = [], 0
        for term in terms:
            if isinstance(term, Apply):
                count += 1
                term = self._emit(f"{name}_{count}", shape_of(term), term)
            named.append(term)
        return self._emit(name, shape, sympy.Add(*named), is_own)

    def _joined_sums(self, name: str, terms: list[Expr]) -> list[Expr]:
        """Add the terms of equal sums before they are summed: one sum over rows instead of many."""
        alike: dict[tuple[Expr, Shape], list[Expr]] = {}
        for term in terms:
            if isinstance(term, Apply) and operator_of(term).is_sum:
                alike.setdefault((term.args[2], term.operands[0].shape), []).append(term)
        joined: dict[Expr, Expr] = {}
        for (attributes, shape), same in alike.items():
            if len(same) > 1:
                total = sympy.Add(*(term.operands[0] for term in same))
                summand = self._emit(f"{name}_terms", shape, total)
                joined[same[0]] = Apply(same[0].op, (summand,), attributes)
                joined.update(dict.fromkeys(same[1:], Integer(0)))
        return [t for t in (joined.get(term, term) for term in terms) if t != 0]

    def _join_parts(
        self, value: Value, parts: Sequence[tuple[Expr, Expr, Expr, Value]]
    ) -> list[Expr]:
        """Concatenate the adjoints of parts; several splits of one value give several terms."""
        rest, joined = list(parts), []
        while rest:
            axis = rest[0][0]
            position, pieces = Integer(0), []
            total = value.shape[int(axis)]
            while position != total:
                piece = next((p for p in rest if p[0] == axis and p[1] == position), None)
                if piece is None:
                    pieces.append(self._gap(value, int(axis), position, total, rest))
                    position += pieces[-1].shape[int(axis)]
                    continue
                rest.remove(piece)
                pieces.append(piece[3])
                position += piece[2]
            joined.append(Apply("concat", pieces, (axis,)))
        return joined

    def _gap(
        self, value: Value, axis: int, position: Expr, total: Expr, rest: Sequence[tuple[Expr, ...]]
    ) -> Value:
        """A zero adjoint up to the next part, for parts that nothing depends on."""
        starts = [p[1] - position for p in rest if p[0] == axis] + [total - position]
        size = _nearest(starts)
        shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
        return self._emit(f"d_{value.name}_zero", shape, Integer(0))

    # --- one statement: hand its adjoint to its operands ---

    def _propagate(self, statement: Statement, d_y: Value) -> None:
        if statement.is_pointwise:
            self._propagate_pointwise(statement, d_y)
            return
        node = statement.expression
        if statement.traits.is_part:
            axis, start, size = node.attributes
            if node.operands[0] in self.active:
                self.received[node.operands[0]].parts.append((axis, start, size, d_y))
            return
        for operand, contribution in _contributions(self.program.cell, node, statement.target, d_y):
            if operand not in self.active or contribution == 0:
                continue
            if contribution is None:
                raise DerivationError(
                    f"{self.program.cell}: operator {node.op} has no adjoint",
                    code="derivation.adjoint",
                )
            contribution = unnested(contribution, partial(self._inner, f"d_{operand.name}"))
            contribution = self.inner.get(contribution, contribution)
            if isinstance(contribution, Apply) and operator_of(contribution).is_part:
                contribution = self._emit(
                    f"d_{operand.name}_part", shape_of(contribution), contribution
                )
            self.received[operand].terms.append(contribution)

    def _inner(self, name: str, expression: Expr) -> Value:
        """Name what stands inside an operator's adjoint; the same of two operands is one value."""
        if expression not in self.inner:
            stem = expression.op if isinstance(expression, Apply) else "factor"
            self.inner[expression] = self._emit(f"{name}_{stem}", shape_of(expression), expression)
        return self.inner[expression]

    def _propagate_pointwise(self, statement: Statement, d_y: Value) -> None:
        d_y = self.narrow.get(d_y, d_y)
        for operand in statement.operands:
            if operand not in self.active:
                continue
            slope = self.branches.slope(statement.expression, operand)
            if slope == 0:
                continue
            term = self.branches.product(d_y, self._through_values(slope))
            contribution = self._reduced(operand, term, statement.target.shape)
            if contribution != 0:
                self.received[operand].terms.append(contribution)

    def _through_values(self, slope: Expr) -> Expr:
        return slope.xreplace(self.through) if slope.args else slope

    def _reduced(self, operand: Value, term: Expr, shape: Shape) -> Expr:
        """Sum a term over the axes along which its operand was broadcast."""
        shape = broadcast((shape, shape_of(term)))
        if operand.shape == shape:
            return term
        term = self._without_zeros(term, shape, operand.shape)
        if term == 0:
            return term
        if not isinstance(term, Value) or term.shape != shape:
            term = self._emit(f"d_{operand.name}_terms", shape, term)
        return Apply("sum_to", (term,), operand.shape)

    def _without_zeros(self, term: Expr, shape: Shape, into: Shape) -> Expr:
        """Leave out of a term what has the sum 0; an adjoint that is a sum is looked into."""
        summing = Summing(shape, into, self.sums, self.program.definitions)
        rest, units = summing.split(term)
        terms: Sequence[Expr] = (term,)
        if len(units) == 1 and isinstance(units[0], Value):
            summed = next((s for s in self.statements if s.target == units[0]), None)
            if summed is not None and summed.is_pointwise and summed.expression.is_Add:
                terms = [rest * other for other in summed.expression.args]
        kept = [other for other in terms if not summing.cancels(other)]
        return term if len(kept) == len(terms) else sympy.Add(*kept)

    # --- results ---

    def _results(self) -> tuple[Value, ...]:
        results: list[Value] = []
        for value in self.wanted:
            adjoint, own = self.adjoints.get(value), self.own[value]
            taken = set(self.program.values) | set(self.upstream.values()) | set(results)
            if adjoint is None:
                adjoint = self._emit(own, value.shape, Integer(0), is_own=True)
            elif adjoint in taken:
                name = f"{own}_total" if value in self.upstream else own
                adjoint = self._emit(name, value.shape, adjoint, is_own=name == own)
            elif adjoint.name != own and value not in self.upstream:
                adjoint = self._rename(adjoint, own)
            self.adjoints[value] = adjoint
            results.append(adjoint)
        return tuple(results)

    def _rename(self, old: Value, name: str) -> Value:
        """Give an adjoint that two values share the name of the one that is asked for."""
        new = Value(name, old.shape, old.role, old.owner, old.order)
        self.statements = [
            Statement(new if s.target == old else s.target, s.expression.xreplace({old: new}))
            for s in self.statements
        ]
        self.adjoints = {k: new if v == old else v for k, v in self.adjoints.items()}
        return new


def _active(program: Program, wanted: Iterable[Value]) -> set[Value]:
    """Values that depend on something wanted; adjoints of others are not formed."""
    active = set(wanted)
    for statement in program.statements:
        if any(operand in active for operand in statement.operands):
            active.add(statement.target)
    return active


def _nearest(starts: Iterable[Expr]) -> Expr:
    """The nearest start ahead: cuts of an axis differ by positive terms; fewer are nearer."""
    ahead = [s for s in starts if all(c > 0 for c in s.as_coefficients_dict().values())]
    return min(ahead, key=lambda s: (sum(s.as_coefficients_dict().values()), str(s)))


def _own_names(names: Names, values: Iterable[Value]) -> dict[Value, str]:
    """What adjoints that callers give and take are called: no term of another one has the name."""
    unique = dict.fromkeys(values)
    return {value: names.fresh(f"d_{value.name}", is_whole=True) for value in unique}


def _contributions(
    cell: str, node: Apply, y: Value, d_y: Value
) -> Iterator[tuple[Expr, Expr | None]]:
    """What an operator hands to each of its operands, as its row says."""
    contributions = operator_of(node).adjoint(y, d_y, node.operands, node.attributes)
    if len(contributions) != len(node.operands):
        raise DerivationError(
            f"{cell}: the adjoint of operator {node.op} gives {len(contributions)} contributions, "
            f"expected one for each of its {len(node.operands)} operands",
            code="derivation.adjoint",
        )
    return zip(node.operands, contributions, strict=True)
