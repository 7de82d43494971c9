"""Follow a time plan over a few steps: what is read is there, and threads meet where they have to.

Input: ``TimePlan``. Four rules hold, address by address (an array and a step):

- nothing is read before it is written, in memory of the workspace or in a result of the caller;
  the prologue, and copies of the caller's rows, are there from the start;
- nothing is overwritten while it is live: what is read is the value that was written there last,
  and a result keeps the value that it is of. The deferred part reads those of all steps;
- after the last part every result is written;
- where threads share units, they meet between a write and what another thread reads or writes
  there, and between a read and what another thread writes there. A thread has the same units in
  every stage of as many units. Of the deferred part threads share rows, or the results of products.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from sympy import Add, Expr, expand

from cellgen.schedule.lower.plan import (
    GroupPlan,
    How,
    LoopPlan,
    OutersPlan,
    PartPlan,
    Place,
    ProductPlan,
    RoutinePlan,
    StagePlan,
    State,
    StripPlan,
    TimePlan,
)
from cellgen.schedule.schedule import Access, Buffer, BufferKind, Loop, View, reads

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
    if isinstance(stage, RoutinePlan | ProductPlan):
        work = stage.routine if isinstance(stage, RoutinePlan) else stage.product
        yield from (BufferUse(view.buffer, False, False) for view in reads(work))
        yield BufferUse(work.target.buffer, True, False)
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


@dataclass(frozen=True)
class Reached:
    """An address that a stage reads or writes, and what belongs there."""

    stage: StagePlan
    use: BufferUse
    place: Place
    address: Address
    tag: Tag


@dataclass
class PlanFlow:
    """What lies where, while a plan is followed."""

    plan: TimePlan
    there: dict[Address, Tag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        states = self.plan.states
        self.by_name = {state.name: state for state in states}
        self.by_previous = {state.previous: state for state in states}
        self.memory = {item.name for item in self.plan.memory}
        first = self.plan.prologue.buffers if self.plan.prologue else ()
        formed = {buffer for buffer in first if buffer.kind is not BufferKind.ARGUMENT}
        self.prepared = {of for buffer, of, _ in self.plan.once_places if buffer in formed}
        self.prepared |= {item.memory for item in self.plan.constants}
        self.results = {
            place.of
            for part in self.plan.parts
            for place in part.places
            if place.buffer.kind is BufferKind.RESULT and place.of not in self.memory
        }

    def of_caller(self, place: Place) -> bool:
        """Whether a part finds there what the caller gives."""
        arguments = (BufferKind.ARGUMENT, BufferKind.OPTIONAL)
        inside = place.of in self.memory or place.of in self.results
        return place.buffer.kind in arguments and not inside

    def followed(self, part: PartPlan, step: int) -> Iterator[Reached]:
        """What the stages of a part read and write at a step, in their order."""
        for stage in part.stages:
            yield from self.reached(stage, step)

    def reached(self, stage: StagePlan, step: int) -> Iterator[Reached]:
        """What a stage reads and writes at a step, and where."""
        for use in reaches(stage):
            place = next(place for place in stage.uses if place.buffer == use.buffer)
            for address, tag in self.at(place, step):
                yield Reached(stage, use, place, address, tag)

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
            number = ALL if how is How.KEPT and self.plan.by_step else step
            yield ("array", of, number), (place.buffer.name, step)
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


def faults_of(plan: TimePlan) -> Iterator[str]:
    """Say what is read where it is not, what is never written, and where a barrier is missing."""
    flow = PlanFlow(plan)
    for part, steps in _order(plan):
        yield from _followed(flow, part, steps)
    for part in () if plan.by_step else plan.parts:
        if part.can_split or part.name == "deferred":
            yield from _races(flow, part, _steps(part))
    yield from _sums(flow)
    yield from _unwritten_results(flow)


def _order(plan: TimePlan) -> Iterator[tuple[PartPlan, list[int]]]:
    """The parts in the order in which they run: one after another, or all of them in each step."""
    if not plan.by_step:
        yield from ((part, _steps(part)) for part in plan.parts)
        return
    for step in _steps(plan.parts[0]):
        yield from ((part, [step]) for part in plan.parts)


def _steps(part: PartPlan) -> list[int]:
    """The steps of a part in its order; of the deferred part one stands for all."""
    numbers = [0] if part.name == "deferred" else list(range(STEPS))
    return numbers[::-1] if part.name == "reverse" else numbers


def _followed(flow: PlanFlow, part: PartPlan, steps: list[int]) -> Iterator[str]:
    """Reads of what is not there, and writes over results."""
    for step in steps:
        for reached in flow.followed(part, step):
            if reached.use.writes:
                yield from _overwritten(flow, reached)
                flow.there[reached.address] = reached.tag
            elif what := _lacks(flow, part, reached):
                yield f"{reached.stage.name} reads {reached.use.buffer.name}{what}"


def _overwritten(flow: PlanFlow, reached: Reached) -> Iterator[str]:
    """A result of another value that is lost."""
    value = reached.tag[0]
    before, _ = flow.there.get(reached.address, reached.tag)
    if reached.address[1] in flow.results and before != value:
        yield f"{reached.stage.name} writes {value} over the result {before}"


def _lacks(flow: PlanFlow, part: PartPlan, reached: Reached) -> str:
    """What is wrong with what lies at an address, or nothing."""
    if _came(flow, part, reached):
        return ""
    (kind, name, _), tag = reached.address, reached.tag
    tags = [(reached.address, tag)]
    in_chunks = part.name == "deferred" and not flow.plan.by_step
    if in_chunks and (kind, name, ALL) not in flow.there:
        tags = [((kind, name, step), (tag[0], step)) for step in range(STEPS)]
    for at, belongs in tags:
        lies = flow.there.get(at)
        if lies is None:
            return " before it is written"
        if lies != belongs:
            return f", which {lies[0]} overwrote"
    return ""


def _came(flow: PlanFlow, part: PartPlan, reached: Reached) -> bool:
    """Whether it is there from the start.

    A state before the first step and a gradient behind the last one are, what the caller gives, and
    what the prologue forms.
    """
    kind, name, _ = reached.address
    _, step = reached.tag
    if kind == "state":
        return flow.plan.backward or step < 0
    if kind == "gradient of a state":
        return part.name == "reverse" and step > STEPS - 1
    return name in flow.prepared or flow.of_caller(reached.place)


def _sums(flow: PlanFlow) -> Iterator[str]:
    """Sums over rows and steps that nothing is added up for; the others are written then."""
    plan = flow.plan
    shares = [(total.of, total.in_memory, total.groups) for total in plan.sums]
    shares += [(total.of, total.in_memory, total.summand) for total in plan.steps_totals]
    for of, in_memory, share in shares:
        if ("array", share, ALL) not in flow.there:
            yield f"{of} is the sum of {share}, which is never written"
        flow.there["array" if in_memory else "result", of, ALL] = (of, 0)
    for total in plan.totals:
        if total.begun:
            yield from unwritten_area(total.name, _areas_begun(plan, total.name), total.count)
        if ("array" if total.in_memory else "result", total.of, ALL) not in flow.there:
            yield f"{total.of} is never written"
    if plan.epilogue is not None:
        places = {buffer: of for buffer, of, _ in plan.once_places}
        for buffer in plan.epilogue.of_kind(BufferKind.RESULT):
            flow.there["result", places[buffer], ALL] = (places[buffer], 0)


def unwritten_area(name: str, areas: Iterable[Expr], count: Expr) -> Iterator[str]:
    """What products leave of so many entries; ``areas``: of each rectangle, once."""
    area = Add(*areas)
    if expand(area - count) != 0:
        yield f"{area} of the {count} entries of {name} are written by products"


def _areas_begun(plan: TimePlan, name: str) -> Iterable[Expr]:
    """Entries of a sum over all steps that products write whole, of each rectangle once."""
    areas: dict[tuple[Expr | None, Expr], Expr] = {}
    for stage in (stage for part in plan.parts for stage in part.stages):
        if isinstance(stage, OutersPlan):
            for outer in stage.outers:
                if outer.begins and outer.target.name == name:
                    area = stage.lefts[outer.left].length * stage.rights[outer.right].length
                    areas[outer.offset, outer.stride] = area * (stage.heads or 1)
    return areas.values()


def _unwritten_results(flow: PlanFlow) -> Iterator[str]:
    """Results that are not there after the last part: at one of the steps, or at all."""
    for part in flow.plan.parts:
        for place in part.places:
            if place.buffer.kind is BufferKind.RESULT and _is_unwritten(flow, place, _steps(part)):
                yield f"{place.buffer.name} is never written"
    for name, _ in flow.plan.summed:
        if ("result", name, ALL) not in flow.there:
            yield f"{name} is never written"


def _is_unwritten(flow: PlanFlow, place: Place, steps: list[int]) -> bool:
    """Whether a result of the caller is missing at a step, or is of another value at the last."""
    for step in steps:
        for address, tag in flow.at(place, step):
            lies = flow.there.get(address)
            is_lost = lies is None or (step == steps[-1] and lies != tag)
            if is_lost and address[1] not in flow.memory:
                return True
    return False


def _races(flow: PlanFlow, part: PartPlan, steps: list[int]) -> Iterator[str]:
    """What another thread may touch at the same time."""
    since: list[Reached] = []
    for step in steps:
        for stage in part.stages:
            touched = list(flow.reached(stage, step))
            for before, after in product(since, touched):
                if _race(part, before, after):
                    yield _no_barrier(before, after)
            since += touched
            if stage.barrier:
                since = []


def _race(part: PartPlan, before: Reached, after: Reached) -> bool:
    """Whether two threads may be at one address, of which one writes."""
    if before.address != after.address or not (before.use.writes or after.use.writes):
        return False
    return not _same_thread(part, before, after)


def _no_barrier(before: Reached, after: Reached) -> str:
    verb = "writes" if after.use.writes else "reads"
    return (
        f"{after.stage.name} {verb} {after.use.buffer.name}, which another thread may touch in "
        f"{before.stage.name}: no barrier stands between"
    )


def _same_thread(part: PartPlan, before: Reached, after: Reached) -> bool:
    """Whether the thread that touched an entry is the one that touches it again."""
    earlier, later = before.stage, after.stage
    if part.name == "deferred":
        by_products = [s for s in (earlier, later) if isinstance(s, GroupPlan | OutersPlan)]
        return not by_products or earlier is later
    if isinstance(earlier, OutersPlan) or isinstance(later, OutersPlan):
        return False
    units = [s.group.units if isinstance(s, GroupPlan) else s.units for s in (earlier, later)]
    return before.use.own and after.use.own and units[0] == units[1]
