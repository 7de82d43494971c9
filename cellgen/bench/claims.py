"""What was promised about the zoo's speed, judged by the figures of a ``Zoo``; as Markdown.

Every ratio is the median over rounds of one interleaved run. Output: rows of claims, a row for each
cell, and the section of docs/reference/every-cell.md between its two marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cellgen.bench.problem import Mode
from cellgen.bench.report import Case, ContestantEntry
from cellgen.bench.zoo import BUILT_IN, FUSED, GEMM, LOOPS, SHAPES, Work, Zoo, is_dense
from cellgen.errors import UsageError

BUILT_IN_LIMIT = 1.2
GEMM_LIMITS = {Mode.FORWARD: 1.3, Mode.BOTH: 1.5}
GEMM_CELL = "min_gru"
LOOP_FACTOR = 3.0
BEGIN, END = "<!-- zoo: begin -->", "<!-- zoo: end -->"
LOOP_NAMES = tuple(peer.name for peer in LOOPS)


@dataclass(frozen=True)
class Claim:
    """One promise at one shape: the measured figure, and the limit that was promised."""

    text: str
    shape: str
    mode: Mode
    figure: float
    limit: float
    at_least: bool = False
    remark: str = ""

    @property
    def holds(self) -> bool:
        """Whether the figure keeps to its limit."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    def row(self) -> str:
        """The claim as a row of a table."""
        sign = "at least" if self.at_least else "at most"
        verdict = "pass" if self.holds else "**fail**"
        return (
            f"| {self.text} | {self.shape} | {self.mode} | {self.figure:.2f} | {sign} {self.limit} "
            f"| {verdict} | {self.remark} |"
        )


@dataclass(frozen=True)
class Figures:
    """Ratios of a zoo by cell, place and contestant; own time by the contestant's."""

    zoo: Zoo

    def relative(self, cell: str, shape: str, mode: Mode, name: str) -> float | None:
        """The ratio of the latest run that has it."""
        ratios = [
            case.ratio(entry).median
            for case, entry in self._entries()
            if (case.cell, case.shape.text, case.mode, entry.name) == (cell, shape, mode, name)
        ]
        return ratios[-1] if ratios else None

    @property
    def shapes(self) -> tuple[str, ...]:
        """Names of the shapes that were measured."""
        cases = [case for run in self.zoo.runs for case in run.report.cases]
        known = [shape.text for shape in SHAPES]
        texts = dict.fromkeys(case.shape.text for case in cases)
        return (*(text for text in known if text in texts), *(t for t in texts if t not in known))

    @property
    def places(self) -> tuple[tuple[str, Mode], ...]:
        """Every shape in every mode."""
        return tuple((shape, mode) for shape in self.shapes for mode in Mode)

    def _entries(self) -> Iterator[tuple[Case, ContestantEntry]]:
        for run in self.zoo.runs:
            for case in run.report.cases:
                for entry in case.entries:
                    if entry.status.is_timed:
                        yield case, entry

    def by_work(self, cell: str, shape: str, mode: Mode) -> float | None:
        """Time per multiply-add relative to that of the built-in cell of as many levels."""
        built_in = self.zoo.work[cell].built_in
        ratio = self.relative(cell, shape, mode, f"cellgen {built_in}")
        if ratio is None or built_in not in self.zoo.work:
            return None
        mine, its = (self.zoo.work[c].products[f"{mode} {shape}"] for c in (cell, built_in))
        return ratio * its / mine if mine else None

    def speed_up(self, cell: str, shape: str, mode: Mode, name: str) -> float | None:
        """How many times as long a loop takes."""
        ratio = self.relative(cell, shape, mode, name)
        return 1 / ratio if ratio else None


def claims(zoo: Zoo) -> list[Claim]:
    """Judge what was measured; nothing is said of what was not."""
    figures = Figures(zoo)
    return [*_uniform(figures), *_products(figures), *_loops(figures)]


def _uniform(figures: Figures) -> Iterator[Claim]:
    for levels, built_in in BUILT_IN.items():
        for shape, mode in figures.places:
            ratios = {
                cell: ratio
                for cell, work in figures.zoo.work.items()
                if is_dense(work) and work.levels == levels and cell != built_in
                if (ratio := figures.by_work(cell, shape, mode)) is not None
            }
            if ratios:
                worst = max(ratios, key=lambda cell: ratios[cell])
                within = sum(ratio <= BUILT_IN_LIMIT for ratio in ratios.values())
                yield Claim(
                    f"dense cells by `{built_in}`, time per multiply-add, the worst",
                    shape,
                    mode,
                    ratios[worst],
                    BUILT_IN_LIMIT,
                    remark=f"`{worst}`; {within} of {len(ratios)} within",
                )


