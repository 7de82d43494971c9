"""What the command line prints: tables and JSON on stdout, progress and messages on stderr.

Input: the records that commands return. Output: text; colours and bars only on a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from rich import box
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
from rich.table import Table

from cellgen.cli.doctor import Finding
from cellgen.cli.screen import PIPE_WIDTH
from cellgen.files.make import Outcome
from cellgen.files.tree import Difference
from cellgen.proof.check import Report
from cellgen.runtime.progress import without_bars

VERDICTS = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


def print_json(data: object) -> None:
    """Print plain data for machines."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """Say something on stderr."""
    typer.echo(message, err=True)


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
    out = _out()
    for report in reports:
        table = _table("claim", [row.name for row in report.rows])
        table.title = f"{report.cell} (seed {report.seed})"
        table.add_column("error", justify="right")
        table.add_column("bar", justify="right")
        table.add_column("verdict")
        table.add_column("over")
        for row in report.printed:
            figures = ("" if n is None else f"{n:.1e}" for n in (row.figure, row.bar))
            verdict = f"[{VERDICTS[row.verdict]}]{row.verdict}[/]"
            table.add_row(escape(row.name), *figures, verdict, escape(row.note))
        out.print(table)
        out.print()
    bad = [report.cell for report in reports if not report.ok]
    failed = f"; failed: {', '.join(bad)}" if bad else ""
    skipped = sum(row.verdict == "skipped" for report in reports for row in report.rows)
    left_out = f"; {skipped} claims skipped" if skipped else ""
    proved = f"{len(reports) - len(bad)} of {len(reports)} cells proved"
    out.print(proved + failed + left_out, soft_wrap=True)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print what ``doctor`` found, and what to do about it."""
    out = _out()
    for finding in findings:
        mark = "[green]ok[/]     " if finding.ok else "[bold red]missing[/]"
        if not finding.ok and not finding.required:
            mark = "[yellow]absent[/] "
        out.print(f"{mark}  {escape(f'{finding.name:20}  {finding.text}')}", soft_wrap=True)
        if finding.fix:
            out.print(escape(f"{'':31}{finding.fix}"), soft_wrap=True)


def _table(first: str, names: Sequence[str]) -> Table:
    """A table whose first column is never cut."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(first, min_width=max(map(len, names), default=0))
    return table


def _out() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
