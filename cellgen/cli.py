"""The command line: ``cellgen list | show | build | check | doctor | cache``.

Results go to stdout, progress to stderr. Exit status: 0 fine, 1 a check or a build failed, 2 wrong
usage, 130 interrupted. Everything heavy is imported inside the command that needs it, so that
``cellgen --help`` is quick; no mathematics and no file format is decided here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import cellgen
from cellgen.errors import CellgenError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cellgen.check import Report
    from cellgen.doctor import Finding
    from cellgen.make import Progress
    from cellgen.render import Source

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PIPE_WIDTH = 160
"""Columns of tables where stdout is no terminal: wide enough that nothing is cut."""


app = typer.Typer(
    name="cellgen",
    help="Compile recurrent-cell equations into fused forward and backward kernels in readable C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(help="The folder of compiled kernels.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

CellsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CELL|FILE.py[:NAME]]...", help="Cells; all that ship when none."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def main() -> None:
    """Run the command line (the entry point ``cellgen``)."""
    try:
        app()
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellgen {cellgen.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Compile recurrent-cell equations into fused forward and backward kernels in readable C."""


# --- commands ------------------------------------------------------------------------------------


@app.command("list")
def list_cells(as_json: JsonOption = False) -> None:
    """List the cells that ship: states, parameters, source, and whether they are built."""
    with _errors():
        from cellgen.catalogue import catalogue

        entries = catalogue()
        if as_json:
            return _print_json([asdict(entry) for entry in entries])
        table = _table("cell", "what it is", "states", "parameters", "source", "built")
        for entry in entries:
            table.add_row(
                entry.name,
                entry.text,
                " ".join(entry.states),
                " ".join(entry.parameters),
                entry.source,
                {True: "yes", False: "no", None: "?"}[entry.built],
            )
        _out().print(table)
        if any(entry.built is None for entry in entries):
            _err().print("built: unknown without a C compiler; see `cellgen doctor`")
    return None


