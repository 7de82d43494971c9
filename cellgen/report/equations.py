"""The equations of a cell and what is derived from them, as rows to be set.

Input: ``CellPrograms``, or a single ``Program``. Output: ``TypesetFunction`` records.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from cellgen.language.latex import Latex
from cellgen.language.value import format_shape
from cellgen.program.ssa import Program
from cellgen.program.step import CellPrograms
from cellgen.report.mathml import mathml
from cellgen.views.show import INTENTIONS, FunctionSection, sections


@dataclass(frozen=True)
class TypesetEquation:
    """One equation, and the shape of its left side; ``again``: backward forms it once more."""

    target: Markup
    expression: Markup
    shape: str
    again: bool = False


@dataclass(frozen=True)
class TypesetFunction:
    """One function: how it is called, what it is for, its equations."""

    name: str
    signature: str
    intention: str
    rows: tuple[TypesetEquation, ...]


def functions_of(programs: CellPrograms) -> tuple[TypesetFunction, ...]:
    """The author's equations, then each function that was derived."""
    return tuple(_typeset(section) for section in sections(programs))


def statements_of(program: Program) -> TypesetFunction:
    """A program statement by statement, as it is compiled."""
    latex = Latex()
    rows = tuple(
        TypesetEquation(
            mathml(latex.value(statement.target)),
            mathml(latex(statement.expression)),
            format_shape(statement.target.shape),
        )
        for statement in program.statements
    )
    arguments = ", ".join(map(str, program.arguments))
    signature = f"{program.function}({arguments}) -> {', '.join(map(str, program.results))}"
    return TypesetFunction(f"{program.cell}.{program.function}", signature, "", rows)


def _typeset(section: FunctionSection) -> TypesetFunction:
    latex = Latex()
    rows = tuple(
        TypesetEquation(
            mathml(latex.value(line.target)),
            mathml(line.latex),
            format_shape(line.target.shape),
            line.again,
        )
        for line in section.lines
    )
    return TypesetFunction(section.name, section.signature, INTENTIONS[section.name], rows)
