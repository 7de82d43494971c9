"""Print expressions as people write them: in declaration order, with the author's names.

Input: pointwise expressions and operator nodes. Output: text. ``latex`` and the notations of
targets derive from the same class, so that text, documents and code agree term by term.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, total_ordering
from itertools import pairwise
from typing import ClassVar, NamedTuple

import sympy
from sympy import Expr

from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.graph import values_in
from cellgen.language.ops import Pointwise, PointwiseRow, operator_of
from cellgen.language.value import Apply, Dim, Value, format_axis, format_shape

SUM, PRODUCT, UNARY, POWER, ATOM = range(5)
"""Binding strengths."""

_LAST = 10**9


class Text(NamedTuple):
    """A printed piece and how strongly its outermost operator binds."""

    text: str
    strength: int


@total_ordering
class OrderKey:
    """Orders terms and factors by the declarations of the values in them, constants last.

    By their text where those are the same, which is printed for no others.
    """

    __slots__ = ("declared", "expression")

    def __init__(self, expression: Expr) -> None:
        self.expression = expression
        self.declared = _declared_orders(expression)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrderKey) or self.declared != other.declared:
            return False
        return self.expression is other.expression or self.text == other.text

    def __lt__(self, other: OrderKey) -> bool:
        if self.declared != other.declared:
            return self.declared < other.declared
        return self.text < other.text

    __hash__ = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """The expression as text."""
        return sympy_text(self.expression)


order_key = OrderKey


@lru_cache(maxsize=65536)
def _declared_orders(expression: Expr) -> tuple[bool, tuple[int, ...]]:
    values = values_in(expression)
    return not values, tuple(sorted(value.order for value in values))


@lru_cache(maxsize=4096)
def sympy_text(expression: Expr) -> str:
    """Write an expression as SymPy does."""
    return str(expression)


class Notation:
    """Plain text. Subclasses override the spelling of pieces, never the order or the brackets."""

    times: ClassVar[str] = " * "
    first_factor: ClassVar[int] = UNARY

    def __call__(self, expression: Expr) -> str:
        """Spell an expression."""
        return self._print(expression).text

    # --- pieces that subclasses spell -------------------------------------------------------

    def value(self, value: Value) -> str:
        """Spell a value."""
        return str(value.name)

    def dim(self, dim: Dim) -> str:
        """Spell a dimension."""
        return str(dim.name)

    def is_plain(self, integer: Expr) -> bool:
        """Whether an integer is written in digits."""
        return abs(int(integer)) < 10**24

    def real(self, number: Expr) -> str:
        """Spell a number that is no plain integer."""
        return repr(nearest(number, DOUBLE))

    def call(self, row: PointwiseRow, arguments: Sequence[Text]) -> Text:
        """Spell a pointwise function of its arguments."""
        texts = [argument.text for argument in arguments]
        if row.comparison:
            return Text(f"({texts[0]} {row.comparison} {texts[1]})", ATOM)
        return Text(f"{row.name}({', '.join(texts)})", ATOM)

    def power(self, base: Text, exponent: int) -> Text:
        """Spell a whole power."""
        return Text(f"{self._bracket(base, ATOM)}**{exponent}", POWER)

    def fraction(self, numerator: Text, denominator: Text) -> Text:
        """Spell a quotient."""
        top, bottom = self._bracket(numerator, PRODUCT), self._bracket(denominator, UNARY)
        return Text(f"{top} / {bottom}", PRODUCT)

    def between(self, left: Expr, right: Expr) -> str:
        """What stands between two factors of a product by elements."""
        return self.times

    def root(self, base: Text) -> Text:
        """Spell a square root."""
        return Text(f"sqrt({base.text})", ATOM)

    def general_power(self, base: Text, exponent: Text) -> Text:
        """Spell a power that is not a whole number."""
        return Text(f"pow({base.text}, {exponent.text})", ATOM)

    def operator(self, node: Apply) -> Text:
        """Spell an operator of its operands."""
        row = operator_of(node)
        if row.is_onto:
            return self._onto(node)
        operands = [self._print(operand) for operand in node.operands]
        if row.text:
            bound = [self._bracket(operand, UNARY) for operand in operands]
            return Text(row.text.format(*bound), PRODUCT)
        texts = ", ".join(operand.text for operand in operands)
        if row.is_part:
            return Text(f"{self._bracket(operands[0], ATOM)}[{slices_text(node)}]", ATOM)
        if row.is_join:
            axis = "" if node.attributes[0] != 0 else ", axis=0"
            return Text(f"concat({texts}{axis})", ATOM)
        if row.is_sum or row.is_reshape:
            name = "sum" if row.is_sum else node.op
            return Text(f"{name}({texts} -> {format_shape(node.attributes)})", ATOM)
        return Text(f"{node.op}({texts}{attributes_text(node)})", ATOM)

    def _onto(self, node: Apply) -> Text:
        """``seed + product``, as the sum that it is."""
        seed, *factors = node.operands
        contraction = operator_of(node).product
        assert contraction is not None
        product = Apply(contraction.plain, factors, node.attributes)
        return Text(f"{self._bracket(self._print(seed), SUM)} + {self._print(product).text}", SUM)

    # --- order and brackets -----------------------------------------------------------------

    def _bracket(self, piece: Text, at_least: int) -> str:
        return piece.text if piece.strength >= at_least else f"({piece.text})"

    def _print(self, expression: Expr) -> Text:  # noqa: PLR0911 - one case a return
        if isinstance(expression, Value):
            return Text(self.value(expression), ATOM)
        if isinstance(expression, Dim):
            return Text(self.dim(expression), ATOM)
        if expression.is_Number:
            return self._number(expression)
        if isinstance(expression, Apply):
            return self.operator(expression)
        if isinstance(expression, Pointwise):
            return self.call(expression.row, [self._print(a) for a in expression.args])
        if expression.is_Add:
            return self._sum(expression)
        if expression.is_Mul:
            return self._product(expression)
        if expression.is_Pow:
            return self._power(expression)
        raise TypeError(f"no notation for {type(expression).__name__}: {expression}")

    def _number(self, number: Expr) -> Text:
        strength = ATOM if number >= 0 else UNARY
        if number.is_Integer and self.is_plain(number):
            return Text(str(number), strength)
        if self._is_fraction(number):
            bottom = Text(self.real(sympy.Integer(number.q)), ATOM)
            return self.fraction(self._number(sympy.Integer(number.p)), bottom)
        return Text(self.real(number), strength)

    def _is_fraction(self, number: Expr) -> bool:
        """Whether a number is written as one integer divided by another."""
        if not number.is_Rational or number.is_Integer or _is_binary(number):
            return False
        return self.is_plain(sympy.Integer(number.p)) and self.is_plain(sympy.Integer(number.q))

    def _sum(self, expression: Expr) -> Text:
        common, rest = _taken_out(expression)
        if common != 1:
            return self._product(sympy.Mul(common, rest, evaluate=False))
        terms = sorted(expression.args, key=lambda term: (_is_negative(term), order_key(term)))
        pieces = [self._bracket(self._print(terms[0]), SUM)]
        for term in terms[1:]:
            negative = _is_negative(term)
            piece = self._bracket(self._print(-term if negative else term), PRODUCT)
            pieces.append(f" - {piece}" if negative else f" + {piece}")
        return Text("".join(pieces), SUM)

    def _product(self, expression: Expr) -> Text:
        if _is_negative(expression):
            return Text(f"-{self._bracket(self._print(-expression), PRODUCT)}", UNARY)
        top, bottom = [], []
        for factor in _factors_of(expression):
            if self._is_fraction(factor):
                top.append(sympy.Integer(factor.p))
                bottom.append(sympy.Integer(factor.q))
            elif factor.is_Pow and factor.exp.is_Number and factor.exp < 0:
                bottom.append(factor.base ** (-factor.exp))
            else:
                top.append(factor)
        numerator = self._factors([factor for factor in top if factor != 1])
        return self.fraction(numerator, self._factors(bottom)) if bottom else numerator

    def _factors(self, factors: Sequence[Expr]) -> Text:
        factors = _one_integer(factors)
        if not factors:
            return self._print(sympy.Integer(1))
        if len(factors) == 1:
            return self._print(factors[0])
        ordered = sorted(factors, key=lambda factor: (not factor.is_Number, order_key(factor)))
        product = self._bracket(self._print(ordered[0]), self.first_factor)
        for left, right in pairwise(ordered):
            product += self.between(left, right) + self._bracket(self._print(right), UNARY)
        return Text(product, PRODUCT)

    def _power(self, expression: Expr) -> Text:
        base, exponent = expression.args
        if exponent.is_Integer and exponent > 0:
            return self.power(self._print(base), int(exponent))
        if exponent == sympy.Rational(1, 2):
            return self.root(self._print(base))
        if exponent.is_Number and exponent < 0:
            return self.fraction(self._print(sympy.Integer(1)), self._print(base ** (-exponent)))
        return self.general_power(self._print(base), self._print(exponent))


def _one_integer(factors: Sequence[Expr]) -> list[Expr]:
    """Factors with one integer at most: in C a product of two would be one of C's integers."""
    integers = [factor for factor in factors if factor.is_Integer]
    if len(integers) < 2:
        return list(factors)
    return [sympy.Mul(*integers), *(factor for factor in factors if not factor.is_Integer)]


