"""The whole compiler in half a dozen lines: a cell in, its sources out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache

from cellgen.errors import DerivationError
from cellgen.language.cell import Cell, definition_of
from cellgen.language.cell.depth import depth_explained
from cellgen.program.over_time import unroll
from cellgen.program.recurrence import Recurrence, recurrence_of
from cellgen.program.step import CellPrograms, derive_functions
from cellgen.schedule import Schedule, schedule_step
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.over_time import NOT_OVER_TIME, SequenceSchedule, schedule_sequence
from cellgen.targets import PlannedCell, Source, render, target_of
from cellgen.targets.interface import sequence_signatures


@lru_cache(maxsize=256)
def programs_of(cell: type[Cell]) -> CellPrograms:
    """Declare -> derive -> simplify: the verified programs of a cell."""
    with _depth_explained(cell):
        return derive_functions(definition_of(cell))


def schedule_of(cell: type[Cell]) -> Schedule:
    """... -> schedule: what runs when, and where each value lives."""
    return schedule_step(programs_of(cell))


def sequence_of(cell: type[Cell]) -> SequenceSchedule:
    """Declare -> unroll -> schedule: the time loop, forward and backward."""
    return schedule_sequence(unroll(definition_of(cell)))


def time_plans(cell: type[Cell]) -> tuple[TimePlan, ...]:
    """... -> lower: what the loops over time do, forward and backward.

    None for a cell whose time loop is not planned.
    """
    schedule = sequence_if_planned(cell)
    return lower(schedule, sequence_signatures(schedule)) if schedule else ()


def schedules_of(cell: type[Cell], target: str = "c") -> str:
    """Print what runs when and where each value lives: the functions of a step, then over time.

    What a target plans beside them follows.
    """
    own = target_of(target).plans(planned(cell))
    return "\n".join(map(str, (schedule_of(cell), *time_plans(cell), *own)))


def recurrence(cell: type[Cell]) -> Recurrence:
    """Declare -> unroll: what kind of recurrence the equations are, and why."""
    return recurrence_of(unroll(definition_of(cell)))


def planned(cell: type[Cell]) -> PlannedCell:
    """Declare -> derive -> schedule: what every target spells."""
    return PlannedCell.of(definition_of(cell), schedule_of(cell), sequence_if_planned(cell))


def generate(cell: type[Cell], targets: Iterable[str] = ()) -> Source:
    """Run the whole compiler, Cell -> Programs -> Schedule -> Source, for some targets.

    For all of cellgen's own where none is named.

    Raises:
        DeclarationError: what is given is no cell.
        DerivationError: a fault of the compiler, found by a verifier.
    """
    with _depth_explained(cell):
        return render(planned(cell), targets)


def _depth_explained(cell: type[Cell]) -> AbstractContextManager[None]:
    definition = definition_of(cell)
    expressions = {str(e.target.name): e.expression for e in definition.equations}
    return depth_explained(definition.class_name, expressions)


def explain(cell: type[Cell], target: str) -> list[str]:
    """Say what a target makes of a cell's plan, one line each, and why."""
    return target_of(target).explain(planned(cell))


def sequence_if_planned(cell: type[Cell]) -> SequenceSchedule | None:
    """Plan the time loop, or return None where there is none.

    A cell that has work on weights alone in its step has the functions of one step only.
    """
    try:
        return sequence_of(cell)
    except DerivationError as error:
        if error.code != NOT_OVER_TIME:
            raise
        return None
