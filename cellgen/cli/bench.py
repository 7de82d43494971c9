"""What ``cellgen bench`` does: read its options, run, print, save."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cellgen import accept
from cellgen.bench.measure import measure
from cellgen.bench.peers import parse_peers
from cellgen.bench.peers.own import kernel_of
from cellgen.bench.plan import DEFAULT_CELLS, MIN_ROUNDS, Plan, quick_plan
from cellgen.bench.problem import Mode
from cellgen.bench.process import processors
from cellgen.bench.report import BenchReport, Case, as_data, from_data
from cellgen.bench.shapes import parse_shapes
from cellgen.bench.table import print_report, summary
from cellgen.cli import terminal
from cellgen.cli.screen import PIPE_WIDTH
from cellgen.errors import BuildError, CellgenError, Failure, UsageError
from cellgen.views.find import find_each, is_file, is_packaged


def plan_of(
    cells: Sequence[str],
    against: str,
    shapes: Sequence[str],
    threads: str,
    modes: str,
    rounds: int | None,
    memory: bool,
    *,
    quick: bool = False,
) -> tuple[Plan, list[Failure]]:
    """Read the options; also what was named and cannot be had. Raises UsageError."""
    if rounds is not None and rounds < MIN_ROUNDS:
        raise UsageError(f"--rounds is {rounds}, expected at least {MIN_ROUNDS}")
    if quick and (memory or rounds is not None):
        raise UsageError("--quick has 3 rounds and no memory; leave --rounds, --memory out")
    selectors, failures = _selectors(cells)
    plan = Plan(
        cells=selectors if cells else DEFAULT_CELLS,
        peers=parse_peers(against),
        shapes=parse_shapes(shapes),
        modes=_modes(modes),
        threads=_threads(threads),
        rounds=rounds or MIN_ROUNDS,
        memory=memory,
    )
    if quick:
        plan = quick_plan(plan, has_cells=bool(cells), has_shapes=bool(shapes))
    return plan, failures


def usable(plan: Plan, failures: Sequence[Failure]) -> tuple[Plan, list[Failure]]:
    """Leave out the cells whose kernels cannot be made, before anything is timed."""
    cells, failed = [], list(failures)
    for name in plan.cells:
        try:
            kernel_of(name).build()
        except CellgenError as error:
            failed.append(Failure(name, error))
        else:
            cells.append(name)
    return replace(plan, cells=tuple(cells)), failed


def require_matplotlib() -> None:
    """Raise UsageError before hours have gone into a picture that cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; pip install 'cellgen-compiler[plot]'")


def run(plan: Plan) -> BenchReport:
    """Measure, with progress on stderr."""
    with terminal.steps("timing", plan.count) as steps:

        def done(case: Case) -> None:
            place = f"{case.cell} {case.mode} {case.shape.name} on {case.threads}"
            steps.done(place, summary(case))

        return measure(plan, steps.say, done)


def read(path: Path) -> BenchReport:
    """Read a saved report. Raises UsageError."""
    try:
        return from_data(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a result of `cellgen bench`: {error}") from None


def save(report: BenchReport, path: Path) -> None:
    """Write a report as JSON. Raises BuildError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_data(report), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None


def show(report: BenchReport, as_json: bool) -> None:
    """Print a report to stdout: tables, or JSON."""
    if as_json:
        terminal.print_json(as_data(report))
    else:
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        print_report(report, Console(highlight=False, width=width))


def _selectors(cells: Sequence[str]) -> tuple[tuple[str, ...], list[Failure]]:
    """Names of the cells that are meant, ``FILE.py:NAME`` for those of an author."""
    names: dict[str, None] = {}
    failures: list[Failure] = []
    for selector in cells:
        path = selector.partition(".py")[0] + ".py"
        meant, failed = find_each([selector])
        failures += failed
        for cell in meant:
            name = f"{path}:{cell.__name__}" if is_file(selector) else cell.definition.name
            names[selector if is_packaged(selector) else name] = None
    return tuple(names), failures


def _modes(text: str) -> tuple[Mode, ...]:
    words = text.replace(",", " ").split()
    for word in words:
        if word not in list(Mode):
            raise UsageError(f"--mode: {word!r} is none of {', '.join(Mode)}")
    return tuple(mode for mode in Mode if mode in words) or tuple(Mode)


def _threads(text: str) -> tuple[int, ...]:
    """Read ``1,2``; all processors that there are where the text is empty."""
    available = len(processors(sys.maxsize) or ()) or sys.maxsize
    words = text.replace(",", " ").split()
    if not words:
        return (available if available < sys.maxsize else 1,)
    counts = [accept.digits(word, available) for word in words]
    for word, count in zip(words, counts, strict=True):
        if not count:
            raise UsageError(
                f"--threads: {accept.quoted(word)} is no number from 1 to {available}, the "
                f"processors to be had"
            )
    return tuple(dict.fromkeys(count for count in counts if count))
