"""Plan what runs once a sequence, on weights alone.

Passes: a plan without prologue, or epilogue -> the same with it.
"""

from __future__ import annotations

from dataclasses import replace

from cellgen.schedule.device.form import workspace_of
from cellgen.schedule.device.loops import operands_of, plan_function
from cellgen.schedule.device.places import DevicePlace, DeviceWorkspace, row_stride
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import OnceStage
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction


def with_prologue(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Plan what runs before the first step."""
    memory = workspace_of(function, plan)
    prologue = _once(plan, plan.time.prologue, memory)
    return replace(plan, memory=tuple(memory.arrays), prologue=prologue)


def with_epilogue(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Plan what runs after all others."""
    memory = workspace_of(function, plan)
    epilogue = _once(plan, plan.time.epilogue, memory)
    return replace(plan, memory=tuple(memory.arrays), epilogue=epilogue)


def _once(
    plan: DeviceTimePlan, function: PlannedFunction | None, memory: DeviceWorkspace
) -> tuple[OnceStage, ...]:
    if function is None:
        return ()
    names = {buffer: of for buffer, of, _ in plan.time.once_places}
    operands, places = operands_of(function.stages), dict[Buffer, DevicePlace]()
    for buffer in function.buffers:
        if buffer.value in plan.once:
            places[buffer] = plan.once[buffer.value]
        elif buffer.kind is BufferKind.WORKSPACE:
            places[buffer] = memory.place(names[buffer], buffer, is_stored=buffer in operands)
        else:
            places[buffer] = DevicePlace.of_caller(buffer.name, row_stride(buffer))
    return plan_function(function, f"{plan.cell}_{plan.function}_{function.name}", places, memory)
