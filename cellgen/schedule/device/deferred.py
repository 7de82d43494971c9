"""Plan the deferred part: every stage once, over the rows of all steps.

Pass: a plan without it -> the same with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellgen.errors import DerivationError
from cellgen.language.value import B, T
from cellgen.schedule.device.form import workspace_of
from cellgen.schedule.device.loops import named_loops, operands_of, plan_loop, plan_routine
from cellgen.schedule.device.places import (
    BeforeSteps,
    DevicePlace,
    DeviceWorkspace,
    Element,
    Extent,
    Matrix,
    Over,
    row_stride,
)
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stacked import (
    Column,
    WeightPanels,
    outer_products,
    planned_product,
    stack,
)
from cellgen.schedule.device.stages import (
    DeferredStage,
    DeviceProduct,
    StepsShare,
    WeightGradients,
    not_rendered,
)
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import How, PartPlan, Place
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.schedule import Buffer, BufferKind, Loop, Product, Routine


def with_deferred(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Plan every stage that follows the loop; neighbouring weight gradients share products."""
    if not plan.is_backward:
        return plan
    memory = workspace_of(function, plan)
    products = (s for s in (*plan.ahead, *plan.steps) if isinstance(s, DeviceProduct))
    panels = WeightPanels.of(memory.add, products)
    planner = _DeferredPlanner(plan, plan.time.parts[1], memory, panels)
    planner.plan_stages()
    return replace(
        plan,
        memory=tuple(memory.arrays),
        packed=(*plan.packed, *panels.packed),
        deferred=tuple(planner.stages),
    )


@dataclass
class _DeferredPlanner:
    """Plans the deferred part."""

    plan: DeviceTimePlan
    part: PartPlan
    memory: DeviceWorkspace
    panels: WeightPanels
    own: dict[Buffer, DevicePlace] = field(default_factory=dict)
    stages: list[DeferredStage] = field(default_factory=list)

    def plan_stages(self) -> None:
        """The stages in order."""
        waiting: list[Product] = []
        for index, stage in enumerate(self.part.work, start=1):
            if isinstance(stage, Product):
                waiting.append(stage)
                continue
            self._products(waiting)
            waiting = []
            stem = f"deferred_{index}"
            if isinstance(stage, Loop):
                self._loop(stem, stage)
                continue
            if isinstance(stage, Routine):
                self._routine(stage)
                continue
            self._group(stem, stage)
            for name, loop in named_loops(stem, stage.loops):
                self._loop(name, loop)
        self._products(waiting)
        buffers = {place.buffer.value: place.buffer for place in self.part.places}
        for value in self.plan.options.programs.contexts:
            self.stages.append(StepsShare(buffers[value], self.place(buffers[value])))

    def _loop(self, stem: str, loop: Loop) -> None:
        self.stages.append(
            plan_loop(
                f"{self.plan.cell}_{stem}",
                loop,
                self.place,
                self.memory.add,
                all_steps=True,
                leaves_out=leaves_out_rows(loop),
            )
        )

    def _routine(self, stage: Routine) -> None:
        places = [self.place(view.buffer) for view in stage.operands]
        if stage.by_row and any(place.over is not Over.ROWS for place in places):
            raise not_rendered(self.plan.cell, stage)
        self.stages.append(plan_routine(stage, (T, B), self.place))

    def _products(self, products: Sequence[Product]) -> None:
        """Weight gradients: one product for each left operand and run of adjoints."""
        for run in outer_products(products, self.plan.kept.neighbours(self.part)):
            left = Matrix(run[0].a, self.place(run[0].a.buffer))
            right = Matrix(run[0].b, self.place(run[0].b.buffer))
            joint = ""
            if len(run) > 1:
                rows, widths = run[0].target.shape[0], [p.target.shape[1] for p in run]
                extent = Extent((rows, sum(widths[1:], start=widths[0])))
                name = f"{run[0].a.buffer.name}_products"
                joint = self.memory.add(name, Element.REAL, extent)
            targets = tuple(Matrix(p.target, self.place(p.target.buffer)) for p in run)
            self.stages.append(WeightGradients(run, left, right, targets, joint))

    def _group(self, stem: str, group: Group) -> None:
        columns = [
            Column(slot.view.buffer.name, slot.view.start[-1], slot.view.shape[-1])
            for slot in group.slots
        ]
        runs = stack(group, columns, self.plan.kept.neighbours(self.part))
        for number, run in enumerate(runs, start=1):
            panel = self.panels.panel(f"{stem}_weights_{number}", run, self.place)
            operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
            a, c = self.place(operand.buffer), self.place(target.buffer)
            if a.over is not Over.ROWS:
                raise DerivationError(
                    f"{self.plan.cell}: `{operand} @ ...` over all steps is not rendered for CUDA "
                    f"yet, because {operand} lies in {a.over.value}",
                    code="cuda.stage",
                )
            self.stages.append(planned_product(group, run, panel, a, c))

    def place(self, buffer: Buffer) -> DevicePlace:
        """Where a buffer lies, from its first step on."""
        place = self.part.place(buffer)
        return _OF_HOW.get(place.how, _DeferredPlanner._rows)(self, place)

    # --- what is found how ---

    def _rows(self, place: Place) -> DevicePlace:
        """Rows of the caller, one behind the other, or what is the same for all of them."""
        buffer = place.buffer
        optional = buffer.kind is BufferKind.OPTIONAL
        return DevicePlace.of_caller(buffer.name, row_stride(buffer), optional=optional)

    def _memory(self, place: Place) -> DevicePlace:
        """What is formed once, or at every step; C has copies of what each step reads alike."""
        if place.buffer.value in self.plan.once:
            return self.plan.once[place.buffer.value]
        if place.of in {array.memory for array in self.plan.time.constants}:
            return replace(self._rows(place), over=Over.BATCH)
        return self._scratch(place)

    def _sum(self, place: Place) -> DevicePlace:
        """A sum over the rows of all steps: its own, or the caller's."""
        return self.plan.once.get(place.buffer.value) or self._rows(place)

    def _before(self, place: Place) -> DevicePlace:
        buffer, state = place.buffer, self.plan.state(place.buffer.value)
        copy = self.plan.options.copy_of(buffer.value)
        rows = BeforeSteps(str(state.link.next.name), buffer.name, row_stride(buffer), copy)
        return DevicePlace(rows, Element.STORE, over=Over.PREVIOUS)

    def _kept(self, place: Place) -> DevicePlace:
        return self.plan.kept_place(place.buffer.value)

    def _scratch(self, place: Place) -> DevicePlace:
        buffer = place.buffer
        if buffer not in self.own:
            is_stored = buffer in operands_of(self.part.work)
            own = self.memory.place(place.of, buffer, is_stored=is_stored, steps=(T,))
            self.own[buffer] = own
        return self.own[buffer]


_OF_HOW: Mapping[How, Callable[[_DeferredPlanner, Place], DevicePlace]] = {
    How.MEMORY: _DeferredPlanner._memory,
    How.SUMS: _DeferredPlanner._sum,
    How.BEFORE: _DeferredPlanner._before,
    How.KEPT: _DeferredPlanner._kept,
}
"""All others are rows of the caller."""
