"""The headers of functions that the C of cells calls, and each of these functions by itself.

A function is a block of its header's template, ``exp_f32``, or ``relu`` for both precisions. A
header is the whole template, an export takes blocks (``embedded/functions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cellgen.targets.templates import fill

MATH, ROWS = "cellgen_math.h", "cellgen_rows.h"
IN_HEADERS, INDEX = "CELLGEN_MATH", "int64_t"
"""What stands before a definition in a header, and the type of what counts rows and units."""


class FunctionNames:
    """Spells names, and notes which ones a text has.

    >>> names = FunctionNames("cellgen_{}_f32".format)
    >>> names["exp"], names.read
    ('cellgen_exp_f32', {'exp'})
    """

    def __init__(self, spell: Callable[[str], str]) -> None:
        self.spell, self.read = spell, set[str]()

    def __getitem__(self, name: str) -> str:
        """A template says ``{{ f32.exp }}``."""
        self.read.add(name)
        return self.spell(name)


@dataclass(frozen=True)
class RowFunctions:
    """What the template of ``cellgen_rows.h`` reads: words of C, and names of functions."""

    math: str
    real: str
    index: str
    both: FunctionNames


@dataclass(frozen=True)
class MathFunctions:
    """What that of ``cellgen_math.h`` reads: functions of a precision, of both, of C's own."""

    math: str
    real: str
    f32: FunctionNames
    f64: FunctionNames
    both: FunctionNames
    libm: FunctionNames
    constant: FunctionNames
    is_export: bool


def constant_names() -> FunctionNames:
    """Constants have their names everywhere."""
    return FunctionNames("CELLGEN_{}".format)


def template_of(header: str) -> str:
    """The template of a header."""
    return f"include/{header}.j2"


def function_headers() -> dict[str, str]:
    """The headers by name."""
    both = FunctionNames("cellgen_{}_##S".format)
    of_math = MathFunctions(
        math=IN_HEADERS,
        real="REAL",
        f32=FunctionNames("cellgen_{}_f32".format),
        f64=FunctionNames("cellgen_{}_f64".format),
        both=both,
        libm=FunctionNames(str.upper),
        constant=constant_names(),
        is_export=False,
    )
    of_rows = RowFunctions(IN_HEADERS, "REAL", INDEX, both)
    return {MATH: fill(template_of(MATH), of_math), ROWS: fill(template_of(ROWS), of_rows)}