def _is_negative(term: Expr) -> bool:
    return bool(term.could_extract_minus_sign()) and (
        bool(term.is_Number) or (bool(term.is_Mul) and bool(term.args[0].is_Number))
    )


def _taken_out(expression: Expr) -> tuple[Expr, Expr]:
    """The number by which every term of a sum is multiplied, or 1, and the sum without it.

    SymPy multiplies sums out, which people do not, and one division is faster than several. Sums of
    negative terms stay as they are.
    """
    numbers = {abs(term.as_coeff_Mul()[0]) for term in expression.args}
    number = numbers.pop()
    if numbers or not number.is_Rational or all(_is_negative(term) for term in expression.args):
        return sympy.Integer(1), expression
    return number, sympy.Add(*(term / number for term in expression.args))


def _factors_of(product: Expr) -> list[Expr]:
    """The factors of a product, numbers that all terms of a sum share taken out of it."""
    pairs = (_taken_out(f) if f.is_Add else (f, sympy.Integer(1)) for f in product.args)
    return [factor for pair in pairs for factor in pair if factor != 1]


def _is_binary(number: Expr) -> bool:
    """A rational that a float holds exactly, such as 1/2."""
    denominator = int(number.q) if number.is_Rational else 0
    return denominator > 0 and denominator & (denominator - 1) == 0


def attributes_text(node: Apply) -> str:
    """Attributes that tell one use of an operator from another, behind its operands."""
    if not operator_of(node).prints_attributes:
        return ""
    return "; " + ", ".join(map(str, node.attributes))


def slices_text(node: Apply) -> str:
    """What a part takes of its operand: ``:, H:2*H``."""
    axis, start, size = node.attributes
    first = "" if start == 0 else format_axis(start)
    return ", ".join([":"] * int(axis) + [f"{first}:{format_axis(start + size)}"])


_text = Notation()


@lru_cache(maxsize=65536)
def text(expression: Expr) -> str:
    """Print an expression as plain text."""
    return _text(expression)
