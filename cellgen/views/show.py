"""Show a cell as mathematics: text, LaTeX or plain data, forward and derived backward.

Input: ``CellPrograms``. Output: strings. Equations are printed from the programs that are compiled;
names that only the compiler made, and that are read once, are written out where they are read.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sympy import Expr

from cellgen.language.cell import Definition
from cellgen.language.latex import Latex
from cellgen.language.notation import Notation, Text
from cellgen.language.value import Role, Shape, Value, format_axis, format_shape
from cellgen.program.over_time import unroll
from cellgen.program.recurrence import Recurrence, recurrence_of
from cellgen.program.ssa import Program, Statement
from cellgen.program.step import CellPrograms
from cellgen.views.layout import LINE, columns_of, fitted

SOURCE = re.compile(r"\s*\(([^()]*(?:\b(?:19|20)\d\d\b|arXiv:)[^()]*)\)")
INTENTIONS = {
    "forward": "one step",
    "backward": "what a step must return; an upstream gradient d_<output> left out counts as zero",
    "input_gradients": "inputs and states that backward leaves out",
    "weight_gradients": "what can wait: once per batch or sequence",
    "streams": "row by row, of all steps at once: what no earlier layer has to wait for",
    "delay_chunk": "a chunk of steps",
    "linear_scan_chunk": "a chunk of steps",
    "max_plus_chunk": "a chunk of steps",
    "memory": "a chunk of steps of each row and head, exact for decays of any strength",
    "memory_factored": "the same of plain products, for rows whose marks are 0",
    "outputs": "row by row, of all steps at once",
}


@dataclass(frozen=True)
class EquationLine:
    """One equation as it is shown; ``again`` marks a forward value that backward recomputes."""

    target: Value
    text: str
    latex: str
    again: bool = False


@dataclass(frozen=True)
class FunctionSection:
    """One function as it is shown."""

    name: str
    arguments: tuple[Value, ...]
    optional: tuple[Value, ...]
    results: tuple[Value, ...]
    lines: tuple[EquationLine, ...]

    @property
    def signature(self) -> str:
        """The function as it is called, optional arguments in brackets."""
        required = [str(value) for value in self.arguments if value not in self.optional]
        parameters = required + [f"{value}=0" for value in self.optional]
        return f"{self.name}({', '.join(parameters)}) -> {', '.join(map(str, self.results))}"


def summary(definition: Definition) -> tuple[str, str]:
    """Split a cell's docstring into what it is and where it comes from (a paper, or nothing)."""
    doc = " ".join(definition.doc.split())
    source = SOURCE.search(doc)
    text = re.split(r"[;.:](?:\s|$)|, with ", SOURCE.sub("", doc), maxsplit=1)[0].rstrip(", ")
    return text, source[1] if source else ""


def sections(programs: CellPrograms) -> tuple[FunctionSection, ...]:
    """What ``cellgen show`` prints: the author's equations, then what was derived from them."""
    definition = programs.definition
    forward = FunctionSection(
        "forward",
        programs["forward"].arguments,
        (),
        programs["forward"].results,
        tuple(_author_line(definition, e.target, False) for e in definition.equations),
    )
    return (forward, *(_derived(definition, p, programs.sources) for p in programs.functions[1:]))


def as_text(programs: CellPrograms, width: int | None = None) -> str:
    """The whole cell as text: declared values, equations with shapes, class of the recurrence.

    An equation has one line, or as many as it takes within ``width`` columns.
    """
    definition = programs.definition
    doc = textwrap.wrap(" ".join(definition.doc.split()), _prose(width) - 10)
    head = fitted(f"{definition.name} ({definition.origin})", width)
    blocks = [f"{head}\n" + _indented(doc or [definition.class_name]), _declared(definition)]
    blocks += [section_text(section, width) for section in sections(programs)]
    blocks.append(fitted(f"recurrence: {recurrence_of(unroll(definition))}", width))
    return "\n\n".join(blocks)


