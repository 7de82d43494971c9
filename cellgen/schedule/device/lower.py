"""Lower functions for a device: hoisted and deferred products, a loop over steps.

Input: ``SequenceSchedule``, the same as C's. Output: ``DeviceTimePlan``. What only a GPU needs is
decided here: the sums of a group lie side by side, over all steps where an input reaches them, so
that one product serves every step at once; adjoints that the deferred part reads lie side by side,
so that the products with them are one; the deferred part runs once, over the rows of all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cellgen.language.names import Names
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import LOCALS
from cellgen.schedule.device.begun import begin_sums
from cellgen.schedule.device.deferred import DeferredPlanner
from cellgen.schedule.device.function import FunctionPlanner
from cellgen.schedule.device.loops import operands_of, place_in_step, plan_function
from cellgen.schedule.device.persistent import PersistentChoice
from cellgen.schedule.device.places import DeviceWorkspace, Moment
from cellgen.schedule.device.plan import DeviceState, DeviceStepPlan, DeviceTimePlan
from cellgen.schedule.device.stacked import Neighbours
from cellgen.schedule.device.states import (
    KeptOverTime,
    saved_or,
    state_of_caller,
    state_over_time,
)
from cellgen.schedule.device.step_places import StepPlaces
from cellgen.schedule.device.steps import StepsPlanner
from cellgen.schedule.device.tiers import TierChoice
from cellgen.schedule.device.verify import verify_for_device
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.schedule.schedule import PlannedFunction


def lower_for_device(
    schedule: SequenceSchedule, signatures: Sequence[Signature]
) -> tuple[DeviceTimePlan, DeviceTimePlan]:
    """Plan the two functions over time, forward and backward, and verify both.

    Raises:
        DerivationError: with code ``cuda.loop`` or ``cuda.stage``, for what no device renders; with
            code ``schedule.verify``, for a fault of the compiler.
    """
    forward, backward = signatures
    plans = _forward(schedule, forward), _backward(schedule, backward)
    for plan in plans:
        verify_for_device(plan)
    return plans


def lower_step_for_device(function: PlannedFunction, cell: str) -> DeviceStepPlan:
    """Plan a function of one step."""
    memory = DeviceWorkspace(Names([*LOCALS, *(str(v.name) for v in function.program.values)]))
    operands = operands_of(function.stages)
    places = {b: place_in_step(b, b in operands, memory) for b in function.buffers}
    stages = plan_function(function, f"{cell}_step_{function.name}", places, memory)
    return DeviceStepPlan(function, tuple(memory.arrays), stages)


def _forward(schedule: SequenceSchedule, signature: Signature) -> DeviceTimePlan:
    host = FunctionPlanner.begin(schedule, signature)
    links = schedule.programs.links
    states = {link.next: state_over_time(host, link) for link in links}
    prologue = host.once(schedule.prologue)
    places = StepPlaces(host, "forward", schedule.forward, states, None)
    part = StepsPlanner(host, "forward", schedule.forward, places, Neighbours())
    part.plan()
    choice = part.choice(), part.persistent()
    on_device = []
    for link in links:
        left = part.left_by_step(link)
        last = saved_or(host, link.next, states[link.next], Moment.LAST)
        host.names |= last.names
        on_device.append(DeviceState(link, left, last))
    return replace(
        _plan(host, part, choice),
        prologue=prologue,
        states=tuple(on_device),
    )


def _backward(schedule: SequenceSchedule, signature: Signature) -> DeviceTimePlan:
    host = FunctionPlanner.begin(schedule, signature)
    links = schedule.programs.links
    states = {link.next: state_of_caller(host, link) for link in links}
    prologue = host.once(schedule.prologue)
    kept = KeptOverTime.plan(host)
    reverse, begun = begin_sums(schedule.reverse)
    places = StepPlaces(host, "reverse", reverse, states, kept)
    part = StepsPlanner(host, "reverse", reverse, places, kept.neighbours(reverse), begun)
    part.plan()
    choice = part.choice(), part.persistent()
    deferred = DeferredPlanner(host, schedule.deferred, kept).plan()
    epilogue = host.once(schedule.epilogue)
    return replace(
        _plan(host, part, choice),
        prologue=prologue,
        states=tuple(DeviceState(k, carries=places.carries[k.passed]) for k in links),
        kept=kept,
        deferred=deferred,
        epilogue=epilogue,
    )


def _plan(
    host: FunctionPlanner, part: StepsPlanner, choice: tuple[TierChoice, PersistentChoice]
) -> DeviceTimePlan:
    """The plan of a function once all of its parts have been planned."""
    arrays = host.options.fixed.arrays
    whole = tuple(array.name for array in arrays if array.name in host.options.whole)
    strides = (name for array in arrays for name in array.strides)
    return DeviceTimePlan(
        cell=host.cell,
        function=host.signature.name,
        memory=tuple(host.memory.arrays),
        strides=tuple(name for name in strides if name in host.names),
        options=replace(host.options.fixed, whole=whole),
        prologue=(),
        packed=tuple(host.packing.packed),
        ahead=tuple(part.ahead),
        steps=tuple(part.stages),
        states=(),
        tier=choice[0],
        persistent=choice[1],
        sums=tuple(host.sums),
    )
