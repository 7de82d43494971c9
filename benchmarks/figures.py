"""The figures of `cellgen bench` as a table for a document, of every run that is kept.

    python -m benchmarks.figures benchmarks/results/cpu-*.json --docs docs/how-to/benchmarks.md

Times nothing; reads what `cellgen bench --save` wrote.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from cellgen.bench.claims import between
from cellgen.bench.report import BenchReport, Case, from_data
from cellgen.errors import CellgenError

MARKS = "<!-- figures: begin -->", "<!-- figures: end -->"

TARGET_THREADS = 2
TARGETS = {
    "forward": {"W1": 2.0, "W2": 1.07, "W3": 1.0, "W4": 1.0, "W5": 1.4, "W6": 1.4},
    "forward+backward": {"W1": 1.75, "W2": 1.12, "W3": 1.03, "W4": 1.03, "W5": 1.5, "W6": 1.5},
}
"""Multiples of the floor that were aimed at, for the LSTM and both GRUs on two threads."""


def markdown(reports: Iterable[tuple[str, BenchReport]]) -> str:
    """Write the machine of each run, one table of all, and one of what was aimed at."""
    reports = list(reports)
    lines = [f"* `{name}`: {_machine(report)}" for name, report in reports]
    cases = [case for _, report in reports for case in report.cases]
    shapes = sorted({case.shape.name for case in cases})
    head = ("cell", "mode", "threads", *shapes)
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    ordered = sorted(cases, key=_place)
    for place, group in groupby(ordered, _place):
        found = {case.shape.name: _figures(case) for case in group}
        row = [f"`{place[0]}`", *place[1:], *(found.get(name, "") for name in shapes)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines + _aims(cases))


def _aims(cases: Sequence[Case]) -> list[str]:
    """Each target, and by how much every cell misses it; bold where it holds."""
    found = {
        (str(c.mode), c.shape.name, c.cell): c.multiple(c.own)
        for c in cases
        if c.threads == TARGET_THREADS and c.shape.name in TARGETS.get(str(c.mode), {})
    }
    cells = sorted({cell for _, _, cell in found})

    def text(mode: str, shape: str, cell: str) -> str:
        if (mode, shape, cell) not in found:
            return ""
        ratio = found[mode, shape, cell] / TARGETS[mode][shape]
        return f"**{ratio:.2f}**" if ratio <= 1 else f"{ratio:.2f}"

    rows = [
        f"| {mode} | {shape} | {TARGETS[mode][shape]} "
        f"| {' | '.join(text(mode, shape, cell) for cell in cells)} |"
        for mode, shape in dict.fromkeys((mode, shape) for mode, shape, _ in sorted(found))
    ]
    names = " | ".join(f"`{cell}`" for cell in cells)
    head = f"| {TARGET_THREADS} threads | | aimed at | {names} |"
    return ["", head, "|---" * (3 + len(cells)) + "|", *rows] if rows else []


def _place(case: Case) -> tuple[str, str, str]:
    return case.cell, str(case.mode), str(case.threads)


def _figures(case: Case) -> str:
    """Multiples of the floor, median and minimum, and the time by that of the best peer."""
    own = f"**{case.multiple(case.own):.2f}** {case.least_multiple(case.own):.2f}"
    best = case.best_peer
    if best is None:
        return own
    ratio = case.ratio(best)
    return f"{own}; {ratio.median:.2f}±{ratio.spread:.2f} {best.name}"


def _machine(report: BenchReport) -> str:
    device, rates = report.device, report.rates
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    sgemm = ", ".join(f"{rate.best / 1e9:.0f} GFLOP/s with {rate.threads}" for rate in rates)
    return (
        f"{device['processor']}, {str(device['date'])[:10]}, {report.rounds} rounds; {versions}; "
        f"a large product at best {sgemm} thread{'s' * (rates[0].threads != 1)}"
    )


def reports_of(paths: Sequence[Path]) -> list[tuple[str, BenchReport]]:
    """Read runs that were saved. Raises UsageError, OSError."""
    return [(path.name, from_data(json.loads(path.read_text(encoding="utf-8")))) for path in paths]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document")
    options = parser.parse_args()
    try:
        text = markdown(reports_of(options.runs))
        print(text)
        if options.docs:
            old = options.docs.read_text(encoding="utf-8")
            options.docs.write_text(between(old, *MARKS, text), encoding="utf-8")
    except (CellgenError, OSError, ValueError) as error:
        sys.exit(f"figures: {error}")


if __name__ == "__main__":
    main()
