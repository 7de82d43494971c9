"""Derive the tangent of a program: its Jacobian-vector product.

Input and output: a ``Program``, so that second derivatives are compositions. Products are bilinear,
other operators follow their rows in the table, pointwise expressions SymPy's ``diff``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy
from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import shape_of
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.branches import Branches
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
        return _tangent_operator(statement, self.tangents, self.zeros)

    def _named(self, term: Expr, name: str) -> Expr:
        """Give an operator's term a statement of its own: sums are pointwise."""
        if not isinstance(term, Apply):
            return term
        target = self._new(name, shape_of(term))
        self._emit(target, term)
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
    if statement.traits.is_product or not any(o in tangents for o in operands):
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
) -> list[Expr]:
    """Products are bilinear, every other operator is linear in all operands at once."""
    node = statement.expression
    moving = [operand for operand in node.operands if operand in tangents]
    if not moving or statement.traits.is_still:
        return []
    if (product := statement.traits.product) is not None:
        *seed, first, second = node.operands
        plain = product.plain
        terms: list[Expr] = [tangents[value] for value in seed if value in tangents]
        if first in tangents:
            terms.append(Apply(plain, (tangents[first], second), node.attributes))
        if second in tangents:
            terms.append(Apply(plain, (first, tangents[second]), node.attributes))
        return terms
    every = [tangents[o] if o in tangents else zeros[o] for o in node.operands]
    return [Apply(node.op, every, node.attributes)]
