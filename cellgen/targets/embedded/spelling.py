"""Spell lengths, numbers and expressions of an export in C99: sizes are macros of the cell's own.

Input: expressions with the names that values have in C. Output: texts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np
from sympy import Expr

from cellgen.language.constants import DOUBLE, SINGLE, nearest
from cellgen.language.notation import Text
from cellgen.language.ops import PointwiseRow
from cellgen.language.value import Dim, Shape, axis_factors, is_factor
from cellgen.runtime.names import spelled
from cellgen.targets.c_expressions import CNotation

DTYPES = ("float", "double")
"""Types that an export computes in."""

BYTES = {"float": 4, "double": 8}

_OWN = re.compile(r"\bcg_(\w+)\(")
"""A function of the runtime in the C of a row."""


def number(value: float, dtype: str) -> str:
    """Spell a number as a literal of a type.

    >>> number(0.1, "float"), number(1.0, "double"), number(float("-inf"), "float")
    ('0.1f', '1.0', '-INFINITY')
    """
    if math.isinf(value):
        infinity = "INFINITY" if dtype == "float" else "(double)INFINITY"
        return infinity if value > 0 else f"-{infinity}"
    if dtype == "double":
        return repr(float(value))
    short = str(np.float32(value))
    return f"{short}f" if set(".e") & set(short) else f"{short}.0f"


@dataclass(frozen=True)
class Lengths:
    """Spells axis lengths with the macros of a cell: ``GRU_H`` of ``gru``."""

    prefix: str

    def name(self, dim: str) -> str:
        """The macro of a dimension."""
        return f"{self.prefix}_{spelled(dim)}"

    def __call__(self, axis: Expr) -> str:
        """Spell a length: ``GRU_I + 2 * GRU_H``."""
        terms = [
            [self.name(str(f)) if f.is_Symbol else str(f) for f in term]
            for term in axis_factors(axis)
        ]
        return " + ".join(map(" * ".join, terms))

    def factor(self, axis: Expr) -> str:
        """Spell a length as a factor, in brackets where it is a sum or a product."""
        return self(axis) if is_factor(axis) else f"({self(axis)})"

    def product(self, shape: Shape) -> str:
        """Spell how many elements a shape has: ``GRU_B * GRU_H``."""
        return " * ".join(self.factor(axis) for axis in shape) or "1"

    def bracketed(self, shape: Shape) -> str:
        """The same as a factor."""
        text = self.product(shape)
        return f"({text})" if len(shape) > 1 else text

    def times(self, index: str, length: Expr) -> str:
        """Spell an index by a length; nothing for an index of 0."""
        return index if length == 1 else f"{index} * {self.factor(length)}"


class NotationC99(CNotation):
    """C over one type: literals of that type, dimensions as numbers of it.

    Functions of the runtime are the export's own, under its name: ``gru_cg_tanh``. ``calls`` are
    those that it has spelled.
    """

    def __init__(self, dtype: str, lengths: Lengths, name: str) -> None:
        self.dtype, self.lengths, self.name = dtype, lengths, name
        self.calls: set[str] = set()

    def called(self, name: str) -> str:
        """How a function of the runtime is called."""
        self.calls.add(name)
        return f"{self.name}_cg_{name}"

    def dim(self, dim: Dim) -> str:
        """Spell a dimension as a number."""
        return f"({self.dtype}){self.lengths.name(str(dim.name))}"

    def real(self, number_: Expr) -> str:
        """Spell a literal, rounded once."""
        precision = SINGLE if self.dtype == "float" else DOUBLE
        return number(nearest(number_, precision), self.dtype)

    def call(self, row: PointwiseRow, arguments: list[Text]) -> Text:  # type: ignore[override]
        """Spell a function by its row's C, which may say ``real``."""
        typed = re.sub(r"\breal\b", self.dtype, row.c)
        own = _OWN.sub(lambda match: f"{self.called(match[1])}(", typed)
        return super().call(replace(row, c=own), arguments)
