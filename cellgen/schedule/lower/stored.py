"""Let products read weights where they lie, and leave every sum in memory.

A launch has no panels of tiles, and leaves no tile to the next one.

Pass: a plan whose weights and sums may lie in tiles alone -> the same in which each has a place.
"""

from __future__ import annotations

from dataclasses import replace

from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.places import Places, places_of
from cellgen.schedule.lower.plan import GroupPlan, StagePlan, TimePlan


def with_stored_products(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Give weights and slots of groups their places."""

    def storing(name: str, stage: StagePlan) -> StagePlan:
        if not isinstance(stage, GroupPlan):
            return stage
        slots = tuple(replace(slot, needs_memory=True) for slot in stage.group.slots)
        group = replace(stage.group, slots=slots)
        weights = (weight.view.buffer for term in group.terms for weight in term.weights)
        own = Places(function, name).uses(weights, [slot.view.buffer for slot in slots])
        return replace(stage, group=group, uses=tuple(dict.fromkeys((*stage.uses, *own))))

    plan = plan.with_stages(storing)
    parts = tuple(replace(part, places=places_of(part.stages)) for part in plan.parts)
    return replace(plan, parts=parts)
