"""A rewrite of two exponentials whose larger exponent is taken off both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import sympy
from sympy import Expr

from cellgen.language.names import Names
from cellgen.language.ops import absolute, exp, ge, le, maximum, shape_of, where
from cellgen.language.value import Role, Value
from cellgen.program.ssa import Program, Statement


def share_exponentials(program: Program) -> Program:
    """``exp(a - m)`` and ``exp(b - m)`` with ``m = maximum(a, b)`` take one exponential together.

    One of them is 1 and the other e^-|a - b|: the same bits, NaN included, since no comparison with
    NaN holds; where one exponent alone is +infinity, 1 is the limit of what was NaN. Exponential
    gates that are kept finite by their larger exponent are of this form. For programs that are
    derived already: what is differentiated is what the author wrote.
    """
    definitions = program.definitions
    sides = {
        node: side
        for statement in program.statements
        if statement.is_pointwise
        for node in statement.expression.atoms(exp)
        if (side := _side_of_maximum(node, definitions)) is not None
    }
    paired = {
        node: (pair, own)
        for node, (pair, own) in sides.items()
        if all((pair, one) in sides.values() for one in pair)
    }
    names = Names(str(value.name) for value in program.values)
    shared: dict[_Pair, _Pair] = {}
    statements: list[Statement] = []

    def emit(name: str, like: Value, expression: Expr) -> Value:
        shape = shape_of(expression)
        target = Value(names.fresh(name), shape, Role.TEMPORARY, like.owner, like.order)
        statements.append(Statement(target, expression))
        return target

    for statement in program.statements:
        nodes = statement.expression.atoms(exp) & paired.keys() if statement.is_pointwise else ()
        swap: dict[Expr, Expr] = {}
        for node in sorted(nodes, key=str):  # sets have another order in every process
            (first, second), own = paired[node]
            if (first, second) not in shared:
                gap = emit(f"{first.name}_{second.name}_gap", statement.target, first - second)
                decay = emit(f"{gap.name}_exp", statement.target, exp(-absolute(gap)))
                shared[first, second] = gap, decay
            gap, decay = shared[first, second]
            is_larger = ge(gap, 0) if own == first else le(gap, 0)
            swap[node] = where(is_larger, 1, decay)
        statements.append(Statement(statement.target, statement.expression.xreplace(swap)))
    return program.with_statements(statements)


_Pair: TypeAlias = tuple[Value, Value]


def _side_of_maximum(
    node: Expr, definitions: Mapping[Value, Statement]
) -> tuple[_Pair, Value] | None:
    """The two values of which the exponent is one less the larger, and which it is."""

    def written_out(expression: Expr) -> Expr:
        source = definitions.get(expression)
        return source.expression if source and source.is_pointwise else expression

    exponent = written_out(node.args[0])
    for term in sympy.Add.make_args(exponent):
        most, own = written_out(-term), exponent - term
        first, second = most.args if isinstance(most, maximum) else (None, None)
        if isinstance(first, Value) and isinstance(second, Value) and own in (first, second):
            return (first, second), own
    return None
