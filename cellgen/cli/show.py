"""``cellgen show``: a cell as equations, as its plan, in chunks, or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from cellgen.cli.status import ending
from cellgen.cli.written import write_picture
from cellgen.errors import UsageError
from cellgen.runtime.backend import DEFAULT
from cellgen.runtime.progress import progress


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
        from cellgen.pipeline import programs_of, schedules_of
        from cellgen.views import chunks
        from cellgen.views import show as shown
        from cellgen.views.find import find_one

        chosen = find_one(cell)
        if svg is not None:
            from cellgen.views.graph import draw

            write_picture(svg, draw(chosen.definition))
            return
        with progress(f"deriving {cell}"):
            if schedule:
                answer: object = schedules_of(chosen, target)
            elif form == "chunk":
                spelled = (
                    chunks.as_data if as_json else chunks.as_latex if latex else chunks.as_text
                )
                answer = spelled(chosen.definition)
            else:
                written = shown.as_data if as_json else shown.as_latex if latex else shown.as_text
                answer = written(programs_of(chosen))
        terminal.print_json(answer) if as_json else typer.echo(answer)
