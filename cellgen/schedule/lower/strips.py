"""Fuse loops over the same rows of matrices, so that a step goes through a matrix state once.

Input: a ``TimePlan``. Output: the same with a ``StripPlan`` in the place of loops over the same
inner axes (..., D, K). Some neighbours along D go through all of them at a time, while they are in
the first-level cache. Plans without such loops stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from cellgen.language.value import Shape
from cellgen.schedule.lower.merging import condensed
from cellgen.schedule.lower.plan import (
    How,
    LoopPlan,
    PartPlan,
    StagePlan,
    State,
    StripPlan,
    TimePlan,
)
from cellgen.schedule.lower.tile_products import tile_product
from cellgen.schedule.lower.touched import loaded, stored
from cellgen.schedule.lower.touches import are_apart, fits, go_together, in_vectors, touches
from cellgen.schedule.lower.verify import verify
from cellgen.schedule.schedule import Buffer, BufferKind, Loop, Store


def with_strips(plan: TimePlan) -> TimePlan:
    """Fuse the loops of every part; memory that none of them needs is left out.

    Raises:
        DerivationError: a fault of the compiler, found by the verifier.
    """
    parts = tuple(map(_fused, plan.parts))
    if parts == plan.parts:
        return plan
    needed = {place.of for part in parts for place in part.places}
    before = {p.of for part in plan.parts for p in part.places if p.how is How.MEMORY}
    memory = tuple(m for m in plan.memory if m.name in needed or m.name not in before)
    states = tuple(
        replace(state, in_place=_is_in_place(state, parts[0], backward=plan.backward))
        for state in plan.states
    )
    fused = replace(plan, parts=parts, memory=memory, states=states)
    verify(fused)
    return fused


def _is_in_place(state: State, part: PartPlan, *, backward: bool) -> bool:
    """Whether a step reads each entry of a state for the last time before it writes the new one.

    Backward it is the state's gradient. One strip writes it; what reads the old one is before that,
    or at the same entry of that strip.
    """
    came = How.CARRY if backward else How.BEFORE
    before = {p.buffer for p in part.places if p.how is came and p.of == state.previous}
    name = state.passed if backward else state.name
    after = {p.buffer for p in part.places if p.buffer.name == name} - before
    uses = [{p.buffer for p in stage.uses} for stage in part.stages]
    writers = [n for n, used in enumerate(uses) if used & after]
    readers = [n for n, used in enumerate(uses) if used & before]
    if not writers or not readers or max(readers) > min(writers):
        return False
    stage = part.stages[writers[0]]
    if not isinstance(stage, StripPlan):
        return False
    own = [(n, t) for n, loop in enumerate(stage.loops) for t in touches(loop, stage.axes)]
    written = [(n, t) for n, t in own if t.writes and t.buffer in after]
    read = [(n, t) for n, t in own if t.buffer in before]
    return len(written) == 1 and all(
        n <= written[0][0]
        and 0 not in t.walk.strides
        and (t.walk, t.start) == (written[0][1].walk, written[0][1].start)
        for n, t in read
    )


def _fused(part: PartPlan) -> PartPlan:
    """Fuse the loops of one part.

    Deferred stages stay apart: rows of many steps are left out, added up and written one by one.
    """
    stages: list[StagePlan] = []
    for may_fuse, grouped in groupby(part.stages, key=_may_fuse):
        run = list(grouped)
        loops = [stage for stage in run if isinstance(stage, LoopPlan)]
        if not may_fuse:
            stages += run
            continue
        apart = [[loop] for loop in loops]
        for together in apart if part.name == "deferred" else _together(loops):
            stages += _strip(together, part)
    if not any(isinstance(stage, StripPlan) for stage in stages):
        return part
    named = tuple(replace(s, name=f"{part.name}_{n}") for n, s in enumerate(stages, start=1))
    used = {place for stage in named for place in stage.uses}
    return replace(part, stages=named, places=tuple(p for p in part.places if p in used))


def _may_fuse(stage: StagePlan) -> bool:
    return isinstance(stage, LoopPlan) and not stage.down and not stage.leaves_out


def _together(stages: Iterable[LoopPlan]) -> list[list[LoopPlan]]:
    """Put each loop to the last ones that may go through strips with it, in an order that holds.

    A product stays alone: it goes through tiles.
    """
    items: list[list[LoopPlan]] = []
    for stage in stages:
        for position in reversed(range(len(items))):
            item = items[position]
            axes = _axes(item)
            if not axes or not all(_joins(own, stage, axes) for own in item):
                continue
            later = [other.loop for after in items[position + 1 :] for other in after]
            if all(are_apart(other, stage.loop) for other in later):
                item.append(stage)
                break
            if all(are_apart(own.loop, other) for own in item for other in later):
                items.append([*items.pop(position), stage])
                break
        else:
            items.append([stage])
    return items


def _axes(stages: Sequence[LoopPlan]) -> Shape:
    """The inner axes that some loops go through strip by strip: those of the first nest."""
    axes = next((stage.loop.axes for stage in stages if len(stage.loop.axes) > 1), ())
    return axes if all(fits(stage.loop, axes) for stage in stages) else ()


def _joins(own: LoopPlan, stage: LoopPlan, axes: Shape) -> bool:
    return (
        own.wants == stage.wants
        and fits(stage.loop, axes)
        and go_together(own.loop, stage.loop, axes)
        and not any(tile_product(one.loop, axes) for one in (own, stage))
    )


def _strip(stages: Sequence[LoopPlan], part: PartPlan) -> list[StagePlan]:
    """Fuse loops that go together, if that pays: a nest of them has sums, or hands on to others."""
    axes = _axes(stages)
    nests = [stage.loop for stage in stages if axes and in_vectors(stage.loop, axes)]
    if not nests or (len(nests) == 1 and not _has_sums(nests[0])):
        return list(stages)
    loops = condensed([stage.loop for stage in stages], axes, _own(stages, part))
    read = [b for loop in loops for b in loaded(loop)]
    touched = {*read, *(b for loop in loops for b in stored(loop))}
    uses = dict.fromkeys(p for stage in stages for p in stage.uses if p.buffer in touched)
    keeps = tuple(dict.fromkeys(name for stage in stages for name in stage.keeps))
    first = stages[0]
    barrier = first.barrier or len(stages) > 1
    whole = next(stage.units for stage in stages if stage.loop.axes == axes)
    return [StripPlan(first.name, loops, axes, tuple(uses), keeps, whole, first.wants, barrier)]


def _has_sums(loop: Loop) -> bool:
    return any(line.store is Store.ADD_UNITS for line in loop.lines)


def _own(stages: Sequence[LoopPlan], part: PartPlan) -> set[Buffer]:
    """Arrays of a step that no other stage of the part touches."""
    others = {p.buffer for stage in part.stages if stage not in stages for p in stage.uses}
    memory = {p.buffer for stage in stages for p in stage.uses if p.how is How.MEMORY}
    return {b for b in memory - others if b.kind is BufferKind.WORKSPACE}
