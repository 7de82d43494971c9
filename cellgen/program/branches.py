"""Derivatives that select: what a branch does not take contributes exactly 0.

Input: a pointwise expression and what is known of the values in it. Output: its derivative, and
products of derivatives. By the chain rule a derivative of 0 (a branch that is not taken) may meet
one that is infinite (that of ``sqrt`` at 0), and 0 times infinity is no number. Where that can
happen, and nowhere else, the factor that is 0 selects: ``where(x > 0, d, 0)`` in place of
``(x > 0) * d``, and ``strong_product`` where it is no condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import sympy
from sympy import Expr, Integer

from cellgen.language.ops import (
    FunctionTraits,
    Growth,
    Pointwise,
    Sign,
    operator_of,
    strong_product,
    where,
)
from cellgen.language.value import Apply, Dim, Value
from cellgen.program.slopes import derivative
from cellgen.program.ssa import Statement


class Reach(IntEnum):
    """What a value may be where a branch leaves it out: a number, infinite, or no number."""

    NUMBER = 0
    INFINITE = 1
    ANYTHING = 2


def is_bounded(expression: Expr) -> bool:
    """Whether an expression is a function that gives moderate numbers of all arguments."""
    return _row(expression).growth is Growth.BOUNDED


class Branches:
    """What is known of values: which a branch makes 0, and how far each may reach elsewhere.

    Arguments of a program are numbers. ``learn`` takes its statements in order.
    """

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self._definitions: dict[Value, Expr] = {}
        self._selected: dict[Expr, bool] = {}
        self._reach: dict[Expr, Reach] = {}
        self._sign: dict[Expr, Sign] = {}
        for statement in statements:
            self.learn(statement)

    def learn(self, statement: Statement) -> None:
        """Take in a statement that was added."""
        target = statement.target
        self._definitions[target] = statement.expression
        # At once, so that no question goes deeper than one statement.
        self.sign(target), self.reach(target), self.is_selected(target)

    # --- products and derivatives ---

    def product(self, first: Expr, second: Expr) -> Expr:
        """Multiply two derivatives of a chain; what is 0 by a branch makes the product 0."""
        if first == 0 or second == 0:
            return Integer(0)
        by_first = self.is_selected(first) and self.reach(second) > Reach.NUMBER
        by_second = self.is_selected(second) and self.reach(first) > Reach.NUMBER
        if by_second and (taken := self._taken(first, second)) is not None:
            return taken
        if by_first and (taken := self._taken(second, first)) is not None:
            return taken
        return strong_product(first, second) if by_first or by_second else first * second

    def _taken(self, factor: Expr, branch: Expr) -> Expr | None:
        """``factor * branch`` as a choice.

        Where conditions or a ``where`` are factors of ``branch``.
        """
        factors = sympy.Mul.make_args(branch)
        conditions = [f for f in factors if _row(f).comparison]
        rest = sympy.Mul(*(f for f in factors if f not in conditions))
        if conditions:
            return where(sympy.Mul(*conditions), self.product(factor, rest), 0)
        chosen = next((f for f in factors if _row(f).is_choice), None)
        if chosen is None:
            return None
        condition, yes, no = chosen.args
        others = sympy.Mul(*(f for f in factors if f != chosen))
        sides = (self.product(factor, side * others) for side in (yes, no))
        return where(condition, *sides)

    def slope(self, expression: Expr, by: Value) -> Expr:
        """Differentiate a pointwise expression by a value."""
        plain = derivative(expression, by)
        if plain == 0 or not any(_may_select(n) for n in expression.atoms(Pointwise)):
            return plain
        chain = _ChainRule(self, by)
        careful = chain.slope(expression)
        return careful if chain.has_selected else plain

    # --- what is known ---

    def is_selected(self, expression: Expr) -> bool:
        """Whether it is 0 where a branch is not taken, or where an exponential underflows.

        Of the latter, where nothing but another exponential can follow (``exp(-exp(a))``).
        """
        if expression not in self._selected:
            self._selected[expression] = False
            self._selected[expression] = self._find_selected(expression)
        return self._selected[expression]

    def _find_selected(self, expression: Expr) -> bool:  # noqa: PLR0911 - one case a return
        if isinstance(expression, Value):
            definition = self._definitions.get(expression)
            return definition is not None and self.is_selected(definition)
        if isinstance(expression, Apply):
            return self._operator_selected(expression)
        args, row = expression.args, _row(expression)
        if row.growth is Growth.STEP:
            return True
        if row.is_choice:
            return any(side == 0 or self.is_selected(side) for side in args[1:])
        if row.underflows:
            return self.reach(args[0]) is Reach.INFINITE
        if expression.is_Add:
            return all(self.is_selected(term) for term in args)
        if expression.is_Pow:
            return bool(args[1] > 0) and self.is_selected(args[0])
        through = expression.is_Mul or row.carries_zero
        return bool(through) and any(self.is_selected(factor) for factor in args)

    def _operator_selected(self, node: Apply) -> bool:
        row, operands = operator_of(node), list(node.operands)
        if row.is_indicator:
            return True
        if row.is_product:
            *seed, first, second = operands
            factor = self.is_selected(first) or self.is_selected(second)
            return factor and all(self.is_selected(value) for value in seed)
        return any(self.is_selected(operand) for operand in operands)

    def reach(self, expression: Expr) -> Reach:
        """How far a value may reach, whatever finite numbers the arguments are."""
        if expression not in self._reach:
            self._reach[expression] = Reach.NUMBER
            self._reach[expression] = self._find_reach(expression)
        return self._reach[expression]

    def _find_reach(self, expression: Expr) -> Reach:
        if isinstance(expression, Value):
            definition = self._definitions.get(expression)
            return Reach.NUMBER if definition is None else self.reach(definition)
        if isinstance(expression, Apply):
            row = operator_of(expression)
            is_infinite = row.fill is not None and not row.fill.is_finite
            inner = Reach.NUMBER if row.is_still else self._furthest(expression.operands)
            return max(inner, Reach.INFINITE) if is_infinite else inner
        if not expression.args or isinstance(expression, Dim):
            return Reach.NUMBER
        inner = self._furthest(expression.args)
        if expression.is_Pow:
            return self._reach_of_power(expression, inner)
        if isinstance(expression, Pointwise):
            return self._reach_of_function(expression, inner)
        return inner

    def _furthest(self, expressions: Iterable[Expr]) -> Reach:
        return max((self.reach(e) for e in expressions), default=Reach.NUMBER)

    def _reach_of_power(self, power: Expr, inner: Reach) -> Reach:
        base, exponent = power.args
        if exponent.is_Integer and exponent > 0:
            return inner
        least = Sign.POSITIVE if exponent < 0 else Sign.NOT_NEGATIVE
        return inner if self.sign(base) >= least else Reach.ANYTHING

    def _reach_of_function(self, node: Pointwise, inner: Reach) -> Reach:
        row, args, growth = node.row, node.args, node.row.growth
        if growth is Growth.STEP:
            return Reach.NUMBER
        if growth is Growth.ANYTHING or (row.domain and self.sign(args[0]) < row.domain):
            return Reach.ANYTHING
        if growth is Growth.OVERFLOWS:
            limit = Reach.NUMBER if self._is_at_most_0(args[0]) else Reach.INFINITE
            return inner if inner is Reach.ANYTHING else limit
        if growth is Growth.OSCILLATES:
            return Reach.ANYTHING if inner else inner  # of infinity they are no number
        if growth is Growth.BOUNDED:
            return inner if inner is Reach.ANYTHING else Reach.NUMBER
        return self._furthest(args[1:]) if row.is_choice else inner

    def _is_at_most_0(self, expression: Expr) -> bool:
        """Whether it is negative or 0: ``-exp(a)``, or ``a - maximum(a, b)``."""
        if isinstance(expression, Value):
            definition = self._definitions.get(expression)
            pointwise = definition is not None and not isinstance(definition, Apply)
            return pointwise and self._is_at_most_0(definition)
        if _row(expression).never_positive:
            return True
        if expression.is_Add and self._is_less_its_maximum(expression):
            return True
        if expression.is_Add:
            return all(self._is_at_most_0(term) for term in expression.args)
        if expression.is_Mul and expression.could_extract_minus_sign():
            return self.sign(-expression) >= Sign.NOT_NEGATIVE
        return bool(expression.is_Number) and bool(expression <= 0)

    def _is_less_its_maximum(self, difference: Expr) -> bool:
        for term in difference.args:
            most = self._definitions.get(-term, -term)
            if _row(most).is_upper_bound and difference - term in most.args:
                return True
        return False

    def sign(self, expression: Expr) -> Sign:
        """The sign of an expression, as far as it is known."""
        if expression not in self._sign:
            self._sign[expression] = Sign.UNKNOWN
            self._sign[expression] = self._find_sign(expression)
        return self._sign[expression]

    def _find_sign(self, expression: Expr) -> Sign:  # noqa: PLR0911 - one case a return
        args = expression.args
        if isinstance(expression, Value):
            definition = self._definitions.get(expression)
            return Sign.UNKNOWN if definition is None else self.sign(definition)
        if isinstance(expression, Dim):
            return Sign.POSITIVE
        if expression.is_Number:
            return Sign(int(bool(expression >= 0)) + int(bool(expression > 0)))
        if isinstance(expression, Apply):
            return self._sign_of_operator(expression)
        signs = [self.sign(argument) for argument in args]
        if expression.is_Add:  # what is not negative only adds to what is positive
            return max(signs) if min(signs) > Sign.UNKNOWN else Sign.UNKNOWN
        if expression.is_Mul:
            return min(signs)
        if expression.is_Pow:
            is_even = args[1].is_Integer and args[1] % 2 == 0
            if args[1] > 0:
                return max(signs[0], Sign.NOT_NEGATIVE) if is_even else signs[0]
            return Sign.NOT_NEGATIVE if is_even else min(signs[0], Sign.NOT_NEGATIVE)
        return _row(expression).sign(signs)

    def _sign_of_operator(self, node: Apply) -> Sign:
        row = operator_of(node)
        if row.is_indicator:
            return Sign.NOT_NEGATIVE
        operands = node.operands if row.fill is None else (*node.operands, row.fill)
        least = min(self.sign(term) for term in operands)
        is_sum = row.is_product  # of no terms it is 0
        return min(least, Sign.NOT_NEGATIVE) if is_sum else least


class _ChainRule:
    """The chain rule over one expression; ``has_selected`` tells whether a factor had to select."""

    def __init__(self, branches: Branches, by: Value) -> None:
        self.branches, self.by = branches, by
        self.has_selected = False
        self._known: dict[Expr, Expr] = {by: Integer(1)}

    def slope(self, expression: Expr) -> Expr:
        if expression not in self._known:
            self._known[expression] = self._find(expression)
        return self._known[expression]

    def _find(self, expression: Expr) -> Expr:
        args = expression.args
        if _row(expression).is_choice:
            return where(args[0], self.slope(args[1]), self.slope(args[2]))
        if expression.is_Add:
            return sympy.Add(*(self.slope(term) for term in args))
        if expression.is_Mul:
            slopes = [self.slope(factor) for factor in args]
            return sympy.Add(
                *(
                    sympy.Mul(slope, *args[:index], *args[index + 1 :])
                    for index, slope in enumerate(slopes)
                    if slope != 0
                )
            )
        if expression.is_Pow:
            base, exponent = args
            return self._times(exponent * base ** (exponent - 1), self.slope(base))
        slopes = [(index, self.slope(argument)) for index, argument in enumerate(args)]
        terms = [self._times(expression.fdiff(i + 1), slope) for i, slope in slopes if slope != 0]
        return sympy.Add(*terms)  # of nothing it is 0: of a value, a number or a dimension

    def _times(self, outer: Expr, inner: Expr) -> Expr:
        product = self.branches.product(outer, inner)
        self.has_selected |= product != outer * inner
        return product


_NONE = FunctionTraits()


def _row(expression: Expr) -> FunctionTraits:
    """The row of a function; anything else has no trait of one."""
    return expression.row if isinstance(expression, Pointwise) else _NONE


def _may_select(node: Pointwise) -> bool:
    """Whether a derivative of it may be 0 by a branch."""
    return node.row.kinks or node.row.is_strong
