"""Measured times beside peers, as bars: one block for each shape, direction and thread count.

Input: results of ``cellgen bench``. Output: ``SpeedPart`` records. Bars are times of a call; every
number is a median over rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellgen.bench.peers import OWN
from cellgen.bench.report import BenchReport, Case, ContestantEntry


@dataclass(frozen=True)
class SpeedBar:
    """One contestant: its bar in percent of the longest, its time, and its multiple of the floor.

    ``text`` says why there is no time, or what it computes otherwise.
    """

    name: str
    own: bool
    width: float | None
    time: str = ""
    multiple: str = ""
    text: str = ""


@dataclass(frozen=True)
class SpeedCase:
    """One block: what was timed, and everyone in it, the fastest first."""

    title: str
    note: str
    bars: tuple[SpeedBar, ...]


@dataclass(frozen=True)
class SpeedPart:
    """One result: the machine, how it was measured, its blocks, who was missing."""

    machine: str
    cases: tuple[SpeedCase, ...]
    missing: tuple[str, ...]


def speed_parts(reports: Sequence[BenchReport], cell: str | None = None) -> tuple[SpeedPart, ...]:
    """All that was measured, or what was measured of one cell."""
    parts = []
    for report in reports:
        cases = [
            case for case in report.cases if cell in (None, case.cell) and case.own.status.is_timed
        ]
        if cases:
            blocks = tuple(_block(case, named=cell is None) for case in cases)
            missing = tuple(f"{item.name}: {item.text}" for item in report.missing)
            parts.append(SpeedPart(_machine(report), blocks, missing if cell is None else ()))
    return tuple(parts)


def _machine(report: BenchReport) -> str:
    device = report.device
    date = str(device["date"])[:10]
    return f"{device['processor']}, {date}, {report.rounds} rounds"


def _block(case: Case, *, named: bool) -> SpeedCase:
    head = f"{case.cell} {case.mode}" if named else str(case.mode)
    timed = sorted(
        (entry for entry in case.entries if entry.status.is_timed), key=lambda e: e.median
    )
    longest = max(entry.median for entry in timed)
    bars = [_bar(case, entry, longest) for entry in timed]
    bars += [
        SpeedBar(entry.name, False, None, text=str(entry.status))
        for entry in case.entries
        if not entry.status.is_timed
    ]
    return SpeedCase(head, _place(case), tuple(bars))


def _place(case: Case) -> str:
    shape = case.shape
    threads = f"{case.threads} thread{'' if case.threads == 1 else 's'}"
    return f"T, B, I, H = {shape.T}, {shape.B}, {shape.I}, {shape.H}; {threads}"


def _bar(case: Case, entry: ContestantEntry, longest: float) -> SpeedBar:
    return SpeedBar(
        name=entry.name,
        own=entry.name == OWN.name,
        width=round(100 * entry.median / longest, 2),
        time=time_text(entry.median),
        multiple=f"{case.multiple(entry):.2f}",
    )


def time_text(seconds: float) -> str:
    """A time in a fitting unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            number = seconds * factor
            return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"
    raise AssertionError


@dataclass(frozen=True)
class ComparedTimes:
    """Times of several cells in one run: a row for each place, a column for each cell."""

    machine: str
    cells: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def compared_times(
    reports: Sequence[BenchReport], cells: Sequence[str]
) -> tuple[ComparedTimes, ...]:
    """What was measured of at least two of the cells in the same run."""
    tables = []
    for report in reports:
        places = _by_place(report, cells)
        shared = {place: times for place, times in places.items() if len(times) > 1}
        names = tuple(c for c in cells if any(c in times for times in shared.values()))
        rows = tuple(
            (place, tuple(time_text(times[c]) if c in times else "" for c in names))
            for place, times in shared.items()
        )
        if rows:
            tables.append(ComparedTimes(_machine(report), names, rows))
    return tuple(tables)


def _by_place(report: BenchReport, cells: Sequence[str]) -> dict[str, dict[str, float]]:
    medians: dict[str, dict[str, float]] = {}
    for case in report.cases:
        if case.cell in cells and case.own.status.is_timed:
            place = f"{case.mode}; {_place(case)}"
            medians.setdefault(place, {})[case.cell] = case.own.median
    return medians
