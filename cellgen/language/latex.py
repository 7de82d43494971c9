"""Print expressions and names in LaTeX, for documents.

Input: pointwise expressions, operator nodes, names. Output: LaTeX, in the order of ``notation``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from sympy import Expr

from cellgen.language.graph import values_in
from cellgen.language.notation import (
    ATOM,
    POWER,
    PRODUCT,
    UNARY,
    Notation,
    Text,
    attributes_text,
    slices_text,
)
from cellgen.language.ops import PointwiseRow, operator_of
from cellgen.language.value import Apply, B, Dim, Value, format_axis
from cellgen.runtime.names import GREEK, of_gradient


class Latex(Notation):
    """LaTeX for documents; names become subscripted symbols."""

    times: ClassVar[str] = r" \, "

    def between(self, left: Expr, right: Expr) -> str:
        r"""Arrays are multiplied by elements with \odot, since matrices stand side by side."""
        are_arrays = all(any(v.shape for v in values_in(side)) for side in (left, right))
        return r" \odot " if are_arrays else self.times

    def real(self, number: Expr) -> str:
        """Spell a number that is no plain integer; with a power of ten where it has one."""
        digits, *exponents = re.split("e", super().real(number))
        if not exponents:
            return digits
        factor = {"1.0": "", "1": "", "-1.0": "-", "-1": "-"}.get(digits, rf"{digits} \cdot ")
        return f"{factor}10^{{{int(exponents[0])}}}"

    def value(self, value: Value) -> str:
        """Spell a value."""
        return latex_name(str(value.name))

    def dim(self, dim: Dim) -> str:
        """Spell a dimension."""
        return str(dim.name)

    def call(self, row: PointwiseRow, arguments: Sequence[Text]) -> Text:
        """Spell a pointwise function of its arguments."""
        texts = [argument.text for argument in arguments]
        if row.comparison:
            return Text(rf"[{texts[0]} {row.latex} {texts[1]}]", ATOM)
        if row.is_strong:
            factors = (self._bracket(argument, UNARY) for argument in arguments)
            return Text(r" \odot ".join(factors), PRODUCT)
        if row.latex == "{0}":
            return arguments[0]
        if "{0}" in row.latex or "{condition}" in row.latex:
            condition = re.sub(r"^\[([^][]*)\]$", r"\1", texts[0])
            return Text(row.latex.format(*texts, condition=condition), ATOM)
        name = row.latex or rf"\mathrm{{{latex_text(row.name)}}}"
        return Text(rf"{name}\left({', '.join(texts)}\right)", ATOM)

    def power(self, base: Text, exponent: int) -> Text:
        """Spell a whole power."""
        return Text(f"{self._bracket(base, ATOM)}^{{{exponent}}}", POWER)

    def fraction(self, numerator: Text, denominator: Text) -> Text:
        """Spell a quotient."""
        return Text(rf"\frac{{{numerator.text}}}{{{denominator.text}}}", POWER)

    def root(self, base: Text) -> Text:
        """Spell a square root."""
        return Text(rf"\sqrt{{{base.text}}}", ATOM)

    def operator(self, node: Apply) -> Text:
        """Spell an operator of its operands."""
        row = operator_of(node)
        if row.is_onto:
            return self._onto(node)
        operands = [self._print(operand) for operand in node.operands]
        if row.latex:
            bound = [self._bracket(operand, UNARY) for operand in operands]
            return Text(row.latex.format(*bound), PRODUCT)
        if row.is_join:
            below = node.attributes[0] == 0
            joined = (r" \\ " if below else " & ").join(operand.text for operand in operands)
            return Text(rf"\begin{{bmatrix}} {joined} \end{{bmatrix}}", ATOM)
        if row.is_part or row.is_reshape:
            below = _axes(node) if row.is_reshape else f"[{slices_text(node).replace('*', '')}]"
            return Text(f"{{{self._bracket(operands[0], ATOM)}}}_{{{below}}}", ATOM)
        if row.is_sum:
            return Text(rf"\textstyle\sum {self._bracket(operands[0], PRODUCT)}", PRODUCT)
        listed = ", ".join(operand.text for operand in operands)
        return Text(
            rf"\mathrm{{{latex_text(node.op)}}}\left({listed}{attributes_text(node)}\right)", ATOM
        )

    def _bracket(self, piece: Text, at_least: int) -> str:
        return piece.text if piece.strength >= at_least else rf"\left({piece.text}\right)"


def _axes(node: Apply) -> str:
    """The shape that a value is brought into, without a batch."""
    shape = node.attributes[node.attributes[:1] == (B,) :]
    return r" \times ".join(map(format_axis, shape)).replace("*", r" \cdot ")


_GREEK = frozenset(
    """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau
    upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi
    Omega""".split()  # noqa: SIM905 - three lines of words, not thirty
)
"""Words for letters that LaTeX has a command for."""

_LATIN = dict(zip("ΑΒΕΖΗΙΚΜΝΟοΡΤΧ", "ABEZHIKMNOoPTX", strict=True))
"""Letters that LaTeX has no command for, since they look like Latin ones."""


_GREEK_LETTER = re.compile(f"([{''.join(GREEK)}])")


def latex_text(name: str) -> str:
    """Escape a name for LaTeX's text."""
    return name.replace("_", r"\_")


def latex_name(name: str) -> str:
    r"""Spell a value's name: ``h_prev`` is h_{t-1}, ``c_bar`` is \bar{c}, ``w_ru`` is w_{ru}.

    >>> latex_name("d_h_prev")
    '\\partial h_{t-1}'
    """
    if differentiated := of_gradient(name):
        return rf"\partial {latex_name(differentiated)}"
    head, *subscripts = _accented(name.replace("__", "_").rstrip("_").split("_"))
    return f"{head}_{{{','.join(subscripts)}}}" if subscripts else head


def _accented(words: Sequence[str]) -> list[str]:
    """Spell the words of a name; ``bar`` and ``hat`` sit on the word before them."""
    pieces: list[str] = []
    for word in words:
        if word in ("bar", "hat") and pieces:
            pieces[-1] = rf"\{word}{{{pieces[-1]}}}"
        elif word == "prev" and pieces:
            pieces.append("t-1")
        else:
            pieces.append(_letter(word, "mathrm" if pieces else "mathit"))
    return pieces


def _letter(word: str, style: str) -> str:
    if word in _GREEK:
        return rf"\{word}"
    letters = _GREEK_LETTER.split(word)
    if len(letters) > 1:
        return " ".join(_greek_letter(part, style) for part in letters if part)
    return word if len(word) <= (2 if style == "mathrm" else 1) else rf"\{style}{{{word}}}"


def _greek_letter(part: str, style: str) -> str:
    """Spell a piece of a word: one Greek letter, or what stands between two."""
    if part in _LATIN:
        return rf"\mathrm{{{_LATIN[part]}}}"
    return _letter(GREEK.get(part, part), style)


latex = Latex()
