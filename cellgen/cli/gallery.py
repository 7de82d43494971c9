"""Make a page for every cell: equations, picture, use, derivation, plan, speed, cells like it.

Input: cells, and results of ``cellgen bench`` and of the zoo's benchmark where some were kept.
Output: Markdown and SVG by file name, from the code of ``cellgen show``, ``explain`` and
``picture``; nothing is typed twice and nothing is compiled. The same cells and results give the
same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cellgen.bench.claims import Figures
from cellgen.bench.report import FORMAT, BenchReport, Case
from cellgen.bench.zoo import Zoo, ZooRun, read_zoo
from cellgen.cli.bench import read
from cellgen.cli.gallery_use import use
from cellgen.errors import BuildError, CellgenError, Failure, UsageError
from cellgen.files.tree import Difference, difference_of, read_text
from cellgen.language.cell import Cell, Definition, definition_of
from cellgen.pipeline import programs_of, recurrence
from cellgen.program.chunks import form_over_time
from cellgen.program.step import CellPrograms
from cellgen.runtime.paths import PACKAGE, in_checkout
from cellgen.views import chunks
from cellgen.views.explain import explain
from cellgen.views.families import FAMILIES
from cellgen.views.graph import draw
from cellgen.views.show import (
    INTENTIONS,
    as_latex_forward,
    as_text_derived,
    section_latex,
    sections,
    summary,
)

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
NAMED = re.compile(r"\w+<\w+>")
"""A name with a part that stands for others, which Markdown would take for a tag."""
INDEX = "README.md"
ABOUT = "`cellgen gallery` writes these pages"
LOADED = '`cellgen.load("{}")`, declared in ['
"""What the index and the page of a cell say of themselves."""


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


@dataclass(frozen=True)
class KeptResults:
    """What was measured: results of ``cellgen bench``, and the zoo's runs."""

    reports: tuple[BenchReport, ...]
    zoo: Zoo


NOT_MEASURED = KeptResults((), Zoo((), {}))


def kept_results() -> KeptResults:
    """Results that the checkout keeps, by file name; none elsewhere.

    Raises:
        UsageError: a file that cannot be read as what it says it is.
    """
    folder = PACKAGE.parent / "benchmarks" / "results"
    if not in_checkout():
        return NOT_MEASURED
    paths = sorted(path for path in folder.glob("*.json") if _holds_report(path))
    return KeptResults(tuple(read(path) for path in paths), read_zoo(folder / "zoo.json"))


