"""What the command line prints: tables and JSON on stdout, progress and messages on stderr.

Input: the records that commands return. Output: text; colours and bars only on a terminal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from cellgen.cli.screen import BOLD, BOLD_RED, GREEN, PIPE_WIDTH, YELLOW, columns, marked
from cellgen.runtime.progress import without_bars
from cellgen.views.layout import HANGING, broken, fitted

if TYPE_CHECKING:
    from cellgen.cli.doctor import Finding
    from cellgen.files.make import Outcome
    from cellgen.files.tree import Difference
    from cellgen.proof.check import Report

VERDICTS = {"ok": GREEN, "failed": BOLD_RED, "skipped": YELLOW}
LEAST_NOTES = 40
"""Columns of a note beside what it is on; where there are fewer it stands below."""
FOUND_AT = 31
"""The column at which what the doctor found stands."""
HEADING = re.compile(r"^[^\s(:][^(:\n]*", re.MULTILINE)
"""What a line begins with that is not indented: up to its arguments, or to what it says."""


def print_json(data: object) -> None:
    """Print plain data for machines."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """Say something on stderr."""
    typer.echo(message, err=True)


def with_headings(text: str) -> str:
    """The text with its headings in bold, where stdout shows styles."""
    return HEADING.sub(lambda heading: marked(heading[0], BOLD), text)


# --- progress ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskSteps:
    """A task of several steps; ``say`` tells what is going on, ``done`` that a step is over."""

    bar: Progress
    task: TaskID
    what: str

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self.bar.update(self.task, description=text)

    def done(self, name: str, state: str) -> None:
        """Tell that a step is over, and how it ended."""
        self.bar.advance(self.task)
        self.bar.console.print(f"{self.what} {name}: {state}")

    def quietly(self, name: str, state: str) -> None:
        """Count a step without a line of its own."""
        self.bar.update(self.task, advance=1, description=f"{self.what} {name}")


@contextmanager
def steps(what: str, total: int) -> Iterator[TaskSteps]:
    """Show progress on stderr: a bar on a terminal, and a line for each step in either case."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        without_bars(),
        Progress(
            *columns,
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar,
    ):
        yield TaskSteps(bar, bar.add_task(what, total=total), what)


# --- results -------------------------------------------------------------------------------------


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print what became of each cell that was built."""
    for outcome in outcomes:
        written = len(outcome.changed)
        files = f", {written} file{'s' * (written != 1)} written" if written else ""
        typer.echo(f"{outcome.folder}: {outcome.state}{files}")


def print_differences(differences: Sequence[Difference]) -> None:
    """Print unified diffs, coloured on a terminal."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    out = _out()
    for difference in differences:
        for line in difference.text.splitlines():
            style = styles.get(line[:1], "") if difference.is_diff else ""
            out.print(escape(line), style=style, soft_wrap=True)


def print_reports(reports: Sequence[Report]) -> None:
    """Print a table of claims for each cell, and how many cells are proved."""
    width = columns() or PIPE_WIDTH
    for report in reports:
        typer.echo(marked(fitted(f"{report.cell} (seed {report.seed})", width), BOLD))
        for line in claims(report, width):
            typer.echo(line)
        typer.echo()
    bad = [report.cell for report in reports if not report.ok]
    failed = f"; failed: {', '.join(bad)}" if bad else ""
    skipped = sum(row.verdict == "skipped" for report in reports for row in report.rows)
    left_out = f"; {skipped} claims skipped" if skipped else ""
    proved = f"{len(reports) - len(bad)} of {len(reports)} cells proved"
    typer.echo(proved + failed + left_out)


def claims(report: Report, width: int) -> Iterator[str]:
    """The claims of a report, each with its figures and what it is over.

    That stands beside it, or below where a terminal is narrow; no word of it is left out.
    """
    names = max([len("claim"), *(len(row.name) for row in report.printed)])
    figures = len(_figures("error", "bar", "verdict"))
    beside = width - names - 2 - figures - 2
    is_beside = beside >= LEAST_NOTES
    if names + 2 + figures > width:  # below, each claim begins a line of its own
        names = 0
    yield marked(f"{'claim':{names}}  {_figures('error', 'bar', 'verdict')}  over", BOLD)
    for row in report.printed:
        error, bar = ("" if n is None else f"{n:.1e}" for n in (row.figure, row.bar))
        said = _figures(error, bar, row.verdict, VERDICTS[row.verdict])
        notes = broken(row.note, beside if is_beside else width - 4) if row.note else []
        if not names:
            yield from broken(row.name, width)
        head = f"{row.name:{names}}  {said}" if names else f"    {said}"
        first, *more = notes if is_beside and notes else [""]
        yield f"{head}  {first}".rstrip()
        indent = " " * (width - beside if is_beside else 4)
        yield from (indent + note for note in (more if is_beside else notes))


def _figures(error: str, bar: str, verdict: str, style: str = "") -> str:
    padded = f"{verdict:7}"
    return f"{error:>7}  {bar:>7}  {marked(padded, style) if style else padded}"


def print_findings(findings: Sequence[Finding]) -> None:
    """Print what ``doctor`` found, and what to do about it."""
    width = columns()
    for finding in findings:
        word, style = ("ok", GREEN) if finding.ok else ("missing", BOLD_RED)
        if not finding.ok and not finding.required:
            word, style = "absent", YELLOW
        typer.echo(f"{marked(f'{word:7}', style)}  {_found(finding, width)}")


def _found(finding: Finding, width: int | None) -> str:
    """What was found and how to mend it, beside the name; below it where a terminal is narrow."""
    said = [text for text in (finding.text, finding.fix) if text]
    if width is None:
        return f"{finding.name:20}  " + f"\n{'':{FOUND_AT}}".join(said)
    is_beside = width - FOUND_AT >= LEAST_NOTES and len(finding.name) <= 20
    indent = FOUND_AT if is_beside else HANGING
    lines = [line for text in said for line in broken(text, width - indent)]
    begin = f"{finding.name:20}  " if is_beside else f"{finding.name}\n{'':{indent}}"
    return begin + f"\n{'':{indent}}".join(lines)


def _out() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