def _products(figures: Figures) -> Iterator[Claim]:
    for shape, mode in figures.places:
        ratio = figures.relative(GEMM_CELL, shape, mode, GEMM.name)
        if ratio is not None:
            text = f"`{GEMM_CELL}` by its bare input products"
            yield Claim(text, shape, mode, ratio, GEMM_LIMITS[mode], remark="NumPy's BLAS")


def _loops(figures: Figures) -> Iterator[Claim]:
    for cell in FUSED:
        for shape, mode in figures.places:
            ratios = {
                name: factor
                for name in LOOP_NAMES
                if (factor := figures.speed_up(cell, shape, mode, name)) is not None
            }
            if mode is Mode.BOTH and ratios:
                best = min(ratios, key=lambda name: ratios[name])
                remark = f"{best}; of {', '.join(ratios)}"
                text = f"`{cell}`, times faster than the best loop"
                yield Claim(text, shape, mode, ratios[best], LOOP_FACTOR, True, remark)


# --- Markdown ------------------------------------------------------------------------------------


def markdown(zoo: Zoo) -> str:
    """Write the section: machine, commands, claims, cells, what was left out."""
    figures = Figures(zoo)
    blocks = [
        "\n".join(_machine(zoo)),
        "| claim | T,B,I,H | | found | promised | | |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(claim.row() for claim in claims(zoo)),
        "Each cell: time per multiply-add relative to the kernel of the built-in cell (columns of "
        "each shape, forward and forward+backward), and how many times as long the loops take "
        "(forward+backward, the first shape):",
        "\n".join(_cells(figures)),
        *_left_out(zoo),
    ]
    return "\n\n".join(block for block in blocks if block)


def _machine(zoo: Zoo) -> Iterator[str]:
    for run in zoo.runs:
        device = run.report.device
        threads = ", ".join(str(rates.threads) for rates in run.report.rates)
        versions = ", ".join(f"{name} {text}" for name, text in device["versions"].items())
        yield (
            f"* `{run.command}` ({run.part}): {device['processor']}, {str(device['date'])[:10]}, "
            f"{threads} threads, {run.report.rounds} rounds; {versions}"
        )


def _cells(figures: Figures) -> Iterator[str]:
    heads = [f"{text} {'f' if mode is Mode.FORWARD else 'f+b'}" for text, mode in figures.places]
    yield f"| cell | recurrence | by | {' | '.join(heads)} | {' | '.join(LOOP_NAMES)} |"
    yield "|" + "---|" * (3 + len(heads) + len(LOOP_NAMES))
    for cell, work in figures.zoo.work.items():
        ratios = [figures.by_work(cell, shape, mode) for shape, mode in figures.places]
        first = figures.shapes[0]
        factors = [figures.speed_up(cell, first, Mode.BOTH, name) for name in LOOP_NAMES]
        if any(figure is not None for figure in (*ratios, *factors)):
            figured = " | ".join(_figure(figure) for figure in (*ratios, *factors))
            yield f"| `{cell}` | {_kind(work)} | `{work.built_in}` | {figured} |"


def _kind(work: Work) -> str:
    return f"{work.kind}, {work.levels}" if is_dense(work) else work.kind


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _left_out(zoo: Zoo) -> Iterable[str]:
    """Contestants that failed, differed or took too long, each with the reason."""
    lines = [
        f"* {entry.name}, `{case.cell}` {case.mode} {case.shape.text}: {entry.text}"
        for run in zoo.runs
        for case in run.report.cases
        for entry in case.entries
        if not entry.status.is_timed
    ]
    return ["Left out:\n\n" + "\n".join(lines)] if lines else []


def in_document(text: str, zoo: Zoo) -> str:
    """Put the section between its two marks.

    Raises:
        UsageError: a document without the marks.
    """
    return between(text, BEGIN, END, markdown(zoo))


def between(text: str, begin: str, end: str, section: str) -> str:
    """Put a section between two marks of a document.

    Raises:
        UsageError: a document without the marks.
    """
    before, mark, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not mark or not closed:
        raise UsageError(f"the document has no {begin} and {end}; put them where the table belongs")
    return f"{before}{begin}\n\n{section}\n\n{end}{after}"
