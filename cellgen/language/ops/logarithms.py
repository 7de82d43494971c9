"""Logarithms that undo a function: ``log exp(u) = u``, ``log sigmoid(x) = log_sigmoid(x)``.

No exponential and its logarithm stand beside each other, so that nothing underflows between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sympy import Expr

from cellgen.language.ops.function import Pointwise
from cellgen.language.ops.pointwise import log_sigmoid

_LOGARITHM: Mapping[str, Callable[[Expr], Expr]] = {
    "exp": lambda x: x,
    "sigmoid": log_sigmoid,
}
_OF_REST: Mapping[str, Callable[[Expr], Expr]] = {"sigmoid": lambda x: log_sigmoid(-x)}


def undone(function: Expr) -> Expr | None:
    """The logarithm of a function that has one of its own; None for others."""
    return _written(function, _LOGARITHM)


def undone_rest(function: Expr) -> Expr | None:
    """The logarithm of 1 less a function; None where there is none of its own."""
    return _written(function, _OF_REST)


def _written(function: Expr, table: Mapping[str, Callable[[Expr], Expr]]) -> Expr | None:
    rule = table.get(function.row.name) if isinstance(function, Pointwise) else None
    return None if rule is None else rule(function.args[0])
