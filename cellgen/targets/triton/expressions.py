"""Print pointwise expressions in Triton, in the order and with the names of the equations.

``SPELLINGS`` says how each row of the table of pointwise functions is written; ``FUNCTIONS`` has
the text of those that Triton lacks, or gives to too few digits. A module holds the ones it calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import isfinite

from sympy import Expr, Integer, Rational, preorder_traversal

from cellgen.errors import DerivationError
from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.graph import WRITTEN_AS_PRODUCT
from cellgen.language.notation import ATOM, PRODUCT, Notation, Text
from cellgen.language.ops import Pointwise, PointwiseRow
from cellgen.language.ops.pointwise_triton import (
    FUNCTIONS,
    REFUSED,
    SPELLINGS,
    functions_called,
)
from cellgen.language.value import Dim, Value
from cellgen.targets.triton.names import dimension, triton_name

NOT_SPELLED = "triton.pointwise"
"""The code of the error for a function that Triton cannot spell."""


_IS_CALL = re.compile(r"[\w.]+\(\{\d\}(, \{\d\})*\)\Z")


class TritonNotation(Notation):
    """Triton: blocks of numbers, and functions of ``triton.language`` or of the module."""

    def value(self, value: Value) -> str:
        """Spell a value by its name, in letters that files have everywhere."""
        return triton_name(value)

    def dim(self, dim: Dim) -> str:
        """Spell a dimension as a number that the kernel takes."""
        return f"{dimension(dim)}_real"

    def real(self, number: Expr) -> str:
        """Spell a number: the type that it meets decides its digits."""
        return triton_number(nearest(number, DOUBLE))

    def call(self, row: PointwiseRow, arguments: Sequence[Text]) -> Text:
        """Spell a pointwise function. Raises DerivationError for one that is refused."""
        template = spelling_of(row.name)
        if template == "{0}":
            return arguments[0]
        if _IS_CALL.match(template):
            return Text(template.format(*(argument.text for argument in arguments)), ATOM)
        return Text(template.format(*(self._bracket(a, ATOM) for a in arguments)), ATOM)

    def power(self, base: Text, exponent: int) -> Text:
        """Small powers are products: ``c * c``."""
        factor = self._bracket(base, ATOM)
        if exponent <= WRITTEN_AS_PRODUCT:
            return Text(" * ".join([factor] * exponent), PRODUCT if exponent > 1 else base.strength)
        return self.general_power(base, self._number(Integer(exponent)))

    def root(self, base: Text) -> Text:
        """Spell a square root."""
        return Text(f"square_root({base.text})", ATOM)

    def general_power(self, base: Text, exponent: Text) -> Text:
        """Spell a power that is not a whole number."""
        return Text(f"power({base.text}, {exponent.text})", ATOM)


def spelling_of(name: str) -> str:
    """Triton of a pointwise function, by the name of its row.

    Raises:
        DerivationError: it is refused, with the reason; or the table lacks it.
    """
    spelled = SPELLINGS.get(name)
    if spelled is not None:
        return spelled
    reason = REFUSED.get(name, "the table of spellings lacks it: a fault of cellgen")
    raise DerivationError(f"{name} is not spelled in Triton: {reason}", code=NOT_SPELLED)


_triton = TritonNotation()


@lru_cache(maxsize=65536)
def triton_expression(expression: Expr) -> str:
    """Print an expression in Triton."""
    return _triton(expression)


def triton_number(number: float) -> str:
    """Print a number."""
    return repr(number) if isfinite(number) else f'float("{number}")'


def functions_of(expressions: Iterable[Expr]) -> list[str]:
    """Texts of the functions that some expressions call, each behind those that it calls itself."""
    wanted = {name for expression in expressions for name in _called(expression)}
    for name, text in reversed(FUNCTIONS.items()):
        if name in wanted:
            wanted |= functions_called(text)
    return [text.strip() for name, text in FUNCTIONS.items() if name in wanted]


def _called(expression: Expr) -> Iterator[str]:
    for node in preorder_traversal(expression):
        if isinstance(node, Pointwise):
            yield from functions_called(spelling_of(node.row.name))
        elif node.is_Pow and abs(node.exp) == Rational(1, 2):
            yield "square_root"
        elif node.is_Pow and not (node.exp.is_Integer and abs(node.exp) <= WRITTEN_AS_PRODUCT):
            yield "power"
