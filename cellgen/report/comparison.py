"""Several cells side by side: what they are, what they cost, what they keep, how fast they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellgen.bench.report import BenchReport
from cellgen.bench.shapes import BenchShape
from cellgen.language.cell import Cell, definition_of
from cellgen.language.value import B, format_axis
from cellgen.pipeline import recurrence, sequence_if_planned
from cellgen.proof.check import Report
from cellgen.report.cell import recurrence_text, shape_text
from cellgen.report.chart import ChartLine
from cellgen.report.memory import MemoryPart, memory_part, saved_line
from cellgen.report.speed import ComparedTimes, compared_times
from cellgen.targets.interface import sequence_signatures
from cellgen.views.figures import multiply_adds, row_values


@dataclass(frozen=True)
class Comparison:
    """A row for each cell under ``heads``, what they keep over T, and times of one run."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    memory: MemoryPart | None
    times: tuple[ComparedTimes, ...]


HEADS = (
    "cell",
    "recurrence",
    "states",
    "multiply-adds forward, a step and row",
    "backward",
    "saved, values a step and row",
    "proof",
)


def compare(
    cells: Sequence[type[Cell]],
    shape: BenchShape,
    proofs: Mapping[str, Report],
    results: Sequence[BenchReport],
) -> Comparison:
    """Compare cells."""
    names = [definition_of(cell).name for cell in cells]
    lines = _kept(cells, shape)
    return Comparison(
        heads=HEADS,
        rows=tuple(_row(cell, proofs) for cell in cells),
        memory=memory_part(lines, shape_text(shape.sizes), "bytes kept over steps")
        if lines
        else None,
        times=compared_times(results, names),
    )


def _row(cell: type[Cell], proofs: Mapping[str, Report]) -> tuple[str, ...]:
    definition, schedule = definition_of(cell), sequence_if_planned(cell)
    proof = proofs.get(definition.name)
    states = ", ".join(map(str, definition.states))
    verdict = "not run" if proof is None else "holds" if proof.ok else "FAILED"
    known = (definition.name, recurrence_text(recurrence(cell)), states)
    if schedule is None:
        return (*known, "", "", "functions of one step only", verdict)
    programs = schedule.programs
    forward = multiply_adds(programs.forward) / B
    backward = (multiply_adds(programs.reverse) + multiply_adds(programs.deferred)) / B
    figures = (forward.expand(), backward.expand(), row_values(programs.saved))
    return (*known, *(format_axis(figure) for figure in figures), verdict)


def _kept(cells: Sequence[type[Cell]], shape: BenchShape) -> tuple[ChartLine, ...]:
    lines = []
    for cell in cells:
        schedule = sequence_if_planned(cell)
        if schedule is not None:
            functions = sequence_signatures(schedule)
            sizes = shape.sizes_of(functions[0].dims)
            lines.append(saved_line(definition_of(cell).name, functions, sizes))
    return tuple(line for line in lines if line.points[0][1] > 0)
