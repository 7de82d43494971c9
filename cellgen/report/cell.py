"""All that a page says of one cell.

Input: a cell, and what was found of it: its proof, its kernel, results of benchmarks. Output:
``CellSection``. Nothing is proved, compiled or timed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellgen.bench.report import BenchReport
from cellgen.bench.shapes import BenchShape
from cellgen.language.cell import Cell, definition_of
from cellgen.language.value import Role, format_shape
from cellgen.pipeline import programs_of, recurrence, sequence_if_planned, time_plans
from cellgen.program.recurrence import Recurrence
from cellgen.proof.check import Report
from cellgen.report.equations import TypesetFunction, functions_of
from cellgen.report.memory import MemoryPart, memory_lines, memory_part
from cellgen.report.picture import EmbeddedPicture, embedded
from cellgen.report.speed import SpeedPart, speed_parts
from cellgen.report.timeline import Timeline, timeline_of
from cellgen.runtime.kernel import Kernel
from cellgen.targets.interface import sequence_signatures
from cellgen.views.explain import explain
from cellgen.views.graph import draw
from cellgen.views.show import summary


@dataclass(frozen=True)
class ReportFindings:
    """What is known of a cell beside its equations; ``proof`` is None where it was left out."""

    shape: BenchShape
    kernel: Kernel | None = None
    proof: Report | None = None
    unproved: str = ""
    results: tuple[BenchReport, ...] = ()


@dataclass(frozen=True)
class CellFact:
    """A word and what it is of this cell."""

    name: str
    text: str


@dataclass(frozen=True)
class CellSection:
    """One cell; parts that there are not are None or empty."""

    name: str
    title: str
    doc: str
    origin: str
    facts: tuple[CellFact, ...]
    values: tuple[tuple[str, str, str], ...]
    functions: tuple[TypesetFunction, ...]
    picture: EmbeddedPicture
    timeline: Timeline | None
    reasons: str
    memory: MemoryPart | None
    speed: tuple[SpeedPart, ...]
    proof: Report | None
    unproved: str


def cell_section(cell: type[Cell], findings: ReportFindings) -> CellSection:
    """Gather all parts of one cell."""
    definition, programs = definition_of(cell), programs_of(cell)
    name = definition.name
    schedule = sequence_if_planned(cell)
    timeline = memory = None
    if schedule is not None:
        timeline = timeline_of(schedule, time_plans(cell))
        functions = sequence_signatures(schedule)
        sizes = findings.shape.sizes_of(functions[0].dims)
        lines = memory_lines(schedule, functions, sizes, findings.kernel)
        label = f"bytes of {name} over the number of steps"
        memory = memory_part(lines, shape_text(sizes), label) if lines else None
    return CellSection(
        name=name,
        title=definition.class_name,
        doc=" ".join(definition.doc.split()),
        origin=definition.origin,
        facts=facts_of(cell),
        values=tuple((v.role.value, str(v), format_shape(v.shape)) for v in definition.declared),
        functions=functions_of(programs),
        picture=embedded(draw(definition), f"Dataflow of one step of {name}"),
        timeline=timeline,
        reasons=str(explain(cell)),
        memory=memory,
        speed=speed_parts(findings.results, name),
        proof=findings.proof,
        unproved=findings.unproved,
    )


def shape_text(sizes: dict[str, int]) -> str:
    """Lengths of dimensions but T, as a page says them."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items() if name != "T")


def facts_of(cell: type[Cell]) -> tuple[CellFact, ...]:
    """A few words on a cell: class, levels, states, parameters, source."""
    definition, kind = definition_of(cell), recurrence(cell)
    _, source = summary(definition)
    facts = [
        CellFact("recurrence", recurrence_text(kind)),
        CellFact("inputs", _names(definition.with_role(Role.INPUT))),
        CellFact("states", _names(definition.states)),
        CellFact("parameters", _names(definition.parameters)),
        CellFact("outputs", _names(definition.outputs)),
        CellFact("source", source),
    ]
    return tuple(fact for fact in facts if fact.text)


def recurrence_text(recurrence_class: Recurrence) -> str:
    """The class of a recurrence and its levels."""
    levels = f"{recurrence_class.levels} level{'' if recurrence_class.levels == 1 else 's'} a step"
    return f"{recurrence_class.kind.value}, {levels}"


def _names(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
