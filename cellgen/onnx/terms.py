"""A step in the making: text and meaning of each value of a body of ``Scan``.

Input: pieces of text, node by node. Output: lines of a class body, declarations and weights. Each
piece is evaluated as it is written, with the language itself, so that shapes are known and what the
language refuses is refused where it stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sympy
from sympy import Basic, Integer

import cellgen
from cellgen.errors import CellgenError, UsageError
from cellgen.language.ops import shape_of
from cellgen.language.value import Role, Shape, Value
from cellgen.onnx.graph import Array
from cellgen.onnx.source import LANGUAGE, OwnNames, number, tidy

LONGEST = 64
"""Characters of an expression that is written into the one that reads it."""


@dataclass(frozen=True)
class BodyTerm:
    """A value of a body: its text, and what the text means.

    ``array`` is what a constant holds; its text is made when it is read. A condition
    (``is_truth``) is a comparison, no number. A ``flat`` one has no axis in the model but that of
    rows, and one more of length 1 here.
    """

    name: str
    text: str = ""
    meaning: Basic = sympy.S.Zero
    array: Array | None = None
    is_truth: bool = False
    flat: bool = False

    @property
    def shape(self) -> Shape:
        """Its axes."""
        if self.array is not None:
            return tuple(Integer(n) for n in self.array.shape)
        return shape_of(self.meaning)

    @property
    def is_atom(self) -> bool:
        """Whether its text is a name or a number."""
        return self.text.replace(".", "", 1).isalnum() or self.text.isidentifier()


class StepText:
    """Lines of a class body, and the values that they name."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.names = OwnNames()
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.weights: dict[str, Array] = {}
        self._meaning: dict[str, object] = {name: getattr(cellgen, name) for name in LANGUAGE}
        self._meaning["math"] = math
        self._constants: dict[str, BodyTerm] = {}
        self._order = 0

    def declare(self, name: str, kind: str, shape: Shape, role: Role) -> Value:
        """Declare a value under a fresh name that is given."""
        self.declared[name] = kind
        return self._named(name, shape, role)

    def _named(self, name: str, shape: Shape, role: Role) -> Value:
        self._order += 1
        value = Value(name, shape, role, "step", self._order)
        self._meaning[name] = value
        return value

    def new_term(
        self, name: str, text: str, *, is_truth: bool = False, flat: bool = False
    ) -> BodyTerm:
        """An expression that is not written down yet."""
        return BodyTerm(name, text, self._evaluated(text), None, is_truth, flat)

    def write(self, term: BodyTerm, name: str = "") -> BodyTerm:
        """Write an equation for a term; its name is fresh, like that in the model, or given."""
        name = name or self.names.like(named_as(term.name))
        text = tidy(self.number(term))
        shape = shape_of(self._evaluated(text))
        plain = f"keep({text})" if text.isidentifier() else text
        self.lines.append(f"{name} = {plain}")
        value = self._named(name, shape, Role.LOCAL)
        return BodyTerm(term.name, name, value, flat=term.flat)

    def _evaluated(self, text: str) -> Basic:
        try:
            value = eval(compile(text, "<node>", "eval"), {"__builtins__": {}}, self._meaning)
            meaning: Basic = sympy.sympify(value)
            shape_of(meaning)
        except CellgenError as error:
            said = Exception.__str__(error).partition("\n")[0]
            raise UsageError(f"{said} (in {tidy(text)})") from None
        return meaning

    # --- texts of terms -----------------------------------------------------------------------

    def text(self, term: BodyTerm) -> str:
        """The text of a term, within brackets; a constant array is declared as a weight."""
        known = self.constant(term)
        return known.text if known.is_atom else f"({known.text})"

    def number(self, term: BodyTerm) -> str:
        """The text of a term as a number: a condition is 1 or 0."""
        text = self.text(term)
        return f"where({text}, 1, 0)" if term.is_truth else text

    def atom(self, term: BodyTerm) -> str:
        """The text of a term that is read more than once: a name, or a number."""
        known = self.constant(term)
        return known.text if known.is_atom and not known.is_truth else self.write(known).text

    def constant(self, term: BodyTerm) -> BodyTerm:
        """A term with its text: a constant without axes is a number, another one a weight."""
        array = term.array
        if array is None:
            return term
        if term.name not in self._constants:
            self._constants[term.name] = self._constant(term, array)
        return self._constants[term.name]

    def _constant(self, term: BodyTerm, array: Array) -> BodyTerm:
        if not array.shape:
            text = number(float(array), self.dtype)
            return BodyTerm(term.name, text, self._evaluated(text))
        name = self.names.like(named_as(term.name))
        kind = "Bias" if array.ndim == 1 else "Weight"
        role = Role.BIAS if array.ndim == 1 else Role.WEIGHT
        lengths = ", ".join(map(str, array.shape))
        value = self.declare(name, f"{kind}({lengths})", term.shape, role)
        self.weights[name] = np.asarray(array, self.dtype)
        return BodyTerm(term.name, name, value)

    def scalar(self, name: str, array: Array) -> BodyTerm:
        """A number of the graph around the body: a scalar with that default."""
        if name not in self._constants:
            own = self.names.like(named_as(name))
            default = number(float(array), self.dtype)
            value = self.declare(own, f"Scalar({default})", (), Role.SCALAR)
            self._constants[name] = BodyTerm(name, own, value)
        return self._constants[name]


def named_as(name: str) -> str:
    """What a value of a body is called in a cell: without what says that it is of one step.

    Nor what says that a weight is of the second of two directions.
    """
    return re.sub(r"(_reverse)?(_t(_\d+)?)?$", "", name) or name


def fitted(terms: Sequence[BodyTerm]) -> bool:
    """Whether pointwise work of some terms is flat. Raises UsageError where they do not agree."""
    flat = [term for term in terms if term.flat]
    if flat and any(not term.flat and term.shape for term in terms):
        raise UsageError(
            f"{flat[0].name!r} has no axis but that of rows, and meets values with units; expected "
            f"an Unsqueeze before"
        )
    return bool(flat)


def reshaped(text: str, before: Shape, after: Shape) -> str:
    """The text of a value along other axes; the first one, of rows, stays."""
    if before == after:
        return text
    for place in range(1, len(after)):
        if after[place] == 1 and (*after[:place], *after[place + 1 :]) == before:
            return f"expand_dims({text}, {place})"
    flat = text if len(before) == 2 else f"flatten({text})"
    for axis in after[1:-1]:
        flat = f"heads({flat}, {axis})"
    return flat
