"""Check a time plan: its names stand in its tables, what is read is there, threads meet."""

from __future__ import annotations

from cellgen.errors import DerivationError
from cellgen.schedule.lower.flow import faults_of
from cellgen.schedule.lower.plan import GroupPlan, How, StagePlan, TimePlan
from cellgen.schedule.schedule import fault_of_plan


def verify(plan: TimePlan) -> None:
    """Check names, lifetimes and barriers: ``flow`` has the rules.

    Raises:
        DerivationError: naming the function, and the name or the stage.
    """
    _verify_names(plan)
    for once in (plan.prologue, plan.epilogue):
        if once is not None:
            once.verify()
    for what in faults_of(plan):
        raise _fault(plan, what)


def _verify_names(plan: TimePlan) -> None:
    """Check that names stand in the plan's tables."""
    memory = {item.name for item in plan.memory}
    series = {item.name for item in plan.series}
    states = {item.previous for item in plan.states}
    for part in plan.parts:
        for place in part.places:
            known = {How.MEMORY: memory, How.KEPT: memory, How.SUMS: memory}.get(place.how)
            if place.how in (How.SERIES, How.STAGED, How.ACROSS, How.IN_PLACE):
                known = series
            if place.how in (How.BEFORE, How.CARRY, How.PASSED, How.PAIR):
                known = states
            if known is not None and place.of not in known:
                raise _fault(plan, f"{place.of} is no {place.how.value}")
        for stage in part.stages:
            if not set(stage.uses) <= set(part.places):
                raise _fault(plan, f"{stage.name} uses an array that has no place")
            _verify_stage(plan, stage, memory)


def _verify_stage(plan: TimePlan, stage: StagePlan, memory: set[str]) -> None:
    if isinstance(stage, GroupPlan):
        for run in stage.runs:
            names = {run.panel, *([run.ahead] if run.ahead else [])}
            if not names <= memory:
                raise _fault(plan, f"{stage.name} has products without memory")
            if run.operand not in {place.buffer for place in stage.uses}:
                raise _fault(plan, f"{stage.name} multiplies {run.operand.name} without a place")
        slots = {w.slot for run in stage.runs for w in run.weights if w.begins}
        if slots != set(range(len(stage.group.slots))):
            raise _fault(plan, f"{stage.name} has a slot that no product begins")


def _fault(plan: TimePlan, what: str) -> DerivationError:
    return fault_of_plan(f"{plan.cell}.{plan.function}", what)
