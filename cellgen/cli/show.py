"""``cellgen show``: a cell as equations, as its plan, in chunks, or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellgen.cli.explained import (
    FORMS,
    ONE_CELL,
    FormOption,
    JsonOption,
    TargetOption,
    backend_of,
    require_form,
)
from cellgen.cli.screen import columns
from cellgen.cli.status import ending
from cellgen.cli.written import write_picture
from cellgen.errors import UsageError
from cellgen.runtime.backend import DEFAULT
from cellgen.runtime.progress import progress

if TYPE_CHECKING:
    from cellgen.language.cell import Cell


def show(
    cell: Annotated[str, typer.Argument(metavar=ONE_CELL, help="The cell to show.")],
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Print the plan; with --target its own as well.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the graph of a step.")
    ] = None,
    form: FormOption = FORMS[0],
    target: TargetOption = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show a cell's equations, its derived backward, its plan, or its graph as a picture.

    With --form chunk, its layers over time and the programs of whole chunks.
    """
    with ending():
        backend_of(target)
        require_form(form)
        if form != FORMS[0] and (schedule or svg is not None):
            raise UsageError(
                f"--form {form} has no plan and no picture; leave --schedule, --svg out"
            )
        if target != DEFAULT and not schedule:
            raise UsageError("--target decides nothing without --schedule; give both")
        if latex + schedule + as_json + (svg is not None) > 1:
            raise UsageError("give one of --latex, --schedule, --svg and --json")
        from cellgen.cli import terminal
        from cellgen.views.find import find_one

        chosen = find_one(cell)
        if svg is not None:
            from cellgen.views.graph import draw

            write_picture(svg, draw(chosen.definition))
            return
        with progress(f"deriving {cell}"):
            answer = _plan(chosen, target) if schedule else _equations(chosen, form, latex, as_json)
        if as_json:
            terminal.print_json(answer)
        else:
            typer.echo(answer if latex else terminal.with_headings(str(answer)))


def _plan(cell: type[Cell], target: str) -> str:
    from cellgen.pipeline import schedules_of
    from cellgen.views.layout import fitted

    return fitted(schedules_of(cell, target), columns())


def _equations(cell: type[Cell], form: str, latex: bool, as_json: bool) -> object:
    """Text as wide as the terminal, LaTeX, or plain data."""
    from cellgen.pipeline import programs_of
    from cellgen.views import chunks
    from cellgen.views import show as views

    if form == "chunk":
        if as_json or latex:
            return (chunks.as_data if as_json else chunks.as_latex)(cell.definition)
        return chunks.as_text(cell.definition, columns())
    programs = programs_of(cell)
    if as_json or latex:
        return (views.as_data if as_json else views.as_latex)(programs)
    return views.as_text(programs, columns())
