"""A report as a picture: multiples of the floor by shape, one panel for each cell and mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cellgen.bench.peers import OWN
from cellgen.bench.report import BenchReport, Case
from cellgen.errors import BuildError

STYLES = (
    ("#ee7733", "s"),
    ("#0077bb", "^"),
    ("#33bbee", "v"),
    ("#cc3311", "D"),
    ("#ee3377", "P"),
    ("#bbbbbb", "X"),
    ("#999933", "<"),
    ("#882255", ">"),
)
"""Colours that colour-blind readers can tell apart (Paul Tol's vibrant scheme), and markers."""

OWN_COLOUR = "#009988"
PANEL = (3.6, 2.7)
"""Inches."""


def draw(report: BenchReport, path: Path) -> None:
    """Write a picture; the file's ending says in which format.

    Raises:
        BuildError: the file cannot be written, or its format is unknown.
    """
    cells = list(dict.fromkeys(case.cell for case in report.cases))
    rows = list(dict.fromkeys((case.threads, case.mode) for case in report.cases))
    figure = Figure((PANEL[0] * len(cells) + 0.4, PANEL[1] * len(rows) + 0.9), layout="constrained")
    panels = figure.subplots(len(rows), len(cells), squeeze=False, sharey="row")
    styles = _styles(report.cases)
    for row, (threads, mode) in enumerate(rows):
        for column, cell in enumerate(cells):
            place = (cell, mode, threads)
            chosen = [c for c in report.cases if (c.cell, c.mode, c.threads) == place]
            _panel(panels[row][column], chosen, styles)
            panels[row][column].set_title(cell if row == 0 else "", loc="left", weight="bold")
        plural = "s" * (threads != 1)
        panels[row][0].set_ylabel(f"{mode}\n{threads} thread{plural}, × floor")
    handles, labels = _legend(list(panels.flat))
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save(figure, path)


def _styles(cases: Sequence[Case]) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys(e.name for case in cases for e in case.entries if e.name != OWN.name)
    return {name: STYLES[place % len(STYLES)] for place, name in enumerate(names)}


def _panel(axes: Axes, cases: Sequence[Case], styles: dict[str, tuple[str, str]]) -> None:
    axes.set_yscale("log")
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle=":")
    for name, (colour, marker) in styles.items():
        places, values = _points(cases, name)
        if places:
            axes.plot(places, values, marker, color=colour, markersize=5, label=name, alpha=0.9)
    places, values = _points(cases, OWN.name)
    axes.plot(places, values, "o-", color=OWN_COLOUR, markersize=7, linewidth=1.4, label=OWN.name)
    axes.set_xticks(range(len(cases)), [case.shape.name for case in cases])
    axes.set_xlim(-0.5, len(cases) - 0.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _points(cases: Sequence[Case], name: str) -> tuple[list[int], list[float]]:
    points = [
        (place, case.multiple(entry))
        for place, case in enumerate(cases)
        for entry in case.timed
        if entry.name == name
    ]
    return [place for place, _ in points], [value for _, value in points]


def _legend(panels: Sequence[Axes]) -> tuple[list[Artist], list[str]]:
    """Cellgen first, then the peers; each once."""
    handle_of: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        handle_of.update(zip(labels, handles, strict=True))
    names = sorted(handle_of, key=lambda name: name != OWN.name)
    return [handle_of[name] for name in names], names


def save(figure: Figure, path: Path) -> None:
    """Write a figure, with the same bytes each time. Raises BuildError: it cannot be written."""
    with matplotlib.rc_context({"svg.hashsalt": "cellgen", "svg.fonttype": "path"}):
        try:
            figure.savefig(
                path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150
            )
        except (OSError, ValueError) as error:
            raise BuildError(f"{path} cannot be written: {error}") from None
