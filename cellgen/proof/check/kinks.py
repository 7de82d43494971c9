"""Find the kinks of a program's functions: where a derivative jumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.notation import text
from cellgen.language.ops import Pointwise, shape_of
from cellgen.language.value import Role, Value
from cellgen.program.ssa import Program, Statement


@lru_cache(maxsize=64)
def with_kinks(program: Program) -> Program:
    """Add, as results, the distances of the program's kinked functions from their kinks.

    They are read off the derivatives: where a derivative compares ``a`` with ``b``, there is a kink
    at ``a - b = 0``; where it takes a sign of ``a``, at ``a = 0``. Comparisons of a function's own
    result say nothing: relu's is exactly 0 far from its kink.
    """
    distances = kinks_of(program)
    names = Names(str(value.name) for value in program.values)
    statements = [
        Statement(Value(names.fresh("kink"), shape_of(d), Role.TEMPORARY, "", 0), d)
        for d in distances
    ]
    watched = replace(
        program,
        statements=(*program.statements, *statements),
        results=(*program.results, *(statement.target for statement in statements)),
    )
    watched.verify()
    return watched


def kinks_of(program: Program) -> dict[Expr, str]:
    """Distances from the kinks of a program's functions, and where each is: ``x = 0``."""
    kinks: dict[Expr, str] = {}
    unnamed = {
        s.target: s.expression
        for s in program.statements
        if s.is_pointwise and s.target.role is Role.TEMPORARY
    }
    for statement in program.statements:
        nodes = statement.expression.atoms(Pointwise)
        for node in sorted((n for n in nodes if n.row.kinks), key=str):
            for distance, sides in _distances(node).items():
                left, right = (text(_written_out(side, unnamed)) for side in sides)
                kinks.setdefault(distance, f"{left} = {right}")
    return kinks


def _written_out(expression: Expr, unnamed: Mapping[Value, Expr]) -> Expr:
    """Write what has no name of the author's through values that have one."""
    while inner := expression.atoms(Value) & unnamed.keys():
        expression = expression.xreplace({value: unnamed[value] for value in inner})
    return expression


def _distances(node: Pointwise) -> dict[Expr, tuple[Expr, Expr]]:
    """What is 0 at a kink of a function, and the two sides that are equal there."""
    by_distance: dict[Expr, tuple[Expr, Expr]] = {}
    slopes = [node.fdiff(index + 1) for index in range(len(node.args))]
    for expression in (node, *slopes):
        for inner in sorted(expression.atoms(Pointwise), key=str):
            if inner.row.comparison:
                by_distance.setdefault(inner.args[0] - inner.args[1], inner.args)
            elif inner.row.turns_at_zero:
                by_distance.setdefault(inner.args[0], (inner.args[0], Integer(0)))
            elif inner.row.jump is not None:
                (x,) = inner.args
                by_distance.setdefault(x - inner.row.jump(x), (x, inner.row.jump(x)))
    return {d: sides for d, sides in by_distance.items() if d.atoms(Value) and not d.has(node)}
