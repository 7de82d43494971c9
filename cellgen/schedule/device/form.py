"""Form the plan of a function on a device: what options over time need, and what lies once.

Pass: ``TimePlan`` -> ``DeviceTimePlan`` that launches nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from cellgen.language.names import Names
from cellgen.runtime.names import LOCALS
from cellgen.schedule.device.over_time import lay_out
from cellgen.schedule.device.places import DeviceWorkspace
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import SumOfProducts
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import GroupPlan, TimePlan
from cellgen.schedule.schedule import Buffer, BufferKind


def form_on_device(function: FunctionOverTime, time: TimePlan) -> DeviceTimePlan:
    """Form the plan of a function."""
    programs, memory = function.programs, DeviceWorkspace(_names(function))
    once = {}
    for value in (*programs.fixed, *(programs.totals if time.backward else ())):
        buffer = Buffer(value, BufferKind.RESULT)
        once[value] = memory.place(f"{value.name}_once", buffer, is_stored=True)
    states = zip(programs.links, time.states, strict=True)
    links = [link for link, state in states if state.now or state.across]
    options = lay_out(programs, function.signature, memory, links, is_backward=time.backward)
    return DeviceTimePlan(time, options, tuple(memory.arrays), once, tuple(_sums(time)))


def workspace_of(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceWorkspace:
    """The workspace of a plan, for a pass that adds to it."""
    strides = (name for array in plan.options.arrays for name in array.strides)
    names = _names(function, *strides, *(array.name for array in plan.memory))
    return DeviceWorkspace(names, list(plan.memory))


def _names(function: FunctionOverTime, *taken: str) -> Names:
    values = (v for program in function.programs.all for v in program.values)
    return Names([*LOCALS, *(str(value.name) for value in values), *taken])


def _sums(time: TimePlan) -> Iterator[SumOfProducts]:
    """How many products each slot of a group adds up."""
    stages = (stage for part in time.parts for stage in part.stages)
    for stage in (stage for stage in stages if isinstance(stage, GroupPlan)):
        for number, slot in enumerate(stage.group.slots):
            reached = [t for t in stage.group.terms if number in {w.slot for w in t.weights}]
            yield SumOfProducts(slot.view.buffer.value, len(reached), number in stage.begun)
