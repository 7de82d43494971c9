"""Match expressions: which parts of one stand where a pattern has its symbols.

Input: a pattern, an expression. Output: bindings of the pattern's symbols, one after the other
where several fit. Sums and products match in any order of their operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sympy
from sympy import Basic, Expr

Bindings = Mapping[Expr, Expr]


class Hole(sympy.Dummy):  # type: ignore[misc]
    """A symbol of a pattern, which stands for any expression."""


class NumberHole(Hole):
    """One that stands for a number alone."""


def matches(pattern: Basic, expression: Basic, bound: Bindings) -> Iterator[Bindings]:
    """Find every way to bind the holes of a pattern so that it is the expression."""
    if isinstance(pattern, Hole):
        known = bound.get(pattern)
        fits = expression.is_Number or not isinstance(pattern, NumberHole)
        if known == expression or (known is None and fits):
            yield {**bound, pattern: expression}
        return
    if not pattern.has(Hole):
        if pattern == expression:
            yield bound
        return
    if type(pattern) is not type(expression) or len(pattern.args) != len(expression.args):
        return
    if pattern.is_Add or pattern.is_Mul:
        yield from _in_any_order(pattern.args, expression.args, bound)
    else:
        yield from _in_order(pattern.args, expression.args, bound)


def _in_order(
    patterns: Sequence[Basic], expressions: Sequence[Basic], bound: Bindings
) -> Iterator[Bindings]:
    if not patterns:
        yield bound
        return
    for bindings in matches(patterns[0], expressions[0], bound):
        yield from _in_order(patterns[1:], expressions[1:], bindings)


def _in_any_order(
    patterns: Sequence[Basic], expressions: Sequence[Basic], bound: Bindings
) -> Iterator[Bindings]:
    if not patterns:
        yield bound
        return
    # What is most particular first: there is less to try.
    chosen = max(patterns, key=lambda pattern: (not isinstance(pattern, Hole), -len(pattern.args)))
    rest = [pattern for pattern in patterns if pattern is not chosen]
    for place, expression in enumerate(expressions):
        others = [*expressions[:place], *expressions[place + 1 :]]
        for bindings in matches(chosen, expression, bound):
            yield from _in_any_order(rest, others, bindings)
