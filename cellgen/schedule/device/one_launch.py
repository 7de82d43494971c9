"""Choose what runs all steps of a part in one launch.

Passes: a plan with the stages of its steps -> the same with the kernel over all steps, and with the
one whose blocks are on the device together; or with the reason why there is none.
"""

from __future__ import annotations

from dataclasses import replace

from cellgen.schedule.device.form import workspace_of
from cellgen.schedule.device.hold import has_memory, hold
from cellgen.schedule.device.joined import in_slots
from cellgen.schedule.device.persistent import PersistentChoice, choose_persistent
from cellgen.schedule.device.places import Moment, RowsOfArray, row_width
from cellgen.schedule.device.plan import DeviceState, DeviceTimePlan
from cellgen.schedule.device.tiers import Carried, Passed, TierChoice, choose
from cellgen.schedule.lower.function import FunctionOverTime


def with_tier(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Choose the kernel that runs all steps at once, if there is one."""
    links, carried = function.programs.links, [_carried(state) for state in plan.states]
    tier = choose(plan.steps, carried, _passed(plan))
    if tier.tier is None and has_memory(links):
        held = hold(plan.steps, links, carried)
        tier = TierChoice(None, held) if isinstance(held, str) else TierChoice(None, "", held)
    return replace(plan, tier=tier)


def with_persistent(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Choose the kernel whose blocks are on the device together, if there is one."""
    programs = function.programs
    kept = programs.kept if plan.is_backward else ()
    chosen = PersistentChoice()
    slots = in_slots(plan.steps)
    for stages in (plan.steps, slots) if slots != plan.steps else (slots,):
        memory = workspace_of(function, plan)
        chosen = choose_persistent(stages, programs.links, _passed(plan), memory.add, kept)
        if chosen.persistent is not None:
            return replace(plan, memory=tuple(memory.arrays), persistent=chosen)
    return replace(plan, persistent=chosen)  # without the arrays that it would have had


def _carried(state: DeviceState) -> Carried:
    """The state, or its gradient, that goes from step to step."""
    link = state.link
    if state.carries is not None:
        first = state.carried(Moment.END)
        return Carried(link.carry, link.passed, first, state.carries, rounded=False)
    first = RowsOfArray(str(link.previous.name), row_width(link.previous), of_caller=True)
    return Carried(link.previous, link.next, first, None, rounded=True)


def _passed(plan: DeviceTimePlan) -> list[Passed]:
    """Where a step leaves gradients for the step before."""
    states = (state for state in plan.states if state.carries is not None)
    return [Passed(s.carried(Moment.NOW), row_width(s.link.passed)) for s in states]
