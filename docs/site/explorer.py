"""The gallery as pages people use: a page of each cell, and one that shows them all.

Output: what ``cellgen gallery`` writes, but for its index, and ``gallery/cells.js``, all cells as
one JavaScript array (a file that is read by a script element works from ``file://``, where
``fetch`` does not), which the page reads. Speed is what stands in ``benchmarks/results``.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from sympy import Expr, Mul, sympify

FOLDER = Path(__file__).parent / "gallery"
PAGE = "gallery/README.md"
TAGS = "gallery/tags.md"
TAGS_TEXT = """# Cells by family

Families, and kinds of recurrence.

<!-- material/tags {{ include: [{}] }} -->
"""
"""A cell's own name is a tag too, by which the search finds it first; no list shows those."""
META = {"title": "Gallery", "hide": ["navigation", "toc"]}
SHAPE = "W2"
YEAR = re.compile(r"\b(19|20)(\d\d)\b")
PREPRINT = re.compile(r"arXiv:(\d\d)\d\d\.")


def files() -> dict[str, str]:
    """The pages, their pictures and what they read, by place in the site."""
    read = {f"gallery/{name}": _text(name) for name in ("explorer.css", "explorer.js")}
    data = json.dumps({"shape": _shape_text(), "cells": cells()}, ensure_ascii=False)
    listed = sorted({tag for cell in cells() for tag in cell["tags"] if tag != cell["name"]})
    families = TAGS_TEXT.format(", ".join(f'"{tag}"' for tag in listed))
    index = {PAGE: "# Gallery\n\n" + _text("explorer.html"), TAGS: families}
    return pages() | read | {"gallery/cells.js": f"window.CELLGEN = {data};\n"} | index


@cache
def pages() -> dict[str, str]:
    """The page of each cell and its picture.

    Raises:
        CellgenError: a cell has no page.
    """
    from cellgen.cells import SHIPPED
    from cellgen.cli import gallery

    texts, failures = gallery.files(SHIPPED, _kept())
    for failure in failures:
        raise failure.error
    return {f"gallery/{name}": _tagged(name, text) for name, text in texts.items()}


def _tagged(name: str, text: str) -> str:
    """The page of a cell under its tags, as MkDocs reads them."""
    cell = next((cell for cell in cells() if f"{cell['name']}.md" == name), None)
    if cell is None:
        return text
    lines = "\n".join(f"  - {tag}" for tag in cell["tags"])
    ahead = 10 ** _begun_by(cell["name"])
    return f"---\nsearch:\n  boost: {ahead}\ntags:\n{lines}\n---\n\n{text}"


def _begun_by(name: str) -> int:
    """How many other cells a search by this name finds, before which this one is listed."""
    names = [str(cell["name"]) for cell in cells()]
    return sum(other.startswith(name) for other in names) - 1


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


# --- cells as data -------------------------------------------------------------------------------


def _shape_text() -> str:
    from cellgen.bench.shapes import NAMED

    return NAMED[SHAPE].text


@cache
def cells() -> list[dict[str, Any]]:
    """Every cell that ships, as plain data."""
    from cellgen.cells import SHIPPED

    return [cell_data(cell) for cell in SHIPPED]


def cell_data(cell: Any) -> dict[str, Any]:
    """One cell, as plain data."""
    from cellgen.bench.shapes import NAMED
    from cellgen.language.value import Role
    from cellgen.pipeline import programs_of, recurrence
    from cellgen.program.over_time import unroll
    from cellgen.views.figures import multiply_adds, row_values
    from cellgen.views.show import as_latex_forward, summary

    definition, found, over_time = cell.definition, recurrence(cell), unroll(cell.definition)
    what, source = summary(definition)
    sizes = NAMED[SHAPE].sizes_of(str(dim) for dim in definition.dims)
    parts = (over_time.forward, over_time.reverse, over_time.deferred)
    once, *back = (per_row(multiply_adds(part)) for part in parts)
    saved, weights = row_values(over_time.saved), sum(Mul(*v.shape) for v in definition.parameters)
    return {
        "name": definition.name,
        "class": definition.class_name,
        "text": what,
        "source": source,
        "year": year(source),
        "inputs": _values(definition.with_role(Role.INPUT)),
        "states": _values(definition.states),
        "parameters": _values(definition.parameters),
        "recurrence": found.kind.value,
        "levels": found.levels,
        "tags": tags(definition.name, found.kind.value),
        "heads": any(len(value.shape) > 2 for value in definition.parameters),
        "equations": as_latex_forward(programs_of(cell)),
        "products": {"forward": _figure(once, sizes), "both": _figure(once + sum(back), sizes)},
        "saved": _figure(saved, sizes) | {"names": [str(value) for value in over_time.saved]},
        "weights": _figure(weights, sizes),
        "speed": speed(definition.name),
    }


def tags(name: str, recurrence: str) -> list[str]:
    """What a cell is found by beside its own words: its name, its family, its recurrence."""
    from cellgen.cli.gallery import family_of

    return [word for word in (name, family_of(name), f"recurrence {recurrence}") if word]


def per_row(amount: Expr) -> Expr:
    """An amount of a step, of each row of the batch."""
    from cellgen.language.value import B

    return sympify(amount / B).expand()


def _values(values: Any) -> list[dict[str, str]]:
    from cellgen.language.value import format_shape

    return [{"name": str(value.name), "shape": format_shape(value.shape)} for value in values]


def _figure(amount: Expr | int, sizes: dict[str, int]) -> dict[str, Any]:
    """An amount as a formula of the cell's dimensions, and at the shape of the page."""
    amount = sympify(amount)
    by = {symbol: sizes[str(symbol)] for symbol in amount.free_symbols}
    text = str(amount).replace("**2", "²").replace("**3", "³").replace("*", "·")
    return {"formula": text, "number": int(amount.subs(by))}


def year(source: str) -> int | None:
    """The year of a source: the first that it names, else that of the preprint."""
    if found := YEAR.search(PREPRINT.sub("", source)):
        return int(found[0])
    found = PREPRINT.search(source)
    return 2000 + int(found[1]) if found else None


# --- speed ---------------------------------------------------------------------------------------


def speed(name: str) -> list[dict[str, Any]]:
    """What was measured of a cell on two threads; nothing where it was not.

    Entries of one run can be compared; of the runs of a shape and mode the last is the one in which
    all cells were measured.
    """
    results = _kept()
    uniform = [run.report for run in results.zoo.runs if run.part == "uniform"]
    return [
        {
            "run": number,
            "shape": case.shape.text,
            "mode": str(case.mode),
            "ms": float(f"{1e3 * case.own.median:.3g}"),
            "floor": round(case.multiple(case.own), 2),
            "device": f"{report.device['processor']}, {str(report.device['date'])[:10]}",
        }
        for number, report in enumerate((*results.reports, *uniform))
        for case in report.cases
        if case.cell == name and case.threads == 2 and case.own.status.is_timed
    ]


@cache
def _kept() -> Any:
    from cellgen.cli.gallery import kept_results

    return kept_results()
