"""Derive the tangent of a program: its Jacobian-vector product.

Input and output: a ``Program``, so that second derivatives are compositions. Operators follow their
rows in the table, pointwise expressions SymPy's ``diff``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import sympy
from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import Motion, operator_of, shape_of
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.branches import Branches
from cellgen.program.derive.nested import unnested
from cellgen.program.ssa import Program, Statement


def tangent(program: Program, by: Iterable[Value]) -> Program:
    """Derive the Jacobian-vector product: ``t_<name>`` of every result along that of ``by``.

    Results are the program's own, then their tangents.
    """
    return directional(program, by)[0]


def directional(program: Program, by: Iterable[Value]) -> tuple[Program, Mapping[Value, Value]]:
    """Derive the Jacobian-vector product, and tell the tangent of every value that has one.

    A tangent may be a 0 that something reads.
    """
    mode = _Tangents(program)
    arguments = (*program.arguments, *(mode.begin(value) for value in by))
    for statement in program.statements:
        mode.add(statement)
    results = tuple(mode.tangent_or_zero(result) for result in program.results)
    tangent = Program(
        program.cell,
        f"{program.function}_tangent",
        arguments,
        tuple(mode.statements),
        (*program.results, *results),
        program.optional,
    )
    tangent.verify()
    return tangent, {**mode.zeros, **mode.tangents}


class _Tangents:
    """The statements of a program, each followed by those of its tangent."""

    def __init__(self, program: Program) -> None:
        self.names = Names(str(value.name) for value in program.values)
        self.order = len(program.values)
        self.branches = Branches(program.statements)
        self.tangents: dict[Value, Value] = {}
        self.zeros: dict[Value, Value] = {}
        self.statements: list[Statement] = []

    def _new(self, name: str, shape: Shape) -> Value:
        order = self.order + len(self.statements)
        return Value(self.names.fresh(name), shape, Role.TANGENT, "", order)

    def _emit(self, target: Value, expression: Expr) -> None:
        statement = Statement(target, expression)
        self.statements.append(statement)
        self.branches.learn(statement)

    def begin(self, value: Value) -> Value:
        """Name the tangent of a value that moves."""
        self.tangents[value] = self._new(f"t_{value.name}", value.shape)
        return self.tangents[value]

    def add(self, statement: Statement) -> None:
        """Append a statement and, where one of its operands moves, its tangent."""
        self.statements.append(statement)
        terms = self._terms(statement)
        if not terms:
            return
        target = statement.target
        if len(terms) > 1:
            terms = [self._named(term, f"t_{target.name}_term") for term in terms]
        self._emit(self.begin(target), sympy.Add(*terms))

    def _terms(self, statement: Statement) -> list[Expr]:
        if statement.is_pointwise:
            return _tangent_pointwise(statement, self.tangents, self.branches)
        for value in _still(statement, self.tangents):
            self._zero(value)
        inner = partial(self._inner, f"t_{statement.target.name}")
        terms = _tangent_operator(statement, self.tangents, self.zeros)
        return [unnested(term, inner) for term in terms]

    def _named(self, term: Expr, name: str) -> Expr:
        """Give an operator's term a statement of its own: sums are pointwise."""
        if not isinstance(term, Apply):
            return term
        target = self._new(name, shape_of(term))
        self._emit(target, term)
        return target

    def _inner(self, name: str, expression: Expr) -> Value:
        """Name what stands inside a term of an operator's tangent."""
        stem = expression.op if isinstance(expression, Apply) else "factor"
        target = self._new(f"{name}_{stem}", shape_of(expression))
        self._emit(target, expression)
        return target

    def _zero(self, value: Value) -> Value:
        """The tangent of a value that nothing moves, where something reads it."""
        if value not in self.zeros:
            self.zeros[value] = self._new(f"t_{value.name}", value.shape)
            self.statements.append(Statement(self.zeros[value], Integer(0)))
        return self.zeros[value]

    def tangent_or_zero(self, result: Value) -> Value:
        """The tangent of a result; one that nothing moves has the tangent 0."""
        return self.tangents[result] if result in self.tangents else self._zero(result)


def _still(statement: Statement, tangents: Mapping[Value, Value]) -> list[Value]:
    """Operands without a tangent beside one that has one, of an operator that needs all of them."""
    operands = dict.fromkeys(statement.operands)
    if not statement.traits.is_linear or not any(o in tangents for o in operands):
        return []
    return [operand for operand in operands if operand not in tangents]


def _tangent_pointwise(
    statement: Statement, tangents: Mapping[Value, Value], branches: Branches
) -> list[Expr]:
    terms = []
    for operand in statement.operands:
        if operand in tangents:
            slope = branches.slope(statement.expression, operand)
            if slope != 0:
                slope = slope.xreplace({statement.expression: statement.target})
                terms.append(branches.product(slope, tangents[operand]))
    return terms


def _tangent_operator(
    statement: Statement, tangents: Mapping[Value, Value], zeros: Mapping[Value, Value]
) -> Sequence[Expr]:
    """The terms of an operator's tangent, by its row."""
    node = statement.expression
    row, operands = operator_of(node), node.operands
    if not any(operand in tangents for operand in operands):
        return ()
    match row.tangent:
        case Motion.STILL:
            return ()
        case Motion.LINEAR:
            every = [tangents[o] if o in tangents else zeros[o] for o in operands]
            return (Apply(node.op, every, node.attributes),)
        case rule:
            assert callable(rule)  # no row is made without one
            moving = [tangents.get(operand) for operand in operands]
            return rule(statement.target, moving, operands, node.attributes)
