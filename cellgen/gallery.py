"""Make a page for every cell: equations, derivation, plan, picture, speed.

Input: cells, and results of ``cellgen bench`` where some were kept. Output: Markdown and SVG by
file name, from the code of ``cellgen show``, ``explain`` and ``picture``; nothing is typed twice
and nothing is compiled. The same cells and results give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cellgen.bench.command import read
from cellgen.bench.report import FORMAT, Case, Report
from cellgen.cell import Cell, Definition, definition_of
from cellgen.errors import BuildError, UsageError
from cellgen.explain import explain
from cellgen.paths import PACKAGE, in_checkout
from cellgen.picture import draw
from cellgen.pipeline import programs_of, recurrence
from cellgen.show import as_latex_forward, as_text_derived, summary
from cellgen.tree import Difference, difference_of, read_text

INDEX = "README.md"


def gallery_folder(out: Path | None) -> Path:
    """Where the gallery stands: ``out``, else the checkout's ``docs/gallery``.

    Raises:
        UsageError: neither.
    """
    if out is not None:
        return out
    if not in_checkout():
        raise UsageError("the gallery stands in a checkout; name a folder: --out DIR")
    return PACKAGE.parent / "docs" / "gallery"


def kept_results() -> tuple[Report, ...]:
    """Results of ``cellgen bench`` that the checkout keeps, by file name; none elsewhere."""
    folder = PACKAGE.parent / "benchmarks" / "results"
    paths = sorted(folder.glob("*.json")) if in_checkout() and folder.is_dir() else []
    return tuple(read(path) for path in paths if _holds_report(path))


def _holds_report(path: Path) -> bool:
    """Tell a result of ``cellgen bench`` from other results, such as the zoo's many in one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return isinstance(data, dict) and data.get("format") == FORMAT


def index(cells: Sequence[type[Cell]]) -> str:
    """The page that lists the others."""
    rows = []
    for cell in cells:
        definition, found = definition_of(cell), recurrence(cell)
        what, source = summary(definition)
        rows.append(
            f"| [{definition.name}]({definition.name}.md) | {what} | {found.kind.value} "
            f"| {found.levels} | {source} |"
        )
    lines = [
        "# Gallery",
        "",
        "Every cell that ships: its equations, what is derived from them, how it runs over time "
        "and why, its picture, and its speed where it was measured. `cellgen gallery` writes "
        "these pages; do not edit them.",
        "",
        "| cell | what it is | recurrence | levels a step | source |",
        "|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def page(cell: type[Cell], results: Iterable[Report] = ()) -> dict[str, str]:
    """The page of one cell and its picture, by file name."""
    definition, programs = definition_of(cell), programs_of(cell)
    name = definition.name
    blocks = [
        f"# {definition.class_name}",
        " ".join(definition.doc.split()),
        f'`cellgen.load("{name}")`, declared in [{_module(definition)}]({_link(definition)}); '
        f"[all cells]({INDEX}).",
        "## Equations",
        "```math\n" + as_latex_forward(programs) + "\n```",
        f"![One step of {name}]({name}.svg)",
        "## Derivation",
        "```text\n" + as_text_derived(programs) + "\n```",
        "## Plan",
        "```text\n" + str(explain(cell)) + "\n```",
        *_speed(name, results),
    ]
    return {f"{name}.md": "\n\n".join(blocks) + "\n", f"{name}.svg": draw(definition)}


def _module(definition: Definition) -> str:
    return definition.origin.partition(":")[0]


def _link(definition: Definition) -> str:
    return "../../" + _module(definition).replace(".", "/") + ".py"


def _speed(name: str, results: Iterable[Report]) -> list[str]:
    """A table for each kept result that holds the cell; nothing where it was not measured."""
    blocks = []
    for report in results:
        cases = [case for case in report.cases if case.cell == name]
        if cases:
            date = str(report.device["date"])[:10]
            blocks.append(
                f"{report.device['processor']}, {date}; multiples of the floor, the larger of "
                f"products at the best rate and compulsory memory traffic:\n\n{_table(cases)}"
            )
    return ["## Speed", *blocks] if blocks else []


def _table(cases: Sequence[Case]) -> str:
    rows = ["| T, B, I, H | threads | | ms | floor | best peer |", "|---|---|---|---|---|---|"]
    for case in cases:
        shape, own, peer = case.shape, case.own.median, case.best_peer
        best = f"{peer.name} {case.multiple(peer.median):.2f}" if peer else ""
        rows.append(
            f"| {shape.T}, {shape.B}, {shape.I}, {shape.H} | {case.threads} | {case.mode} "
            f"| {1e3 * own:.2f} | {case.multiple(own):.2f} | {best} |"
        )
    return "\n".join(rows)


# --- files ---------------------------------------------------------------------------------------


def files(cells: Sequence[type[Cell]], results: Sequence[Report]) -> dict[str, str]:
    """All files of the gallery by name."""
    pages = {INDEX: index(cells)}
    for cell in cells:
        pages |= page(cell, results)
    return pages


def write(folder: Path, pages: Mapping[str, str]) -> None:
    """Write the pages and remove those of cells that are no more.

    Raises:
        BuildError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in stale(folder, pages):
            path.unlink()
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror}") from None


def stale(folder: Path, pages: Mapping[str, str]) -> list[Path]:
    """Pages that stand there and belong to no cell."""
    found = [*folder.glob("*.md"), *folder.glob("*.svg")]
    return sorted(path for path in found if path.name not in pages)


def differences(folder: Path, pages: Mapping[str, str]) -> list[Difference]:
    """What is not as it would be written."""
    changed = [name for name, text in pages.items() if read_text(folder / name) != text]
    found = [difference_of(folder / name, pages[name]) for name in changed]
    gone = [Difference(path, f"{path} belongs to no cell", False) for path in stale(folder, pages)]
    return [*found, *gone]
