"""Draw what becomes of one gate: in its step, its statements in three programs, its stages.

``python -m docs.site.stages`` writes ``gate-step.svg``, ``gate-programs.svg`` and
``gate-plan.svg``; in the last two what concerns the gate is marked. ``excerpt`` is the gate's C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "explanation"
GATE = re.compile(r"\b(d_)?f(_pre)?\b|\b(d_)?[wub]_f\b|\bx_w_f\w*")
PARTS = {
    "forward": "every step, forward",
    "reverse": "every step, in reverse",
    "deferred": "once for many steps",
}
Box: TypeAlias = tuple[str, ...]
Column: TypeAlias = tuple[str, str, Sequence[Box]]
"""Its title, what it says beside, and its boxes of lines; the first line of a box is its name."""

CHARACTER, LINE, PADDING, GAP = 6.65, 15, 9, 16
FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def pictures() -> dict[str, str]:
    """The pictures by file name; the same code gives the same bytes."""
    from cellgen.cells import MGU
    from cellgen.views.graph import draw

    return {
        "gate-step.svg": draw(MGU.definition),
        "gate-programs.svg": drawn("the gate f in the programs over time", programs()),
        "gate-plan.svg": drawn("the gate f in the plan", plan()),
    }


# --- what is shown -------------------------------------------------------------------------------


def programs() -> list[Column]:
    """The statements of the cell's programs over time, one box for each program."""
    from cellgen.cells import MGU
    from cellgen.program.over_time import unroll

    found = unroll(MGU.definition)
    return [
        (name, text, [("", *_statements(str(getattr(found, name))))])
        for name, text in PARTS.items()
    ]


def _statements(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line.rpartition("    (")[0] or line for line in lines if " = " in line]


def plan() -> list[Column]:
    """The stages of the cell's time plans, a box for each."""
    from cellgen.cells import MGU
    from cellgen.pipeline import time_plans

    text = "\n".join(map(str, time_plans(MGU)))
    return [(name, said, _stages(text, name)) for name, said in PARTS.items()]


def _stages(text: str, part: str) -> list[Box]:
    """Boxes of the lines that stand below ``forward_1: ...`` and so on."""
    boxes: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 4 and re.match(rf"\s*{part}_\d+: ", line):
            boxes.append([line.strip()])
            inside = True
        elif depth > 4 and inside:
            boxes[-1].append(line.strip())
        else:
            inside = False
    return [tuple(box) for box in boxes]


def excerpt() -> str:
    """The gate's equations in the generated C, of the forward loop."""
    source = (ROOT / "generated" / "mgu" / "mgu.c").read_text(encoding="utf-8")
    found = re.search(
        r"^CELLGEN_TILE_EQUATIONS\(mgu_sequence_forward_forward_1\).*?^}\n", source, re.M | re.S
    )
    assert found
    return found[0]


# --- how it is drawn -----------------------------------------------------------------------------


def drawn(title: str, columns: Sequence[Column]) -> str:
    """Columns of boxes side by side."""
    widths = [_width(column) for column in columns]
    width = sum(widths) + GAP * (len(widths) + 1)
    height = 44 + max(_height(column) for column in columns) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>text {{ font-family: {FONT}; font-size: 11px; white-space: pre; }} "
        ".head { font-size: 13px; font-weight: 600; }</style>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    left = float(GAP)
    for column, own in zip(columns, widths, strict=True):
        parts += _column(column, left, own)
        left += own + GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _width(column: Column) -> float:
    head = f"{column[0]}: {column[1]}"
    longest = max(len(line) for box in column[2] for line in box)
    return max(longest * CHARACTER, len(head) * 7.9) + 2 * PADDING


def _height(column: Column) -> int:
    return sum(LINE * len([line for line in box if line]) + 2 * PADDING + 8 for box in column[2])


def _column(column: Column, left: float, width: float) -> list[str]:
    name, text, boxes = column
    parts = [f'<text class="head" x="{left:.1f}" y="28" fill="#0f172a">{name}: {text}</text>']
    top = 42
    for box in boxes:
        lines = [line for line in box if line]
        height = LINE * len(lines) + 2 * PADDING
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="5" '
            'fill="#f8fafc" stroke="#cbd5e1"/>'
        )
        for number, line in enumerate(lines):
            y = top + PADDING + LINE * number
            is_gate, is_name = GATE.search(line), bool(box[0]) and number == 0
            if is_gate and not is_name:
                parts.append(
                    f'<rect x="{left + 4:.1f}" y="{y}" width="{width - 8:.1f}" height="{LINE}" '
                    'rx="2" fill="#ffedd5"/>'
                )
            fill = "#64748b" if is_name else "#9a3412" if is_gate else "#334155"
            parts.append(
                f'<text x="{left + PADDING:.1f}" y="{y + 11}" fill="{fill}">{escape(line)}</text>'
            )
        top += height + 8
    return parts


if __name__ == "__main__":
    for file_name, picture in pictures().items():
        (FOLDER / file_name).write_text(picture, encoding="utf-8")
        print(f"docs/explanation/{file_name}")
