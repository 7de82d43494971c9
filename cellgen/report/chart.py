"""Lines over logarithmic axes, as an inline SVG that takes its colours from the page.

Input: ``ChartLine`` records. Output: markup. Classes ``line-0``, ``line-1``, ... choose colours, as
they do in the legend beside it. The same lines always give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 460.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 24.0, 10.0, 42.0
COLOURS = 6
"""Colours that the style sheet has; lines beyond have them again, dashed."""


@dataclass(frozen=True)
class ChartLine:
    """One line: its name, and points with positive coordinates."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: ends, marked numbers, and their texts."""

    low: float
    high: float
    ticks: tuple[float, ...]
    text: Callable[[float], str]

    def place(self, number: float) -> float:
        """Where a number lies, from 0 to 1."""
        span = math.log(self.high / self.low)
        return math.log(number / self.low) / span


def log_chart(
    lines: Sequence[ChartLine],
    x_title: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    label: str,
) -> Markup:
    """Draw lines; ``label`` is what is read to those who do not see the picture."""
    xs = _axis([x for line in lines for x, _ in line.points], 10, x_text)
    ys = _axis([y for line in lines for _, y in line.points], 1024, y_text)
    pieces = [*_grid(xs, ys), _title(x_title)]
    for number, line in enumerate(lines):
        pieces.append(_drawn(number, line, xs, ys, y_text))
    head = (
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" '
        f'aria-label="{escape(label)}">'
    )
    return Markup("\n".join([head, *pieces, "</svg>"]))


def line_class(number: int, dashed: bool = False) -> str:
    """The class of a line's colour, and whether it is dashed."""
    again = dashed or number >= COLOURS
    return f"line-{number % COLOURS}{' dashed' if again else ''}"


def _axis(numbers: Sequence[float], base: float, text: Callable[[float], str]) -> Axis:
    """Whole powers of a base around all numbers; for a large base, steps between them too."""
    step = 10.0 if base == 10 else 8.0
    low = step ** math.floor(math.log(min(numbers), step) + 1e-9)
    high = step ** math.ceil(math.log(max(numbers), step) - 1e-9)
    high = max(high, low * step)
    count = round(math.log(high / low, step))
    stride = 1 + count // 7
    return Axis(low, high, tuple(low * step**n for n in range(0, count + 1, stride)), text)


def _x(place: float) -> float:
    return LEFT + place * (WIDTH - LEFT - RIGHT)


def _y(place: float) -> float:
    return HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)


def _grid(xs: Axis, ys: Axis) -> list[str]:
    left, right, top, bottom = _x(0), _x(1), _y(1), _y(0)
    pieces = []
    for tick in xs.ticks:
        x = _x(xs.place(tick))
        pieces.append(f'<path class="grid" d="M{x:.1f},{top:.1f}V{bottom:.1f}"/>')
        pieces.append(
            f'<text x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">'
            f"{escape(xs.text(tick))}</text>"
        )
    for tick in ys.ticks:
        y = _y(ys.place(tick))
        pieces.append(f'<path class="grid" d="M{left:.1f},{y:.1f}H{right:.1f}"/>')
        pieces.append(
            f'<text x="{left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(ys.text(tick))}</text>"
        )
    return pieces


def _title(text: str) -> str:
    return (
        f'<text x="{_x(0.5):.1f}" y="{HEIGHT - 6:.1f}" text-anchor="middle">{escape(text)}</text>'
    )


def _drawn(number: int, line: ChartLine, xs: Axis, ys: Axis, y_text: Callable[[float], str]) -> str:
    places = [(_x(xs.place(x)), _y(ys.place(y))) for x, y in line.points]
    path = "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = line_class(number, line.dashed)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"><title>{escape(line.name)}, '
        f"{escape(xs.text(point[0]))}: {escape(y_text(point[1]))}</title></circle>"
        for (x, y), point in zip(places, line.points, strict=True)
    )
    return f'<g class="{style}"><path d="M{path}"/>{marks}</g>'
