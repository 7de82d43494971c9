"""Plan an export: what runs a cell, and what trains it, lowered step by step.

Input: ``SequencePrograms``. Output: ``ExportPlan``: its static functions in the order in which a
target writes them, each with its stages and the places of its arrays, as ``lower`` gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from cellgen.language.value import Role, Value
from cellgen.program.learning import learning, running, training
from cellgen.program.over_time import SequencePrograms
from cellgen.schedule.groups import Group
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.lower.plan import How, Place
from cellgen.schedule.over_time import SequenceSchedule, schedule_sequence
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction, Stage
from cellgen.targets.interface import sequence_signatures


@dataclass(frozen=True)
class StaticFunction:
    """One function of an export: its arrays in order, its stages, and where its arrays lie.

    ``sums``: what it adds to, step after step.
    """

    name: str
    arguments: tuple[Value, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    places: tuple[Place, ...]
    sums: frozenset[Buffer] = frozenset()

    def place(self, buffer: Buffer) -> Place:
        """Where an array lies."""
        return next(place for place in self.places if place.buffer == buffer)

    @property
    def work(self) -> tuple[Buffer, ...]:
        """Arrays that live while it runs."""
        return tuple(buffer for buffer in self.buffers if buffer.kind is BufferKind.WORKSPACE)


@dataclass(frozen=True)
class PlansOverTime:
    """A schedule by step, and the plans of its two functions over time."""

    schedule: SequenceSchedule
    forward: TimePlan
    backward: TimePlan

    @staticmethod
    def of(programs: SequencePrograms) -> PlansOverTime:
        """Lower programs step by step."""
        schedule = schedule_sequence(programs, by_step=True)
        return PlansOverTime(schedule, *lower(schedule, sequence_signatures(schedule)))

    @property
    def programs(self) -> SequencePrograms:
        """What is planned."""
        return self.schedule.programs

    def once(self, plan: TimePlan, function: PlannedFunction | None) -> Iterable[StaticFunction]:
        """What runs before the first step or after the last."""
        if function is None:
            return
        places = (
            Place(buffer, How.MEMORY if inside else How.MEMBER, of, None)
            for buffer, of, inside in plan.once_places
            if buffer in function.buffers
        )
        program = function.program
        yield StaticFunction(
            function.name, program.arguments, function.buffers, function.stages, tuple(places)
        )

    def part(self, plan: TimePlan, name: str) -> StaticFunction:
        """A part of every step."""
        part = next(part for part in plan.parts if part.name == name)
        function = getattr(self.schedule, name).function
        totals = {total.name for total in plan.totals} if name == "deferred" else set[str]()
        return StaticFunction(
            function.name,
            function.program.arguments,
            function.buffers,
            tuple(work for work in part.work if not isinstance(work, Group)),
            part.places,
            frozenset(b for b in function.of_kind(BufferKind.RESULT) if b.name in totals),
        )


@dataclass(frozen=True)
class ExportPlan:
    """A cell as functions of one step: ``run`` it, and ``train`` it, where that is wanted.

    ``learning``: what a training step changes, of the cell's ``parameters``.
    """

    run: PlansOverTime
    train: PlansOverTime | None
    learning: tuple[Value, ...]

    @staticmethod
    def of(programs: SequencePrograms, *, train: bool) -> ExportPlan:
        """Plan what runs a cell; what trains it as well, where that is wanted and it learns."""
        learned = learning(programs)
        trains = PlansOverTime.of(training(programs)) if train and learned else None
        return ExportPlan(PlansOverTime.of(running(programs)), trains, learned)

    @property
    def programs(self) -> SequencePrograms:
        """The programs of what runs the cell."""
        return self.run.programs

    @property
    def parameters(self) -> tuple[Value, ...]:
        """Weights, biases and the scalars that learn."""
        weights = (v for v in self.programs.arguments if v.role in (Role.WEIGHT, Role.BIAS))
        return tuple(dict.fromkeys((*weights, *self.learning)))

    @property
    def arguments(self) -> tuple[Value, ...]:
        """What a step is given beside parameters and states, in order of declaration."""
        taken = {*self.parameters, *self.programs.definition.states}
        return tuple(v for v in self.programs.arguments if v not in taken)

    @cached_property
    def prologue(self) -> StaticFunction | None:
        """What runs once, on weights alone."""
        return next(iter(self.run.once(self.run.forward, self.run.forward.prologue)), None)

    @cached_property
    def functions(self) -> tuple[StaticFunction, ...]:
        """All functions, in the order in which a target writes them."""
        functions = [self.run.part(self.run.forward, "forward")]
        if self.train is not None:
            functions += [
                self.train.part(self.train.forward, "forward"),
                self.train.part(self.train.backward, "reverse"),
                self.train.part(self.train.backward, "deferred"),
                *self.train.once(self.train.backward, self.train.backward.epilogue),
            ]
        return (self.prologue, *functions) if self.prologue else tuple(functions)
