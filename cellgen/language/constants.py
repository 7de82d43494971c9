"""Constants of equations: their exact values, and the one rounding that a precision gives each.

Input: what SymPy makes of numbers (``Integer``, ``Rational``, ``Float`` of any precision, ``pi``,
``sqrt(2)``, ``exp(1)``). Output: a ``Rational`` where the value is one, else a ``Float`` of
``BITS`` bits and more; and floats that are nearest to such a number. Rounding to float64 first and
to float32 then would round twice.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import sympy
from sympy import Expr
from sympy.core.evalf import PrecisionExhausted

from cellgen.errors import DeclarationError

BITS = 256
"""Precision of constants that are no rational number, and of what arithmetic makes of floats."""

_DIGITS = 80
_MOST_DIGITS = 2000
"""Decimal digits that constants are evaluated to, and how many may cancel on the way."""


class Precision(NamedTuple):
    """A binary format.

    Bits of a number, exponents of the smallest one and of the first power too large; the two ends
    in decimals.
    """

    name: str
    bits: int
    least: int
    beyond: int
    smallest: str
    largest: str


SINGLE = Precision("float32", 24, -149, 128, "1.4e-45", "3.4e+38")
DOUBLE = Precision("float64", 53, -1074, 1024, "4.9e-324", "1.8e+308")


@lru_cache(maxsize=65536)
def nearest(number: Expr, precision: Precision) -> float:
    """Round an exact number once: to the nearest one of a precision, ties to even.

    To infinity beyond its range.

    >>> nearest(sympy.Rational(10**20, 3), SINGLE), nearest(sympy.Rational(10**20, 3), DOUBLE)
    (3.333333304514042e+19, 3.3333333333333332e+19)
    """
    if number.is_infinite:
        return math.inf if number > 0 else -math.inf
    sign, top, bottom, power = _parts(number)
    if not top:
        return 0.0
    exponent = top.bit_length() - bottom.bit_length()
    if top < _shifted(bottom, exponent) if exponent >= 0 else _shifted(top, -exponent) < bottom:
        exponent -= 1  # the number is at least 2**exponent, and below twice that
    if exponent + power >= precision.beyond:
        return sign * math.inf
    if exponent + power < precision.least - 1:
        return sign * 0.0
    unit = max(exponent - precision.bits + 1, precision.least - power)
    whole, rest = divmod(_shifted(top, -unit), _shifted(bottom, unit))
    half = 2 * rest - _shifted(bottom, unit)
    count = whole + (half > 0 or (half == 0 and whole % 2 == 1))
    if count.bit_length() + unit + power > precision.beyond:
        return sign * math.inf
    return sign * math.ldexp(count, unit + power)


def _parts(number: Expr) -> tuple[int, int, int, int]:
    """Write a number as sign * top / bottom * 2**power."""
    if number.is_Rational:
        return (-1 if number < 0 else 1), abs(int(number.p)), int(number.q), 0
    negative, mantissa, exponent, _ = number._mpf_
    return (-1 if negative else 1), int(mantissa), 1, int(exponent)


def _shifted(number: int, by: int) -> int:
    """``number`` times 2**by, for by > 0; unchanged otherwise."""
    return number << by if by > 0 else number


@lru_cache(maxsize=65536, typed=True)
def exact_constant(expression: Expr) -> Expr:
    """Evaluate an expression of numbers alone, to a ``Rational`` where SymPy finds one.

    Raises:
        DeclarationError: no real number, or one without a value in a kernel's precisions.
    """
    number = expression
    if not number.is_Number:
        try:
            number = expression.evalf(_DIGITS, maxn=_MOST_DIGITS, strict=True)
        except PrecisionExhausted:
            raise _refused(
                expression, "which cannot be told from 0", "write the number that it is"
            ) from None
    if number.is_Float:
        number = sympy.Float(number, precision=max(BITS, number._prec))
    if not (number.is_Number and number.is_finite):
        wanted = "a large number" if number.is_infinite else "real numbers"
        raise _refused(expression, "which is no finite real number", f"use {wanted}")
    check_range(number)
    return number


def check_range(number: Expr) -> None:
    """Accept a number that has a finite value in every precision, and is 0 in none but at 0.

    Raises:
        DeclarationError: naming the precision.
    """
    for precision in (SINGLE, DOUBLE):
        value = nearest(number, precision)
        if math.isinf(value) or (value == 0 and not number.is_zero):
            fate = "rounds to 0" if value == 0 else "has no finite value"
            raise _refused(
                number,
                f"which {fate} in {precision.name}",
                f"numbers there lie between {precision.smallest} and {precision.largest}; scale "
                f"the values that it belongs to",
            )


def _refused(expression: Expr, why: str, instead: str) -> DeclarationError:
    return DeclarationError(
        f"an equation holds {in_few_digits(expression)}, {why}; {instead}",
        code="declaration.constant",
    )


def in_few_digits(number: Expr) -> str:
    """A number in few digits, for messages."""
    is_long = number.is_Float or (number.is_Rational and max(abs(number.p), number.q) > 10**9)
    if is_long:
        return str(number.n(6))
    text = str(number)
    return text if len(text) <= 60 else f"{text[:57]}..."
