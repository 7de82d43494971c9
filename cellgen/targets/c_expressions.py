"""Print pointwise expressions in C and CUDA, in the order and with the names of the equations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from math import isfinite, isinf
from typing import ClassVar

from sympy import Expr, Float, Integer

from cellgen.errors import DerivationError
from cellgen.language.constants import DOUBLE, SINGLE, Precision, in_few_digits, nearest
from cellgen.language.graph import WRITTEN_AS_PRODUCT
from cellgen.language.notation import ATOM, PRODUCT, SUM, Notation, Text
from cellgen.language.ops import PointwiseRow
from cellgen.language.value import Dim, axis_factors, is_factor
from cellgen.runtime.abi import axis_terms, c_dim, term_dims

_CALL = re.compile(r"\w+\(\{\d\}(, \{\d\})*\)\Z")
"""A spelling that is one call of its arguments, so that no piece needs brackets."""

_LOOSEST = SUM - 1
"""A spelling that is an expression of its own: in brackets wherever it is not alone."""


MOST_PLAIN = 2**SINGLE.bits
"""Up to here float32 holds every integer."""


class CNotation(Notation):
    """C over ``real``: functions are the ``cg_`` macros of the runtime header."""

    first_factor: ClassVar[int] = PRODUCT  # x * x * z: C multiplies from the left

    def dim(self, dim: Dim) -> str:
        """Spell a dimension as a number."""
        return f"(real){c_dim(str(dim.name))}"

    def is_plain(self, integer: Expr) -> bool:
        """Small integers stand as they are: ``1 - f``, ``2 * x``."""
        return bool(abs(int(integer)) <= MOST_PLAIN)

    def real(self, number: Expr) -> str:
        """One literal for both precisions where rounding it twice is rounding it once."""
        single, double = (self._literal(number, precision) for precision in (SINGLE, DOUBLE))
        if single == nearest(Float(double), SINGLE):
            return f"(real){_spelled(double)}"
        return f"(real)(CELLGEN_PRECISION == 32 ? {single!r} : {double!r})"

    def _literal(self, number: Expr, precision: Precision) -> float:
        value = nearest(number, precision)
        if isinf(value) and not number.is_infinite:
            raise DerivationError(
                f"a derivative holds {in_few_digits(number)}, which has no finite value in "
                f"{precision.name}; scale the values of the equation that it comes from",
                code="derivation.constant",
            )
        return value

    def call(self, row: PointwiseRow, arguments: Sequence[Text]) -> Text:
        """Spell a pointwise function by its row's C."""
        if row.c == "{0}":
            return arguments[0]
        if _CALL.match(row.c):
            return Text(row.c.format(*(argument.text for argument in arguments)), ATOM)
        return Text(row.c.format(*(self._bracket(a, ATOM) for a in arguments)), _LOOSEST)

    def power(self, base: Text, exponent: int) -> Text:
        """Small powers are products: ``c * c``."""
        factor = self._bracket(base, ATOM)
        if exponent <= WRITTEN_AS_PRODUCT:
            return Text(" * ".join([factor] * exponent), PRODUCT if exponent > 1 else base.strength)
        return self.general_power(base, self._number(Integer(exponent)))

    def called(self, name: str) -> str:
        """How a function of the runtime is called: ``cg_tanh`` for ``tanh``."""
        return f"cg_{name}"

    def root(self, base: Text) -> Text:
        """Spell a square root."""
        return Text(f"{self.called('sqrt')}({base.text})", ATOM)

    def general_power(self, base: Text, exponent: Text) -> Text:
        """Spell a power that is not a whole number."""
        return Text(f"{self.called('pow')}({base.text}, {exponent.text})", ATOM)


def _spelled(number: float) -> str:
    return repr(number) if isfinite(number) else f"{'-' if number < 0 else ''}INFINITY"


_c = CNotation()


@lru_cache(maxsize=65536)
def c_expression(expression: Expr) -> str:
    """Print an expression in C; loops of several functions hold the same ones."""
    return _c(expression)


@cache
def c_axis(axis: Expr) -> str:
    """Print an axis length or an offset in C: ``2 * nH``, ``nI + nH``.

    >>> from cellgen.language.value import H, I
    >>> c_axis(2 * H + I)
    'nI + 2 * nH'
    >>> c_axis(H * H)
    'nH * nH'
    """
    terms = [
        [c_dim(str(f)) if f.is_Symbol else str(f) for f in term] for term in axis_factors(axis)
    ]
    return " + ".join(map(" * ".join, terms))


@cache
def c_factor(axis: Expr) -> str:
    """Print an axis length as a factor, in brackets where it is a sum or a product."""
    return c_axis(axis) if is_factor(axis) else f"({c_axis(axis)})"


def c_start(initial: float) -> str:
    """Spell where a state starts in C, or nothing for 0.

    >>> c_start(float("-inf")), c_start(0.5), c_start(0.0)
    ('-(real)INFINITY', '(real)0.5', '')
    """
    if math.isinf(initial):
        return "(real)INFINITY" if initial > 0 else "-(real)INFINITY"
    return f"(real){initial!r}" if initial else ""


def c_factors(axes: Iterable[str]) -> str:
    """Print the product of axis lengths of an interface in C.

    >>> c_factors(["2*H**2", "I + 1"]), c_factors(["H"]), c_factors([])
    ('(2 * nH * nH) * (nI + 1)', 'nH', '')
    """
    return " * ".join(map(_factor_of_interface, axes))


def _factor_of_interface(axis: str) -> str:
    terms = [
        [*([str(many)] if many != 1 or not names else []), *map(c_dim, term_dims(names))]
        for many, names in axis_terms(axis)
    ]
    text = " + ".join(map(" * ".join, terms))
    return text if sum(map(len, terms)) == 1 else f"({text})"
