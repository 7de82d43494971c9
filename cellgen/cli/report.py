"""What ``cellgen report`` does: prove and compile cells, gather what was measured, write a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

import cellgen
from cellgen import api
from cellgen.bench.report import BenchReport
from cellgen.bench.shapes import BenchShape, parse_shapes
from cellgen.cells import SHIPPED
from cellgen.cli import terminal
from cellgen.cli.bench import read
from cellgen.cli.gallery import kept_results
from cellgen.errors import BuildError, CellgenError, Failure, UsageError
from cellgen.language.cell import Cell, definition_of
from cellgen.proof.check import Report
from cellgen.proof.check.several import check_each
from cellgen.report.cell import CellSection, ReportFindings, cell_section
from cellgen.report.comparison import compare
from cellgen.report.page import ReportPage
from cellgen.report.speed import speed_parts
from cellgen.runtime.kernel import Kernel
from cellgen.views.find import find_each

SUBTITLE = f"cellgen {cellgen.__version__}"
NOT_PROVED = "Left out; run `cellgen check {}`, or leave out --no-prove."


def page_of(
    cells: Sequence[type[Cell]],
    shape: BenchShape,
    results: Sequence[BenchReport],
    *,
    prove: bool,
    seed: int,
    jobs: int,
) -> tuple[ReportPage, list[Failure]]:
    """Make the page of some cells, with progress on stderr; also what failed on the way."""
    proved, failures = _proved(cells, seed, jobs) if prove else ({}, [])
    names = [definition_of(cell).name for cell in cells]
    sections = []
    with terminal.steps("writing", len(cells)) as steps:
        for cell, name in zip(cells, names, strict=True):
            sections.append(_section(cell, shape, proved, results))
            steps.quietly(name, "ok")
    proofs = {name: item for name, item in proved.items() if isinstance(item, Report)}
    comparison = compare(cells, shape, proofs, results) if len(cells) > 1 else None
    title = names[0] if len(names) == 1 else f"{len(names)} cells"
    page = ReportPage(title, SUBTITLE, tuple(sections), comparison, ())
    return page, failures


def _proved(
    cells: Sequence[type[Cell]], seed: int, jobs: int
) -> tuple[dict[str, Report | Failure], list[Failure]]:
    with terminal.steps("checking", len(cells)) as steps:
        every = check_each(cells, seed=seed, jobs=jobs, say=steps.say, done=steps.done)
    names = [definition_of(cell).name for cell in cells]
    proofs = dict(zip(names, every, strict=True))
    return proofs, [item for item in every if isinstance(item, Failure)]


def _section(
    cell: type[Cell],
    shape: BenchShape,
    proofs: dict[str, Report | Failure],
    results: Sequence[BenchReport],
) -> CellSection:
    name = definition_of(cell).name
    proof = proofs.get(name)
    findings = ReportFindings(
        shape=shape,
        kernel=_kernel(cell) if proof is not None else None,
        proof=proof if isinstance(proof, Report) else None,
        unproved=str(proof.error) if isinstance(proof, Failure) else NOT_PROVED.format(name),
        results=tuple(results),
    )
    return cell_section(cell, findings)


def _kernel(cell: type[Cell]) -> Kernel | None:
    """The compiled kernel, which knows its workspace; None where it cannot be compiled."""
    try:
        kernel = api.compile(cell)
        kernel.build()
    except CellgenError:
        return None  # the proof says why
    return kernel


def bench_page(report: BenchReport, selectors: Sequence[str]) -> ReportPage:
    """Make the page of a benchmark: its bars, then its cells without a proof.

    ``selectors`` are what the command was given: cells of an author are found by them alone.
    """
    cells = _cells_of(report, selectors)
    shape = report.cases[0].shape if report.cases else shape_of("W2")
    empty: dict[str, Report | Failure] = {}
    sections = tuple(_section(cell, shape, empty, ()) for cell in cells)
    comparison = compare(cells, shape, {}, [report]) if len(cells) > 1 else None
    return ReportPage("Benchmark", SUBTITLE, sections, comparison, speed_parts([report]))


def _cells_of(report: BenchReport, selectors: Sequence[str]) -> list[type[Cell]]:
    """The cells that were timed, where they can be found."""
    named = find_each(selectors)[0] if selectors else ()
    cells: tuple[type[Cell], ...] = (*SHIPPED, *named)
    known = {definition_of(cell).name: cell for cell in cells}
    timed = dict.fromkeys(case.cell for case in report.cases)
    return [known[name] for name in timed if name in known]


def shape_of(text: str) -> BenchShape:
    """Read one shape. Raises UsageError."""
    shapes = parse_shapes([text], "--shape")
    if len(shapes) != 1:
        raise UsageError(f"--shape {text!r}: expected one, T,B,I,H or W1 to W6")
    return shapes[0]


def results_of(paths: Sequence[Path]) -> list[BenchReport]:
    """Results that are named, else those that a checkout keeps. Raises UsageError."""
    if paths:
        return [read(path) for path in paths]
    kept = kept_results()
    return [*kept.reports, *(run.report for run in kept.zoo.runs)]


def write(page: ReportPage, path: Path) -> None:
    """Write a page. Raises BuildError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.html(), encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(str(path))
