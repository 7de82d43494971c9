"""Give a plan its workspace: what its places, products, states and sums name.

Pass: the plan without memory -> the same with it, each array once, in the order in which stages
need them. Nothing is reserved that nothing names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.lengths import length, row_length
from cellgen.schedule.lower.places import places_of_stage
from cellgen.schedule.lower.plan import (
    GroupPlan,
    How,
    PartPlan,
    Place,
    Rows,
    Series,
    StagePlan,
    State,
    TimePlan,
    When,
    WorkspaceArray,
)
from cellgen.schedule.schedule import BufferKind, PlannedFunction


def with_memory(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Reserve the workspace of a plan."""
    return replace(plan, memory=tuple(dict.fromkeys(_arrays(function, plan))))


def _arrays(function: FunctionOverTime, plan: TimePlan) -> Iterator[WorkspaceArray]:
    steady = function.steady
    yield from _of_once(function, plan.prologue)
    for part in plan.parts:
        for stage in part.stages:
            yield from _of_stage(function, part, stage)
    yield from _of_once(function, plan.epilogue)
    for state in plan.states:
        yield from _of_state(state)
    for series in () if function.by_step else plan.series:
        yield from _of_series(series)
    for total in plan.totals:
        if total.in_memory:
            yield steady[total.of]
        if total.own:
            yield WorkspaceArray(total.own, Rows.ONE, total.count, When.ROW_BLOCK)
    for rows in plan.sums:
        if rows.in_memory:
            yield steady[rows.of]
        yield WorkspaceArray(rows.groups, Rows.GROUPS, rows.count)
    yield from (steady[item.of] for item in plan.steps_totals if item.in_memory)


def _of_once(function: FunctionOverTime, once: PlannedFunction | None) -> Iterator[WorkspaceArray]:
    """What runs once a sequence; what is formed of weights alone is packed with them."""
    if once is None:
        return
    for buffer in once.buffers:
        name, in_memory = function.once_place(once, buffer)
        if buffer.kind is BufferKind.WORKSPACE:
            packed = once is function.schedule.prologue
            yield WorkspaceArray(name, Rows.ONE, length(buffer.shape), packed=packed)
        elif in_memory:
            yield function.steady[name]


def _of_stage(
    function: FunctionOverTime, part: PartPlan, stage: StagePlan
) -> Iterator[WorkspaceArray]:
    if isinstance(stage, GroupPlan):
        yield from _panels(stage)
    for place in places_of_stage(stage):
        yield from _of_place(function, part, place)
    if isinstance(stage, GroupPlan):
        rows = Rows.CHUNK_SLOTS if part.name == "deferred" else Rows.BATCH_SLOTS
        group = stage.group
        slots = len(group.slots)
        yield WorkspaceArray(stage.whole, rows, None, When.UNPACKED, slots=slots, units=group.units)


def _panels(stage: GroupPlan) -> Iterator[WorkspaceArray]:
    """Packed weights, and products that are formed ahead, in the layout of tiles."""
    for run in stage.runs:
        panel = WorkspaceArray(
            run.panel,
            Rows.PANELS,
            run.inner,
            packed=True,
            slots=run.slots,
            units=stage.units,
            widest=stage.widest,
            heads=stage.heads,
        )
        if run.ahead:
            yield replace(panel, name=run.ahead, rows=Rows.AHEAD, width=None, packed=False)
        yield panel


def _of_place(function: FunctionOverTime, part: PartPlan, place: Place) -> Iterator[WorkspaceArray]:
    if place.how is How.PAIR:
        width = row_length(place.buffer.value)
        yield WorkspaceArray(f"{place.buffer.name}_pair", Rows.TWO_BATCHES, width)
    elif place.how is How.KEPT:
        rows = Rows.BATCH if function.by_step else Rows.CHUNK
        yield WorkspaceArray(place.of, rows, place.width)
    elif place.how is How.SUMS:
        yield WorkspaceArray(place.of, Rows.GROUPS, place.width)
    elif place.how is How.MEMORY:
        rows = Rows.CHUNK if function.in_chunks(part.name) else Rows.BATCH
        yield function.steady.get(place.of) or WorkspaceArray(place.of, rows, place.width)
    if place.other:
        yield WorkspaceArray(place.other, Rows.BATCH, place.width)


def _of_state(state: State) -> Iterator[WorkspaceArray]:
    if state.pair:
        yield WorkspaceArray(state.pair, Rows.TWO_BATCHES, state.width)
    if state.now:
        yield WorkspaceArray(f"now_{state.previous}", Rows.BATCH, state.width, When.GUARDED)
    if state.across:
        yield WorkspaceArray(f"rows_{state.previous}", Rows.CHUNK, state.width, When.GATHERED)


def _of_series(series: Series) -> Iterator[WorkspaceArray]:
    """What some options need for an array over time."""
    name, width = series.name, series.width
    if series.staged:
        yield WorkspaceArray(f"stage_{name}", Rows.BATCH, width, When.TABLES)
    if series.repeated:
        yield WorkspaceArray(f"later_{name}", Rows.BATCH, width, When.TABLES)
    if series.output:
        yield WorkspaceArray(f"only_{name}", Rows.BATCH, width, When.LAST)
    if series.across or series.scattered:
        yield WorkspaceArray(f"rows_{name}", Rows.CHUNK, width, When.GATHERED)