def as_latex(programs: CellPrograms) -> str:
    """One ``align*`` per function (package amsmath, and amssymb for the sets of shapes)."""
    return "\n\n".join(section_latex(section) for section in sections(programs))


def as_latex_forward(programs: CellPrograms) -> str:
    """The author's equations as one ``align*``, without the comment that names the function."""
    return section_latex(sections(programs)[0]).partition("\n")[2]


def as_text_derived(programs: CellPrograms) -> str:
    """The functions that were derived, as text."""
    return "\n\n".join(section_text(section) for section in sections(programs)[1:])


def as_data(programs: CellPrograms) -> dict[str, object]:
    """The same as plain data, for ``--json``."""
    definition = programs.definition
    return {
        "name": definition.name,
        "class": definition.class_name,
        "origin": definition.origin,
        "doc": " ".join(definition.doc.split()),
        "digest": programs.digest,
        "values": [
            {"name": str(v), "role": v.role.value, "shape": format_shape(v.shape)}
            for v in definition.declared
        ],
        "recurrence": _recurrence_data(recurrence_of(unroll(definition))),
        "functions": [section_data(section) for section in sections(programs)],
    }


# --- which equations -----------------------------------------------------------------------------


def _author_line(definition: Definition, target: Value, again: bool) -> EquationLine:
    equation = next(e for e in definition.equations if e.target.name == target.name)
    return EquationLine(
        target, Notation()(equation.expression), Latex()(equation.expression), again
    )


def _derived(
    definition: Definition, program: Program, sources: Mapping[Value, Value]
) -> FunctionSection:
    authored = {str(equation.target.name) for equation in definition.equations}
    return derived(definition, program, authored, sources)


def derived(
    definition: Definition,
    program: Program,
    authored: set[str],
    sources: Mapping[Value, Value],
) -> FunctionSection:
    """A program as it is shown; ``authored`` values by the author's equations."""
    hidden = _written_out(program, authored, sources)
    plain, latex = _InlinedText(hidden), _InlinedLatex(hidden)
    lines: list[EquationLine] = []
    stated = {str(value) for value in program.arguments}
    for statement in program.statements:
        target = statement.target
        if target in hidden:
            continue
        if str(target.name) in authored:
            lines += _with_what_it_reads(definition, target, stated)
        else:
            again = target.role in (Role.LOCAL, Role.TEMPORARY)
            expression = statement.expression
            lines.append(EquationLine(target, plain(expression), latex(expression), again))
    return FunctionSection(
        program.function, program.arguments, program.optional, program.results, tuple(lines)
    )


def _with_what_it_reads(
    definition: Definition, target: Value, stated: set[str]
) -> list[EquationLine]:
    """The author's equation of a value, after those of the values in it that stand nowhere yet.

    A program may hold such a value in parts only.
    """
    if str(target.name) in stated:
        return []
    equations = {str(e.target.name): e for e in definition.equations}
    stated.add(str(target.name))
    read = sorted(equations[str(target.name)].expression.atoms(Value), key=lambda v: v.order)
    lines = [
        line
        for value in read
        if str(value.name) in equations
        for line in _with_what_it_reads(definition, equations[str(value.name)].target, stated)
    ]
    return [*lines, _author_line(definition, target, True)]


def _written_out(
    program: Program, authored: set[str], sources: Mapping[Value, Value]
) -> dict[Value, Expr]:
    """Values that are shown where they are read: parts of arguments, and what is read once."""
    uses = _reads(program, authored)
    arguments, names = set(program.arguments), authored | {str(v) for v in program.arguments}
    hidden: dict[Value, Expr] = {}
    for statement in program.statements:
        target = statement.target
        if target in program.results or _is_authored(target, sources, authored, names):
            continue
        is_part = statement.traits.is_part and statement.operands[0] in arguments
        if is_part or uses.get(target, 0) <= 1:
            hidden[target] = statement.expression
    return hidden


