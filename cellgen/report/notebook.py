"""The HTML of one value, for a notebook: cells, programs, plans, kernels, results.

Input: a value of a kind in ``_KINDS``. Output: a fragment with its own style, which takes its
colours from the page around it, and no script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import cast

from cellgen.bench.report import BenchReport
from cellgen.language.cell import Cell, CellMeta, definition_of
from cellgen.pipeline import programs_of
from cellgen.program.ssa import Program
from cellgen.program.step import CellPrograms
from cellgen.proof.check import Report
from cellgen.report.cell import CellFact, facts_of
from cellgen.report.equations import TypesetFunction, functions_of, statements_of
from cellgen.report.picture import EmbeddedPicture, embedded
from cellgen.report.speed import speed_parts
from cellgen.report.timeline import phases_of, timeline_of
from cellgen.runtime.abi import Argument, Function, Interface
from cellgen.runtime.call.document import headline, notes_on
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.call.function import KernelFunction
from cellgen.runtime.host.plans import SequencePlan
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.targets.interface import sequence_signatures
from cellgen.targets.templates import fill
from cellgen.views.explanation import Explanation
from cellgen.views.graph import draw
from cellgen.views.show import as_latex_forward


@dataclass(frozen=True)
class NotebookFragment:
    """Of ``report/fragment.html.j2``: a macro of the parts, and what it is given."""

    kind: str
    part: object


@dataclass(frozen=True)
class CellView:
    """A cell, as it shows itself: equations, and behind a click what follows from them."""

    title: str
    name: str
    doc: str
    facts: tuple[CellFact, ...]
    functions: tuple[TypesetFunction, ...]
    picture: EmbeddedPicture


@dataclass(frozen=True)
class SignatureView:
    """One function of a kernel: the call as it is written, then a row for each argument, result."""

    name: str
    headline: str
    arguments: tuple[tuple[str, str, str], ...]
    results: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class KernelView:
    """A kernel: its cell, what identifies it, its functions."""

    name: str
    digest: str
    functions: tuple[SignatureView, ...]


def html(value: object) -> str:
    """Return the HTML of a value.

    Raises:
        TypeError: a value of a kind that has none.
        CellgenError: a cell that is unfinished.
    """
    for kind, (macro, view) in _KINDS.items():
        if isinstance(value, kind):
            return fill("report/fragment.html.j2", NotebookFragment(macro, view(value)))
    if isinstance(interface := getattr(value, "interface", None), Interface):
        return fill("report/fragment.html.j2", NotebookFragment("kernel", _kernel(interface)))
    raise TypeError(f"{type(value).__name__} has no HTML")


def latex(cell: type[Cell]) -> str:
    """Return the equations of a cell as LaTeX. Raises DeclarationError for an unfinished one."""
    definition_of(cell)
    return as_latex_forward(programs_of(cell))


# --- one kind each -------------------------------------------------------------------------------


def _cell(value: object) -> CellView:
    cell = cast("type[Cell]", value)
    definition, programs = definition_of(cell), programs_of(cell)
    return CellView(
        title=definition.class_name,
        name=definition.name,
        doc=" ".join(definition.doc.split()),
        facts=facts_of(cell),
        functions=functions_of(programs),
        picture=embedded(draw(definition), f"Dataflow of one step of {definition.name}"),
    )


def _programs(value: object) -> tuple[TypesetFunction, ...]:
    return functions_of(cast("CellPrograms", value))


def _program(value: object) -> tuple[TypesetFunction, ...]:
    return (statements_of(cast("Program", value)),)


def _schedule(value: object) -> object:
    schedule = cast("SequenceSchedule", value)
    return timeline_of(schedule, lower(schedule, sequence_signatures(schedule)))


def _time_plan(value: object) -> object:
    return [phase for phase in phases_of(cast("TimePlan", value)) if phase.stages]


def _chosen_plan(value: object) -> object:
    plan = cast("SequencePlan", value)
    return [(item.name, str(getattr(plan, item.name))) for item in fields(plan)]


def _bench(value: object) -> object:
    return speed_parts([cast("BenchReport", value)])


def _function(value: object) -> object:
    return [_signature(cast("KernelFunction", value).function)]


def _kernel(interface: Interface) -> KernelView:
    functions = tuple(_signature(function) for function in interface.functions)
    return KernelView(interface.name, interface.digest, functions)


def _signature(function: Function) -> SignatureView:
    return SignatureView(
        name=function.name,
        headline=headline(function.name, function),
        arguments=tuple(
            _row(item, notes_on(item)) for item in function.arguments if not item.saved
        ),
        results=tuple(_row(item, _notes_on_result(item)) for item in function.results),
    )


def _row(item: Argument, notes: list[str]) -> tuple[str, str, str]:
    shape = f"number, default {item.default}" if item.is_scalar else shape_text(item)
    return item.name, shape, "; ".join(notes)


def _notes_on_result(item: Argument) -> list[str]:
    notes = [item.text] if item.text else []
    if item.saved:
        notes = ["with save=True"]
    elif item.optional:
        notes.append("formed where it is wanted")
    return notes


_KINDS: dict[type, tuple[str, Callable[[object], object]]] = {
    CellMeta: ("cell_view", _cell),
    CellPrograms: ("functions", _programs),
    Program: ("functions", _program),
    SequenceSchedule: ("timeline", _schedule),
    TimePlan: ("phase_cards", _time_plan),
    SequencePlan: ("chosen", _chosen_plan),
    Explanation: ("explanation", lambda value: value),
    Report: ("proof_of", lambda value: value),
    BenchReport: ("speed", _bench),
    KernelFunction: ("signatures", _function),
}
"""Macro of the parts, and what it is given, by kind of value. Kernels of all backends come last."""
