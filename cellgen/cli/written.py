"""What ``build`` and ``show --svg`` write, or compare with what stands there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cellgen.errors import BuildError, Failure

if TYPE_CHECKING:
    from cellgen.targets import Source
from cellgen.cli.status import leave, leave_for


def compare(
    folder: Path,
    sources: Sequence[Source],
    whole: bool,
    as_json: bool,
    failures: Sequence[Failure],
) -> None:
    """Print how a folder differs from what its sources would be; ends with 1 where it does."""
    from cellgen.cli import terminal
    from cellgen.files import tree

    differences = tree.differences(folder, sources, whole)
    if as_json:
        records = [{"path": str(d.path), "text": d.text} for d in differences]
        failed = [failure.as_dict() for failure in failures]
        terminal.print_json({"folder": str(folder), "differences": records, "failures": failed})
    else:
        terminal.print_differences(differences)
    leave_for(failures, is_worse=bool(differences))
    if differences:
        leave(f"{folder} differs in {len(differences)} places; `cellgen build` writes it")
    terminal.note(f"{folder} is what {len(sources)} cells generate")


def write_and_compile(
    folder: Path,
    sources: Sequence[Source],
    jobs: int,
    target: str,
    as_json: bool,
    failures: Sequence[Failure],
) -> None:
    """Write sources and compile them; ends with 1 where one fails."""
    from cellgen.cli import terminal
    from cellgen.files import tree
    from cellgen.files.make import compile_all, write_all

    if not sources:
        leave_for(failures)
    written = write_all(folder, sources, target)
    for difference in tree.stale_files(folder, sources):
        terminal.note(f"warning: {difference.text}")
    with terminal.steps("compiling", len(sources)) as steps:
        outcomes = compile_all(written, jobs, steps.done, target)
    if as_json:
        terminal.print_json([o.as_dict() for o in outcomes] + [f.as_dict() for f in failures])
    else:
        terminal.print_outcomes(outcomes)
    uncompiled = [Failure(o.source.name, o.error) for o in outcomes if o.error]
    leave_for([*failures, *uncompiled])


def write_picture(path: Path, picture: str) -> None:
    """Write a picture. Raises BuildError where the file cannot be written."""
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(str(path))
