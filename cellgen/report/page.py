"""One self-contained page: sections of cells, a comparison, results of a benchmark.

Input: the parts. Output: HTML that needs nothing else: style and pictures stand in it, and it has
no script. Texts are escaped by the templates.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.report.cell import CellSection
from cellgen.report.comparison import Comparison
from cellgen.report.speed import SpeedPart
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class ReportPage:
    """Of ``report/page.html.j2``; ``speed`` is of a whole benchmark, shown before the cells."""

    title: str
    subtitle: str
    cells: tuple[CellSection, ...]
    comparison: Comparison | None
    speed: tuple[SpeedPart, ...]

    def html(self) -> str:
        """The page as text."""
        return fill("report/page.html.j2", self)
