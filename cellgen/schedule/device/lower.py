"""Lower functions over time for a device: pass by pass, from the plan that all targets share.

Input: ``SequenceSchedule``, the same as C's. Output: ``DeviceTimePlan``. What only a GPU needs is
decided here: the sums of a group lie side by side, over all steps where an input reaches them, so
that one product serves every step at once; adjoints that the deferred part reads lie side by side,
so that the products with them are one; the deferred part runs once, over the rows of all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cellgen.language.names import Names
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import LOCALS
from cellgen.schedule.device.deferred import with_deferred
from cellgen.schedule.device.form import form_on_device
from cellgen.schedule.device.layout import with_layout
from cellgen.schedule.device.loops import operands_of, place_in_step, plan_function
from cellgen.schedule.device.once import with_epilogue, with_prologue
from cellgen.schedule.device.one_launch import with_persistent, with_tier
from cellgen.schedule.device.places import DeviceWorkspace
from cellgen.schedule.device.plan import DeviceStepPlan, DeviceTimePlan
from cellgen.schedule.device.states import with_adjoints, with_states
from cellgen.schedule.device.steps import with_steps
from cellgen.schedule.device.verify import verify_for_device
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.passes import functions_over_time, lowered_for_launches
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.schedule.schedule import PlannedFunction

DevicePass: TypeAlias = Callable[[FunctionOverTime, DeviceTimePlan], DeviceTimePlan]

PASSES: tuple[DevicePass, ...] = (
    with_states,
    with_prologue,
    with_adjoints,
    with_steps,
    with_tier,
    with_persistent,
    with_deferred,
    with_epilogue,
    with_layout,
)
"""What follows ``form_on_device``. Each fills in fields that the others leave alone, and reserves
the memory that these name."""


def lower_for_device(
    schedule: SequenceSchedule, signatures: Sequence[Signature]
) -> tuple[DeviceTimePlan, DeviceTimePlan]:
    """Lower the two functions over time, forward and backward, and verify both.

    Raises:
        DerivationError: with code ``cuda.loop`` or ``cuda.stage``, for what no device renders; with
            code ``schedule.verify``, for a fault of the compiler.
    """
    forward, backward = functions_over_time(schedule, signatures)
    return _lowered(forward), _lowered(backward)


def _lowered(function: FunctionOverTime) -> DeviceTimePlan:
    plan = form_on_device(function, lowered_for_launches(function))
    for apply in PASSES:
        plan = apply(function, plan)
    verify_for_device(plan)
    return plan


def lower_step_for_device(function: PlannedFunction, cell: str) -> DeviceStepPlan:
    """Plan a function of one step."""
    memory = DeviceWorkspace(Names([*LOCALS, *(str(v.name) for v in function.program.values)]))
    operands = operands_of(function.stages)
    places = {b: place_in_step(b, b in operands, memory) for b in function.buffers}
    stages = plan_function(function, f"{cell}_step_{function.name}", places, memory)
    return DeviceStepPlan(function, tuple(memory.arrays), stages)