def _holds_report(path: Path) -> bool:
    """Tell a result of ``cellgen bench`` from other results, such as the zoo's many in one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return isinstance(data, dict) and data.get("format") == FORMAT


def index(cells: Sequence[type[Cell]]) -> str:
    """The page that lists the others."""
    rows = []
    for cell in cells:
        definition, over_time = definition_of(cell), recurrence(cell)
        what, source = summary(definition)
        rows.append(
            f"| [{definition.name}]({definition.name}.md) | {what} | {over_time.kind.value} "
            f"| {over_time.levels} | {source} |"
        )
    lines = [
        "# Gallery",
        "",
        "Every cell that ships: its equations, what is derived from them, how it runs over time "
        f"and why, its picture, and its speed where it was measured. {ABOUT}; do not edit them.",
        "",
        "| cell | what it is | recurrence | levels a step | source |",
        "|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def page(cell: type[Cell], results: KeptResults = NOT_MEASURED) -> dict[str, str]:
    """The page of one cell and its picture, by file name."""
    definition, programs = definition_of(cell), programs_of(cell)
    name = definition.name
    blocks = [
        f"# {definition.class_name}",
        _with_papers(" ".join(definition.doc.split())),
        f"{LOADED.format(name)}{_module(definition)}]({_link(definition)}); [all cells]({INDEX}).",
        "## Equations",
        "```math\n" + as_latex_forward(programs) + "\n```",
        f"![One step of {name}]({name}.svg)",
        use(definition),
        "## Derivation",
        *_derivation(programs),
        "## Plan",
        "```text\n" + str(explain(cell)) + "\n```",
        *_chunks(definition),
        *_speed(name, results),
        *_see_also(name),
    ]
    return {f"{name}.md": "\n\n".join(blocks) + "\n", f"{name}.svg": draw(definition)}


def _chunks(definition: Definition) -> list[str]:
    """The programs of whole chunks, where a cell has a form over time."""
    if form_over_time(definition).refusal is not None:
        return []
    return ["## In chunks", "```text\n" + chunks.as_text(definition) + "\n```"]


def _with_papers(doc: str) -> str:
    """What a cell says of itself, with links to its papers."""
    return ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", doc)


def _derivation(programs: CellPrograms) -> list[str]:
    """Every derived function typeset, then all of them as text."""
    blocks = []
    for section in sections(programs)[1:]:
        intention = NAMED.sub(r"`\g<0>`", INTENTIONS[section.name])
        blocks.append(f"### {section.name}\n\n{intention[0].upper()}{intention[1:]}.")
        if section.lines:
            blocks.append("```math\n" + section_latex(section).partition("\n")[2] + "\n```")
    blocks.append("### As text")
    return [*blocks, "```text\n" + as_text_derived(programs) + "\n```"]


def family_of(name: str) -> str:
    """The family of a cell that ships; of any other nothing."""
    return next((family for family, names in FAMILIES.items() if name in names.split()), "")


def _see_also(name: str) -> list[str]:
    """The other cells of the family."""
    family = family_of(name)
    others = [other for other in FAMILIES.get(family, "").split() if other != name]
    if not others:
        return []
    links = ", ".join(f"[{other}]({other}.md)" for other in others)
    return ["## See also", f"Other cells of the family {family}: {links}."]


def _module(definition: Definition) -> str:
    return definition.origin.partition(":")[0]


def _link(definition: Definition) -> str:
    return "../../" + _module(definition).replace(".", "/") + ".py"


# --- speed ---------------------------------------------------------------------------------------

FLOOR = "the floor is the larger of products at {} and compulsory memory traffic"
BY_ROUND = FLOOR.format("the rate of a large product in the same round")
BY_RUN = FLOOR.format("the best rate of the run")


def _speed(name: str, results: KeptResults) -> list[str]:
    """A table for each kept result that holds the cell; nothing where it was not measured."""
    blocks = []
    for report in results.reports:
        if cases := _cases(name, report):
            blocks.append(
                f"{_machine(report)}; as multiples of the floor, where {BY_ROUND}:\n\n"
                f"{_table(cases, _COLUMNS)}"
            )
    for run in results.zoo.runs:
        if cases := _cases(name, run.report):
            built_in, by_work = results.zoo.work[name].built_in, _by_work(run, results.zoo)
            against = f", and of `{built_in}`'s time at equal multiply-adds, in turn with it"
            blocks.append(
                f"`{run.command.partition(' --into ')[0]}` ({run.part}): {_machine(run.report)}, "
                f"{run.report.rounds} rounds; as multiples of the floor"
                f"{against if any(map(by_work, cases)) else ''}, where {BY_RUN}:\n\n"
                f"{_table(cases, {**_COLUMNS, f'by `{built_in}`': by_work})}"
            )
    return ["## Speed", *blocks] if blocks else []


def _cases(name: str, report: BenchReport) -> list[Case]:
    return [case for case in report.cases if case.cell == name and case.own.status.is_timed]


def _machine(report: BenchReport) -> str:
    return f"{report.device['processor']}, {str(report.device['date'])[:10]}"


def _shape(case: Case) -> str:
    return f"{case.shape.T}, {case.shape.B}, {case.shape.I}, {case.shape.H}"


def _best_peer(case: Case) -> str:
    peer = case.best_peer
    return f"{peer.name} {case.multiple(peer):.2f}" if peer else ""


def _by_work(run: ZooRun, zoo: Zoo) -> Callable[[Case], str]:
    """Tell the time relative to the built-in cell's at equal multiply-adds, by this run alone."""
    figures = Figures(Zoo((run,), zoo.work))

    def text(case: Case) -> str:
        multiple = figures.by_work(case.cell, case.shape.text, case.mode)
        return "" if multiple is None else f"{multiple:.2f}"

    return text


