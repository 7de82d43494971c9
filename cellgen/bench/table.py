"""A report as text: one table for each cell, mode and number of threads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from cellgen.bench.peers import OWN
from cellgen.bench.problem import Mode
from cellgen.bench.report import BenchReport, Case, ContestantEntry

UNBOUNDED = 10_000
"""Columns that no table has."""
LEGEND = (
    "Multiples of the floor: median over the rounds at each round's sgemm, minimum at the best of "
    "the run. floor = max(operations of products / sgemm, bytes of arguments and results / copy); "
    "m: bound by memory. "
    "by best: cellgen's time by that of the fastest peer, median ± interquartile range."
)


def print_report(report: BenchReport, console: Console) -> None:
    """Print the machine, all tables, and what there is to say about peers."""
    console.print(*_machine(report), sep="\n", soft_wrap=True)
    for (cell, mode, threads), group in groupby(report.cases, _place):
        cases = list(group)
        console.print(f"\n[bold]{escape(cell)} {mode}, {_count(threads)}[/]")
        _print(console, cases, _table)
        if any(entry.memory is not None for case in cases for entry in case.entries):
            console.print(f"\n[bold]{escape(cell)}: peak memory, MiB, {_count(threads)}[/]")
            _print(console, cases, _memory_table)
    console.print()
    console.print(LEGEND, soft_wrap=True)
    for line in _remarks(report):
        console.print(line, soft_wrap=True)


def _print(
    console: Console, cases: Sequence[Case], table: Callable[[Sequence[Case]], Table]
) -> None:
    """Print a table, or several of fewer shapes each where one is wider than the console."""
    count = next((n for n in range(len(cases), 1, -1) if _fits(console, table(cases[:n]))), 1)
    console.print(table(cases[:count]))
    if cases[count:]:
        console.print()
        _print(console, cases[count:], table)


def _fits(console: Console, table: Table) -> bool:
    unbounded = console.options.update(width=UNBOUNDED)
    return Measurement.get(console, unbounded, table).maximum <= console.width


def summary(case: Case) -> str:
    """Say in a few words how a case went."""
    best = case.best_peer
    own = f"{case.multiple(case.own):.2f} floors"
    return f"{own}, {best.name} {case.multiple(best):.2f}" if best else own


def _place(case: Case) -> tuple[str, Mode, int]:
    return case.cell, case.mode, case.threads


def _count(threads: int) -> str:
    return f"{threads} thread{'s' * (threads != 1)}"


def _machine(report: BenchReport) -> Iterable[str]:
    device = report.device
    yield escape(f"{device['processor']}, {', '.join(device['instruction_set'])}")
    yield escape(f"{device['compiler']}; {device['date']}; {report.rounds} rounds")
    for rates in report.rates:
        sgemm = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.sgemm.items())
        copy = f"copy {rates.copy / 1e9:.1f} GB/s"
        yield escape(f"{_count(rates.threads)}: sgemm {sgemm} GFLOP/s, {copy}")


def _names(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(entry.name for case in cases for entry in case.entries))


def _empty(cases: Sequence[Case]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for case in cases:
        table.add_column(case.shape.name, justify="right")
    return table


def _table(cases: Sequence[Case]) -> Table:
    table = _empty(cases)
    for name in _names(cases):
        own = name == OWN.name
        cells = [_own(case) if own else _peer(case, name) for case in cases]
        table.add_row(f"[bold]{name}[/]" if own else escape(name), *cells)
    table.add_section()
    table.add_row("by best", *map(_by_best, cases))
    table.add_row("floor, ms", *map(_floor, cases))
    table.add_row("sgemm of rounds, GFLOP/s", *map(_sgemm, cases))
    return table


def _own(case: Case) -> str:
    """Green where no peer is faster by more than the noise."""
    best = case.best_peer
    ratio = case.ratio(best) if best else None
    colour = "yellow" if ratio and ratio.median - ratio.spread > 1 else "green"
    return f"[bold {colour}]{_multiples(case, case.own)}[/]"


def _peer(case: Case, name: str) -> str:
    entry = next((entry for entry in case.entries if entry.name == name), None)
    if entry is None:
        return "-"
    if not entry.status.is_timed:
        return f"[bold red]{entry.status}[/]"
    return _multiples(case, entry)


def _multiples(case: Case, entry: ContestantEntry) -> str:
    return f"{case.multiple(entry):.2f} {case.least_multiple(entry):.2f}"


def _by_best(case: Case) -> str:
    best = case.best_peer
    if best is None:
        return "-"
    ratio = case.ratio(best)
    return f"{ratio.median:.2f}±{ratio.spread:.2f} {escape(best.name)}"


def _floor(case: Case) -> str:
    mark = " m" if case.floor.bound == "memory" else ""
    return f"{1e3 * case.floor.seconds:.3g}{mark}"


def _sgemm(case: Case) -> str:
    return f"{statistics.median(case.sgemm) / 1e9:.0f}" if case.sgemm else "-"


def _memory_table(cases: Sequence[Case]) -> Table:
    table = _empty(cases)
    for name in _names(cases):
        sizes = {e.name: e.memory for case in cases for e in case.entries if e.memory is not None}
        if name in sizes:
            table.add_row(escape(name), *(_memory(case, name) for case in cases))
    for name, field in (("arguments", "arguments"), ("necessary beside", "necessary")):
        table.add_row(name, *(f"{getattr(case, field) / 2**20:.1f}" for case in cases))
    return table


def _memory(case: Case, name: str) -> str:
    """MiB, and what goes beyond the arguments as a multiple of what is necessary."""
    amounts = [e.memory for e in case.entries if e.name == name and e.memory is not None]
    if not amounts:
        return "-"
    multiple = f" {case.memory_multiple(amounts[0]):.2f}" if case.necessary else ""
    return f"{amounts[0] / 2**20:.1f}{multiple}"


def _remarks(report: BenchReport) -> Iterable[str]:
    """Each remark once: what peers do otherwise, what was wrong, who was missing."""
    for missing in report.missing:
        yield f"[yellow]{escape(missing.name)}[/]: {escape(missing.text)}"
    said: dict[str, None] = {}
    for case in report.cases:
        for entry in case.entries:
            if entry.status.is_timed and entry.text:
                said[f"{escape(entry.name)}: {escape(entry.text)}"] = None
            elif entry.text:
                label = f"{case.cell} {case.mode} {case.shape.name}"
                said[f"[bold red]{escape(entry.name)}[/], {label}: {escape(entry.text)}"] = None
    yield from said