def _reads(program: Program, authored: set[str]) -> dict[Value, int]:
    """How often each value is read by a statement that is printed from the program itself."""
    count: dict[Value, int] = {}
    for statement in program.statements:
        if str(statement.target.name) not in authored:
            for operand in statement.operands:
                count[operand] = count.get(operand, 0) + _occurrences(statement, operand)
    return count


def _occurrences(statement: Statement, value: Value) -> int:
    return int(statement.expression.count(value))


def _is_authored(
    target: Value, sources: Mapping[Value, Value], authored: set[str], known: set[str]
) -> bool:
    """Tell whether a value, or what it is the adjoint of, has a name that the author gave."""
    return str(target.name) in authored or str(sources.get(target)) in known


class _InlinedText(Notation):
    """Text that writes some values out; brackets come from the notation, no term is reordered."""

    def __init__(self, hidden: Mapping[Value, Expr]) -> None:
        self._hidden = hidden

    def _print(self, expression: Expr) -> Text:
        written = self._hidden.get(expression) if isinstance(expression, Value) else None
        return super()._print(expression) if written is None else self._print(written)


class _InlinedLatex(_InlinedText, Latex):
    """LaTeX of the same."""


# --- how they are set ----------------------------------------------------------------------------


def _indented(lines: Sequence[str], by: int = 2) -> str:
    return textwrap.indent("\n".join(lines), " " * by)


def _declared(definition: Definition) -> str:
    rows = []
    for value in definition.declared:
        default = definition.defaults.get(str(value))
        note = f"run-time number, default {default:g}" if default is not None else ""
        rows.append((value.role.value, str(value), note or format_shape(value.shape)))
    return _indented(columns_of(rows))


def section_text(section: FunctionSection, width: int | None = None) -> str:
    """A function as text: its signature, what it is for, its equations."""
    rows = [
        (
            f"{line.target} = {line.text}",
            format_shape(line.target.shape),
            "recomputed" if line.again else "",
        )
        for line in section.lines
    ]
    signature = textwrap.wrap(
        section.signature, _prose(width), subsequent_indent=" " * 4, break_on_hyphens=False
    )
    purpose = textwrap.wrap(
        INTENTIONS[section.name], _prose(width), initial_indent="  # ", subsequent_indent="  # "
    )
    lines = columns_of(rows, None if width is None else width - 2)
    return "\n".join([*signature, *purpose, _indented(lines)])


def _prose(width: int | None) -> int:
    return min(width or LINE, LINE)


def section_latex(section: FunctionSection) -> str:
    """A function as one ``align*``."""
    latex = Latex()
    rows = [
        rf"  {latex.value(line.target)} &= {line.latex} && {_latex_shape(line.target.shape)}"
        for line in section.lines
    ]
    body = " \\\\\n".join(rows)
    return f"% {section.signature}\n\\begin{{align*}}\n{body}\n\\end{{align*}}"


def _latex_shape(shape: Shape) -> str:
    axes = r" \times ".join(_latex_axis(axis) for axis in shape)
    return rf"\in \mathbb{{R}}^{{{axes}}}" if shape else r"\in \mathbb{R}"


def _latex_axis(axis: Expr) -> str:
    text = format_axis(axis).replace("*", "")
    return f"({text})" if "+" in text else text


def section_data(section: FunctionSection) -> dict[str, object]:
    """A function as plain data."""
    return {
        "name": section.name,
        "arguments": [str(value) for value in section.arguments],
        "optional": [str(value) for value in section.optional],
        "results": [str(value) for value in section.results],
        "equations": [
            {
                "target": str(line.target),
                "shape": format_shape(line.target.shape),
                "text": line.text,
                "latex": line.latex,
                "recomputed": line.again,
            }
            for line in section.lines
        ],
    }


def _recurrence_data(recurrence: Recurrence) -> dict[str, object]:
    return {
        "class": recurrence.kind.value,
        "levels": recurrence.levels,
        "states": [
            {"state": str(s.state), "class": s.kind.value, "reason": s.reason}
            for s in recurrence.states
        ],
    }