_COLUMNS: Mapping[str, Callable[[Case], str]] = {
    "T, B, I, H": _shape,
    "threads": lambda case: str(case.threads),
    "pass": lambda case: str(case.mode),
    "ms": lambda case: f"{1e3 * case.own.median:.2f}",
    "floor": lambda case: f"{case.multiple(case.own):.2f}",
    "best peer": _best_peer,
}


def _table(cases: Sequence[Case], columns: Mapping[str, Callable[[Case], str]]) -> str:
    """Lay out figures by case; a column that would be empty is left out."""
    texts = {head: [text(case) for case in cases] for head, text in columns.items()}
    filled = {head: column for head, column in texts.items() if any(column)}
    heads = ["| " + " | ".join(filled) + " |", "|" + "---|" * len(filled)]
    rows = ["| " + " | ".join(row) + " |" for row in zip(*filled.values(), strict=True)]
    return "\n".join([*heads, *rows]).replace("|  |", "| |")


# --- files ---------------------------------------------------------------------------------------


def files(
    cells: Sequence[type[Cell]],
    results: KeptResults,
    done: Callable[[str, str], None] = lambda name, state: None,
) -> tuple[dict[str, str], list[Failure]]:
    """All files of the gallery by name, and the cells that have no page.

    ``done`` is told the name of each cell whose page is over, and how it ended.
    """
    pages: dict[str, str] = {}
    listed, failures = [], []
    for cell in cells:
        try:
            pages |= page(cell, results)
        except CellgenError as error:
            failures.append(Failure(cell.definition.name, error))
            done(cell.definition.name, "FAILED")
        else:
            listed.append(cell)
            done(cell.definition.name, "written")
    return {INDEX: index(listed), **pages}, failures


def write(folder: Path, pages: Mapping[str, str], *, is_whole: bool = True) -> None:
    """Write the pages and, where they are of all cells, remove those of cells that are no more.

    Raises:
        UsageError: a file of that name is there which is no page of a gallery; nothing is written.
        BuildError: a file cannot be written.
    """
    for path in (folder / name for name in pages):
        if path.exists() and not _is_page(path):
            raise UsageError(
                f"{path} is there and no page of a gallery; move it, or name another folder: "
                f"--out DIR"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in stale(folder, pages) if is_whole else ():
            path.unlink()
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror}") from None


def stale(folder: Path, pages: Mapping[str, str]) -> list[Path]:
    """Pages that stand there and belong to no cell; other files are nobody's matter here."""
    own = [*folder.glob("*.md"), *folder.glob("*.svg")]
    return sorted(path for path in own if path.name not in pages and _is_page(path))


def _is_page(path: Path) -> bool:
    """Whether a file is of a gallery, by what its pages and pictures say of themselves."""
    marks = (ABOUT, LOADED.format(path.stem), f"<title>{path.stem}: one step")
    text = read_text(path) or ""
    return any(mark in text for mark in marks)


def differences(
    folder: Path, pages: Mapping[str, str], *, is_whole: bool = True
) -> list[Difference]:
    """What is not as it would be written."""
    changed = [name for name, text in pages.items() if read_text(folder / name) != text]
    changes = [difference_of(folder / name, pages[name]) for name in changed]
    gone = [Difference(path, f"{path} belongs to no cell", False) for path in stale(folder, pages)]
    return [*changes, *gone] if is_whole else changes
