"""Say which arrays over time have to lie row after row, and whose strides steps read.

Pass: a plan with all of its stages -> the same with what these name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cellgen.schedule.device.places import BeforeSteps, DevicePlace
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import (
    DeferredStage,
    DeviceLoop,
    DeviceProduct,
    DeviceRoutine,
    StepsShare,
)
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.schedule import Buffer


def with_layout(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Gather what launches over all steps touch, and the strides of steps."""
    whole, named = set(_whole(plan)), set(_named(plan))
    arrays = plan.options.arrays
    options = replace(plan.options, whole=tuple(a.name for a in arrays if a.name in whole))
    strides = (name for array in arrays for name in array.strides)
    return replace(plan, options=options, strides=tuple(s for s in strides if s in named))


def _named(plan: DeviceTimePlan) -> Iterator[str]:
    """What the loop over steps and what follows it name."""
    for stage in plan.steps:
        yield from stage.names
    for rows in (rows for state in plan.states for rows in (state.left, state.last) if rows):
        yield from rows.names


def _whole(plan: DeviceTimePlan) -> Iterator[str]:
    """Arrays that a launch over all steps takes as one matrix."""
    for stage in plan.ahead:
        if isinstance(stage, DeviceProduct):
            yield from (stage.operand.view.buffer.name, stage.sums.view.buffer.name)
    for later in plan.deferred:
        for buffer, place in _touched(later):
            yield buffer.name
            if isinstance(place.source, BeforeSteps):
                yield place.source.left


def _touched(stage: DeferredStage) -> Iterator[tuple[Buffer, DevicePlace]]:
    if isinstance(stage, DeviceLoop | DeviceRoutine):
        yield from stage.places.items()
    elif isinstance(stage, StepsShare):
        yield stage.buffer, stage.shares
    else:
        own = (stage.operand, stage.sums) if isinstance(stage, DeviceProduct) else stage.operands
        yield from ((matrix.view.buffer, matrix.place) for matrix in own)