@app.command()
def show(
    cell: Annotated[str, typer.Argument(metavar="CELL|FILE.py[:NAME]", help="The cell to show.")],
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    schedule: Annotated[bool, typer.Option("--schedule", help="Print the plan of the C.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the graph of a step.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a cell's equations, its derived backward, its plan, or its graph as a picture."""
    with _errors():
        if latex + schedule + as_json + (svg is not None) > 1:
            raise UsageError("give one of --latex, --schedule, --svg and --json")
        from cellgen import show as shown
        from cellgen.find import find_one
        from cellgen.pipeline import programs_of, schedule_of

        found = find_one(cell)
        if svg is not None:
            _draw(svg, found.definition)
        elif schedule:
            typer.echo(str(schedule_of(found)))
        elif as_json:
            _print_json(shown.as_data(programs_of(found)))
        else:
            typer.echo((shown.as_latex if latex else shown.as_text)(programs_of(found)))


@app.command()
def build(
    cells: CellsArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where to write; else the repository's generated/, elsewhere ./generated.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; print the diff to what stands there."),
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Compilers at a time.")
    ] = 2,
    as_json: JsonOption = False,
) -> None:
    """Generate the C of cells, write it and compile it."""
    with _errors():
        from cellgen import tree
        from cellgen.api import shipped_names
        from cellgen.find import find
        from cellgen.make import generate_all

        found, folder = find(cells or ()), tree.target_folder(out)
        with _progress("generating", len(found)) as done:
            sources = generate_all(found, done)
        tree.refuse_shipped_names(folder, sources, shipped_names())
        if check:
            _compare(folder, sources, not cells, as_json)
        else:
            _write_and_compile(folder, sources, jobs, as_json)


@app.command("check")
def check_cells(
    cells: CellsArgument = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random shapes.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prove cells: hand-written forward, exact gradients, C against the equations."""
    with _errors():
        from cellgen.check import check
        from cellgen.find import find

        found = find(cells or ())
        reports = []
        with _progress("checking", len(found)) as done:
            for cell in found:
                reports.append(check(cell, seed=seed))
                done(reports[-1].cell, "ok" if reports[-1].ok else "FAILED")
        if as_json:
            _print_json([report.as_dict() for report in reports])
        else:
            _print_reports(reports)
        if not all(report.ok for report in reports):
            raise typer.Exit(FAILED)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Look at compiler, headers, cache and extras; say what is missing and how to get it."""
    with _errors():
        from cellgen.doctor import examine

        findings = examine()
        healthy = all(finding.ok for finding in findings if finding.required)
        if as_json:
            _print_json({"ok": healthy, "findings": [asdict(finding) for finding in findings]})
        else:
            _print_findings(findings, healthy)
        if not healthy:
            raise typer.Exit(FAILED)


@cache_app.command("info")
def cache_info(as_json: JsonOption = False) -> None:
    """Say where compiled kernels are kept, how many, and their size."""
    with _errors():
        from cellgen import cache
        from cellgen.doctor import size

        found = cache.info()
        if as_json:
            _print_json({"path": str(found.path), "kernels": found.entries, "bytes": found.bytes})
        else:
            typer.echo(f"{found.path}: {found.entries} kernels, {size(found.bytes)}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel; they are compiled again when they are needed."""
    with _errors():
        from cellgen import cache
        from cellgen.doctor import size

        before = cache.clear()
        typer.echo(f"removed {before.entries} kernels, {size(before.bytes)} from {before.path}")


# --- build ---------------------------------------------------------------------------------------


def _compare(folder: Path, sources: Sequence[Source], whole: bool, as_json: bool) -> None:
    from cellgen import tree
    from cellgen.cells import SHIPPED

    files = {path: text for s in sources for path, text in tree.cell_files(folder, s).items()}
    differences = tree.compare({**tree.support_files(folder), **files})
    stale = tree.stale_files(folder, sources)
    if whole:
        stale += tree.stale_cells(folder, [cell.definition.name for cell in SHIPPED])
    if as_json:
        _print_json(
            {
                "folder": str(folder),
                "cells": [source.name for source in sources],
                "different": [{"path": str(d.path), "diff": d.diff} for d in differences],
                "stale": [str(path) for path in stale],
            }
        )
    else:
        for difference in differences:
            typer.echo(difference.diff)
        for path in stale:
            typer.echo(f"{path}: nothing generates this any more; remove it")
    if differences or stale:
        count = len(differences) + len(stale)
        _leave(f"{count} of the files in {folder} differ; run `cellgen build` to write them")
    _err().print(f"{folder} is what {len(sources)} cells generate")


def _write_and_compile(folder: Path, sources: Sequence[Source], jobs: int, as_json: bool) -> None:
    from cellgen import tree
    from cellgen.make import compile_all, write_all

    changed = write_all(folder, sources)
    for path in tree.stale_files(folder, sources):
        _err().print(f"warning: {path} is no longer generated; remove it")
    with _progress("compiling", len(sources)) as done:
        outcomes = compile_all(folder, sources, jobs, done)
    failures = [o for o in outcomes.values() if isinstance(o, CellgenError)]
    rows = []
    for source in sources:
        outcome = outcomes[source.name]
        built = None if isinstance(outcome, CellgenError) else outcome
        rows.append(
            {
                "name": source.name,
                "folder": str(folder / source.name),
                "changed": [str(path) for path in changed[source.name]],
                "object": str(built.path) if built else None,
                "cached": built.cached if built else None,
                "seconds": round(built.seconds, 3) if built else None,
                "error": str(outcome) if isinstance(outcome, CellgenError) else None,
            }
        )
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            state = "failed" if row["error"] else "up to date" if row["cached"] else "compiled"
            note = f", {len(changed[str(row['name'])])} files written" if row["changed"] else ""
            typer.echo(f"{row['folder']}: {state}{note}")
    if failures:
        _leave("\n".join(str(failure) for failure in failures))


# --- tables --------------------------------------------------------------------------------------


def _print_reports(reports: Sequence[Report]) -> None:
    styles = {"ok": "green", "failed": "bold red", "skipped": "yellow"}
    for report in reports:
        table = _table("claim", "error", "bar", "verdict", "over")
        table.title = report.cell
        for row in report.rows:
            table.add_row(
                row.name,
                "" if row.figure is None else f"{row.figure:.1e}",
                "" if row.bar is None else f"{row.bar:.1e}",
                f"[{styles[row.verdict]}]{row.verdict}[/]",
                _plain(row.note),
            )
        _out().print(table)
    bad = [report.cell for report in reports if not report.ok]
    proved = f"{len(reports) - len(bad)} of {len(reports)} cells proved"
    _out().print(proved + (f"; failed: {', '.join(bad)}" if bad else ""), soft_wrap=True)


def _print_findings(findings: Sequence[Finding], healthy: bool) -> None:
    out = _out()
    for finding in findings:
        mark = "[green]ok[/]     " if finding.ok else "[bold red]missing[/]"
        if not finding.ok and not finding.required:
            mark = "[yellow]absent[/] "
        out.print(f"{mark}  {_plain(finding.name):20}  {_plain(finding.text)}", soft_wrap=True)
        if finding.fix:
            out.print(f"{'':9}{'':22}{_plain(finding.fix)}", soft_wrap=True)
    verdict = "everything that is required is there" if healthy else "something required is missing"
    out.print(verdict, soft_wrap=True)


def _draw(path: Path, definition: object) -> None:
    from cellgen.cell import Definition
    from cellgen.errors import BuildError
    from cellgen.picture import draw

    assert isinstance(definition, Definition)
    try:
        path.write_text(draw(definition), encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(str(path))


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in ("error", "bar") else "left")
    return table


def _plain(text: str) -> str:
    """Text in which brackets mean brackets."""
    from rich.markup import escape

    return escape(text)


# --- streams and errors --------------------------------------------------------------------------


def _out() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def _err() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def _print_json(data: object) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


@contextmanager
def _progress(what: str, total: int) -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal, and a line for each cell in either case."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=total)

        def done(cell: str, state: str) -> None:
            bar.advance(task)
            if state != "generated":
                bar.console.print(f"{what} {cell}: {state}")

        yield done


@contextmanager
def _errors() -> Iterator[None]:
    """Turn cellgen's errors into one message and an exit status; no traceback."""
    try:
        yield
    except UsageError as error:
        _leave(str(error), USAGE)
    except CellgenError as error:
        _leave(str(error), FAILED)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)


def _leave(message: str, status: int = FAILED) -> NoReturn:
    """Say why on stderr and end with a status."""
    typer.secho("cellgen: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    raise typer.Exit(status)
