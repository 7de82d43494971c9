"""Follow a time plan over a few steps: what is read is there, and threads meet where they have to.

Input: ``TimePlan``. Three rules hold of each part, address by address (an array and a step):

- nothing is read before it is written, in memory of the workspace or in a result of the caller;
- nothing is overwritten while it is live: what is read is the value that was written there last;
- where threads share units, they meet between a write and what another thread reads or writes
  there, and between a read and what another thread writes there. A thread has the same units in
  every stage of as many units. Of the deferred part threads share rows, or the results of products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from cellgen.schedule.lower.plan import (
    GroupPlan,
    How,
    LoopPlan,
    OutersPlan,
    PartPlan,
    Place,
    RoutinePlan,
    StagePlan,
    State,
    StripPlan,
    TimePlan,
)
from cellgen.schedule.schedule import Access, Buffer, BufferKind, Loop, View

STEPS = 3
"""Of the sequence that is followed: a first, a middle and a last one."""
Address: TypeAlias = tuple[str, str, int]
"""A kind of array, its name, and a step of it."""
Tag: TypeAlias = tuple[str, int]
"""A value, and the step that it is of."""
ALL = -2
"""The rows of all steps of a chunk, and what is the same at each."""


@dataclass(frozen=True)
class BufferUse:
    """An array that a stage reads or writes; ``own``: a thread those of its own units alone."""

    buffer: Buffer
    writes: bool
    own: bool


def reaches(stage: StagePlan) -> Iterator[BufferUse]:
    """What a stage reads and writes, loop by loop in its order."""
    if isinstance(stage, OutersPlan):
        yield from (BufferUse(o.buffer, False, False) for o in (*stage.lefts, *stage.rights))
        yield from (BufferUse(outer.target, True, False) for outer in stage.outers)
        return
    if isinstance(stage, RoutinePlan):
        yield from (BufferUse(view.buffer, False, False) for view in stage.routine.operands)
        yield BufferUse(stage.routine.target.buffer, True, False)
        return
    if isinstance(stage, GroupPlan):
        yield from (BufferUse(run.operand, False, False) for run in stage.runs)
        slots = (slot.view.buffer for slot in stage.group.slots if slot.needs_memory)
        yield from (BufferUse(buffer, True, True) for buffer in slots)
    formed = _slots(stage)
    for loop in _loops(stage):
        for load in loop.loads:
            if load.view.buffer.kind is not BufferKind.SCALAR and load.view not in formed:
                whole = load.view.shape[-1:] == load.view.buffer.shape[-1:]
                yield BufferUse(load.view.buffer, False, load.access is Access.ELEMENT and whole)
        written = (line.view for line in loop.lines if line.view is not None)
        yield from (BufferUse(view.buffer, True, True) for view in written)


def _loops(stage: GroupPlan | LoopPlan | StripPlan) -> tuple[Loop, ...]:
    if isinstance(stage, GroupPlan):
        return stage.group.loops
    return (stage.loop,) if isinstance(stage, LoopPlan) else stage.loops


def _slots(stage: StagePlan) -> frozenset[View]:
    """What loops find in the tile of their group."""
    slots = stage.group.slots if isinstance(stage, GroupPlan) else ()
    return frozenset(slot.view for slot in slots)


@dataclass
class PlanFlow:
    """What lies where, while a plan is followed."""

    plan: TimePlan
    there: dict[Address, Tag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        states = self.plan.states
        self.by_name = {state.name: state for state in states}
        self.by_previous = {state.previous: state for state in states}
        given = {of for _, of, in_memory in self.plan.once_places if in_memory}
        given |= {item.memory for item in self.plan.constants}
        self.given = given

    def written(self) -> frozenset[tuple[str, str]]:
        """The arrays that the plan writes, by kind and name."""
        return frozenset(
            (kind, name)
            for part in self.plan.parts
            for stage in part.stages
            for reach in reaches(stage)
            if reach.writes
            for (kind, name, _), _ in self.at(_place(stage, reach.buffer), 0)
        )

    def at(self, place: Place, step: int) -> Iterator[tuple[Address, Tag]]:
        """Where a place is at a step, and what belongs there."""
        of, how = place.of, place.how
        state = self.by_previous.get(of) if how in (How.BEFORE, How.PAIR) else None
        if how in (How.SERIES, How.STAGED, How.SAVED):
            state = self.by_name.get(of)
        if state is not None:
            yield self._of_state(state, step - (how is How.BEFORE))
        elif how in (How.CARRY, How.PASSED):
            number = step + (how is How.CARRY)
            in_place = self.by_previous[of].in_place
            yield ("gradient of a state", of, 0 if in_place else number % 2), (of, number)
        elif how in (How.SERIES, How.STAGED, How.SAVED, How.KEPT):
            yield ("array", of, step), (place.buffer.name, step)
        elif how is not How.SCALAR:
            kind = "result" if how is How.MEMBER else "array"
            yield (kind, of, ALL), (place.buffer.name, step)
        if place.other:
            yield ("array", place.other, ALL), (place.buffer.name, step)

    def _of_state(self, state: State, step: int) -> tuple[Address, Tag]:
        number = step
        if not self.plan.backward and (state.in_place or state.pair):
            number = 0 if state.in_place else step % 2
        return ("state", state.previous, number), (state.previous, step)


def _place(stage: StagePlan, buffer: Buffer) -> Place:
    return next(place for place in stage.uses if place.buffer == buffer)


def faults_of(plan: TimePlan) -> Iterator[str]:
    """Say what is read where it is not, and where a barrier is missing."""
    flow = PlanFlow(plan)
    written = flow.written()
    for part in plan.parts:
        numbers = [0] if part.name == "deferred" else list(range(STEPS))
        if part.name == "reverse":
            numbers.reverse()
        yield from _unwritten(flow, part, numbers, written)
        if part.can_split or part.name == "deferred":
            yield from _races(flow, part, numbers)


def _unwritten(
    flow: PlanFlow, part: PartPlan, steps: list[int], written: frozenset[tuple[str, str]]
) -> Iterator[str]:
    """Reads of what is not there."""
    for step in steps:
        for stage in part.stages:
            for reach in reaches(stage):
                for address, tag in flow.at(_place(stage, reach.buffer), step):
                    if reach.writes:
                        flow.there[address] = tag
                    elif address[:2] in written and not _came(flow, part, address, tag, steps[0]):
                        what = _lacks(flow, part, address, tag)
                        if what:
                            yield f"{stage.name} reads {reach.buffer.name}{what}"


def _lacks(flow: PlanFlow, part: PartPlan, address: Address, tag: Tag) -> str:
    """What is wrong with what lies at an address, or nothing."""
    kind, name, number = address
    across = part.name == "deferred"
    found = flow.there.get((kind, name, number)) or (across and flow.there.get((kind, name, 0)))
    if not found:
        return " before it is written"
    return "" if across or found == tag else f", which {found[0]} overwrote"


def _came(flow: PlanFlow, part: PartPlan, address: Address, tag: Tag, first: int) -> bool:
    """Whether the caller gave it: a state before the first step, a gradient behind the last one."""
    kind, name, _ = address
    if kind == "state":
        return flow.plan.backward or tag[1] < 0
    if kind == "gradient of a state":
        return part.name == "reverse" and tag[1] > first
    return name in flow.given


def _races(flow: PlanFlow, part: PartPlan, steps: list[int]) -> Iterator[str]:
    """What another thread may touch at the same time."""
    since: list[tuple[Address, BufferUse, StagePlan]] = []
    for step in steps:
        for stage in part.stages:
            touched = [
                (address, reach, stage)
                for reach in reaches(stage)
                for address, _ in flow.at(_place(stage, reach.buffer), step)
            ]
            for address, reach, _ in touched:
                for other, before, earlier in since:
                    if address != other or not (reach.writes or before.writes):
                        continue
                    if not _same_thread(part, (before, earlier), (reach, stage)):
                        verb = "writes" if reach.writes else "reads"
                        yield (
                            f"{stage.name} {verb} {reach.buffer.name}, which another thread may "
                            f"touch in {earlier.name}: no barrier stands between"
                        )
            since += touched
            if stage.barrier:
                since = []


def _same_thread(
    part: PartPlan, before: tuple[BufferUse, StagePlan], after: tuple[BufferUse, StagePlan]
) -> bool:
    """Whether the thread that touched an entry is the one that touches it again."""
    (first, earlier), (second, later) = before, after
    if part.name == "deferred":
        by_products = [s for s in (earlier, later) if isinstance(s, GroupPlan | OutersPlan)]
        return not by_products or earlier is later
    if isinstance(earlier, OutersPlan) or isinstance(later, OutersPlan):
        return False
    units = [s.group.units if isinstance(s, GroupPlan) else s.units for s in (earlier, later)]
    return first.own and second.own and units[0] == units[1]
