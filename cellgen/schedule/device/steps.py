"""Plan the stages that run in every step: forward, or in reverse.

Pass: a plan without launches -> the same with what serves all steps at once (``ahead``), weights
that are packed, and what runs in each step.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from sympy import Expr

from cellgen.language.value import B
from cellgen.schedule.device.form import workspace_of
from cellgen.schedule.device.loops import named_loops, plan_loop, plan_routine
from cellgen.schedule.device.places import AddMemory, row_stride
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stacked import (
    Column,
    StackedProduct,
    WeightPanels,
    ordered_slots,
    planned_product,
    stack,
)
from cellgen.schedule.device.stages import (
    AheadStage,
    Cleared,
    DeviceProduct,
    StepStage,
    not_rendered,
)
from cellgen.schedule.device.step_places import StepPlaces
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import GroupPlan, LoopPlan, RoutinePlan, work_of
from cellgen.schedule.schedule import Loop, View


def with_steps(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Plan every stage of a step: what serves all steps at once, and what runs in each."""
    memory = workspace_of(function, plan)
    places, panels = StepPlaces(plan, memory), WeightPanels.of(memory.add, ())
    planner = _StepsPlanner(plan, places, panels, memory.add)
    planner.plan_stages()
    return replace(
        plan,
        memory=tuple(memory.arrays),
        packed=tuple(panels.packed),
        ahead=tuple(planner.ahead),
        steps=tuple(planner.stages),
    )


@dataclass
class _StepsPlanner:
    """Plans the stages of the part that runs step by step, ``forward`` or ``reverse``."""

    plan: DeviceTimePlan
    places: StepPlaces
    panels: WeightPanels
    add_memory: AddMemory
    ahead: list[AheadStage] = field(default_factory=list)
    stages: list[StepStage] = field(default_factory=list)

    def plan_stages(self) -> None:
        """Plan every stage."""
        self.neighbours = self.plan.kept.neighbours(self.plan.stepped)
        for stage in self.plan.stepped.stages:
            if isinstance(stage, GroupPlan):
                self._group(stage)
                for name, loop in named_loops(stage.name, stage.group.loops):
                    self._loop(name, loop, stage.name)
            elif isinstance(stage, LoopPlan):
                self._loop(stage.name, stage.loop)
            elif isinstance(stage, RoutinePlan):
                self.stages.append(plan_routine(stage.routine, (B,), self.places.place))
            else:
                raise not_rendered(self.plan.cell, work_of(stage)[0])

    def _loop(self, stem: str, loop: Loop, group: str = "") -> None:
        name, place = f"{self.plan.cell}_{stem}", self.places.place
        self.stages.append(plan_loop(name, loop, place, self.add_memory, group=group))

    def _group(self, stage: GroupPlan) -> None:
        """The products of a group: those for all steps at once, those of a step."""
        group, stem = stage.group, stage.name
        views = {group.slots[slot].view for slot in stage.begun}
        early = [term for term in group.terms if self.places.is_input(term.operand)]
        over_time = bool(early)
        late = [term for term in group.terms if term not in early]
        group = ordered_slots(replace(group, terms=(*early, *late)), len(early))
        inputs, others = group.terms[: len(early)], group.terms[len(early) :]
        begun = {number for number, slot in enumerate(group.slots) if slot.view in views}
        reached = {weight.slot for term in others for weight in term.weights} | begun
        fed = [slot.view.buffer for n, slot in enumerate(group.slots) if n not in reached]
        self.places.form_ahead(fed if over_time else ())
        self.places.put_side_by_side(stem, group, over_time)
        columns = [self.places.column(slot.view) for slot in group.slots]
        cleared = self._cleared(group, len(inputs))
        for slot in sorted(cleared):
            self.ahead.append(self._clear(columns[slot], group.slots[slot].view))
        runs = stack(group, columns, self.neighbours, cleared | begun)
        for number, run in enumerate(runs, start=1):
            hoisted = run.terms[0] in inputs and self._lies_over_time(group, run)
            product = self._product(f"{stem}_weights_{number}", stem, group, run, hoisted)
            if hoisted:
                self.ahead.append(product)
            else:
                self.stages.append(product)

    def _cleared(self, group: Group, inputs: int) -> Set[int]:
        """Slots that begin at zero, so that a step has one product for them and their neighbours.

        Those beside slots that products of all steps begin, where one operand reaches both.
        """
        reached = [{weight.slot for weight in term.weights} for term in group.terms]
        begun = {slot for slots in reached[:inputs] for slot in slots}
        memories = {self.places.column(group.slots[slot].view).memory for slot in begun}
        memories &= set(self.places.sums)
        return {
            slot
            for slots in reached[inputs:]
            for slot in slots - begun
            if slots & begun and self.places.column(group.slots[slot].view).memory in memories
        }

    def _clear(self, column: Column, view: View) -> Cleared:
        """Clear columns of sums at all steps."""
        stride, _ = self.places.sums[column.memory]
        return Cleared(column.memory, column.start, column.width, stride, view)

    def _lies_over_time(self, group: Group, run: StackedProduct) -> bool:
        """Whether the columns that a run forms have a place of their own at every step."""
        slot = group.slots[run.slots[0]]
        memory = self.places.column(slot.view).memory
        if memory in self.places.sums:
            return self.places.sums[memory][1]
        if slot.view.buffer in self.places.ahead:
            return True
        value = slot.view.buffer.value
        return value in self.plan.options.programs.outputs

    def _product(
        self, name: str, stem: str, group: Group, run: StackedProduct, hoisted: bool
    ) -> DeviceProduct:
        panel = self.panels.panel(name, run, self.places.place)
        operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
        a, c = self.places.place(operand.buffer), self.places.place(target.buffer)
        if hoisted:
            a, c = a.at_all_steps(self._in_order(operand)), c.at_all_steps(self._in_order(target))
        return planned_product(group, run, panel, a, c, all_steps=hoisted, name=stem)

    def _in_order(self, view: View) -> Expr | None:
        """The row stride of an array over time whose rows follow each other; None for others."""
        is_over_time = self.plan.options.find(view.buffer.name) is not None
        return row_stride(view.buffer) if is_over_time else None
