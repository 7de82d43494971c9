"""Plan the deferred part: every stage once, over the rows of all steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cellgen.errors import DerivationError
from cellgen.language.value import B, T
from cellgen.schedule.device.function import FunctionPlanner
from cellgen.schedule.device.loops import named_loops, operands_of, plan_loop, plan_routine
from cellgen.schedule.device.places import (
    BeforeSteps,
    DevicePlace,
    Element,
    Extent,
    Matrix,
    Over,
    row_stride,
)
from cellgen.schedule.device.stacked import Column, outer_products, planned_product, stack
from cellgen.schedule.device.stages import (
    DeferredStage,
    StepsShare,
    WeightGradients,
    not_rendered,
)
from cellgen.schedule.device.states import KeptOverTime
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Buffer, BufferKind, Loop, Product, Routine


@dataclass
class DeferredPlanner:
    """Plans the deferred part."""

    host: FunctionPlanner
    part: Part
    kept: KeptOverTime
    own: dict[Buffer, DevicePlace] = field(default_factory=dict)
    stages: list[DeferredStage] = field(default_factory=list)

    def plan(self) -> tuple[DeferredStage, ...]:
        """The stages in order; neighbouring weight gradients share products."""
        waiting: list[Product] = []
        for index, stage in enumerate(self.part.stages, start=1):
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
        contexts = self.host.schedule.programs.contexts
        for buffer in (b for b in self.part.storage if b.value in contexts):
            self.stages.append(StepsShare(buffer, self.place(buffer)))
        return tuple(self.stages)

    def _loop(self, stem: str, loop: Loop) -> None:
        self.stages.append(
            plan_loop(
                f"{self.host.cell}_{stem}",
                loop,
                self.place,
                self.host.memory.add,
                all_steps=True,
                leaves_out=leaves_out_rows(loop),
            )
        )

    def _routine(self, stage: Routine) -> None:
        places = [self.place(view.buffer) for view in stage.operands]
        if stage.by_row and any(place.over is not Over.ROWS for place in places):
            raise not_rendered(self.host.cell, stage)
        self.stages.append(plan_routine(stage, (T, B), self.place))

    def _products(self, products: Sequence[Product]) -> None:
        """Weight gradients: one product for each left operand and run of adjoints."""
        for run in outer_products(products, self.kept.neighbours(self.part)):
            left = Matrix(run[0].a, self.place(run[0].a.buffer))
            right = Matrix(run[0].b, self.place(run[0].b.buffer))
            joint = ""
            if len(run) > 1:
                rows, widths = run[0].target.shape[0], [p.target.shape[1] for p in run]
                extent = Extent((rows, sum(widths[1:], start=widths[0])))
                name = f"{run[0].a.buffer.name}_products"
                joint = self.host.memory.add(name, Element.REAL, extent)
            targets = tuple(Matrix(p.target, self.place(p.target.buffer)) for p in run)
            self.stages.append(WeightGradients(run, left, right, targets, joint))

    def _group(self, stem: str, group: Group) -> None:
        columns = [
            Column(slot.view.buffer.name, slot.view.start[-1], slot.view.shape[-1])
            for slot in group.slots
        ]
        runs = stack(group, columns, self.kept.neighbours(self.part))
        self.host.count_products(group)
        for number, run in enumerate(runs, start=1):
            panel = self.host.packing.panel(f"{stem}_weights_{number}", run, self.place)
            operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
            a, c = self.place(operand.buffer), self.place(target.buffer)
            if a.over is not Over.ROWS:
                raise DerivationError(
                    f"{self.host.cell}: `{operand} @ ...` over all steps is not rendered for CUDA "
                    f"yet, because {operand} lies in {a.over.value}",
                    code="cuda.stage",
                )
            self.stages.append(planned_product(group, run, panel, a, c))

    def place(self, buffer: Buffer) -> DevicePlace:
        """Where a buffer lies, from its first step on."""
        if buffer.value in self.host.own:
            return self.host.own[buffer.value]
        storage, stride, options = self.part.storage[buffer], row_stride(buffer), self.host.options
        options.whole.add(buffer.name)
        if storage is Storage.SCRATCH:
            return self._scratch(buffer)
        if storage is Storage.PREVIOUS:
            link = next(k for k in self.host.schedule.programs.links if k.previous == buffer.value)
            left = str(link.next.name)
            options.whole.add(left)
            copy = options.fixed.copy_of(buffer.value)
            rows = BeforeSteps(left, buffer.name, stride, copy)
            return DevicePlace(rows, Element.STORE, over=Over.PREVIOUS)
        if buffer.value in self.kept.order:
            return self.kept.place(buffer.value)
        is_row = storage is Storage.CONSTANT and buffer.value.is_batched
        optional = buffer.kind is BufferKind.OPTIONAL
        rows_of = DevicePlace.of_caller(buffer.name, stride, optional=optional)
        over = Over.BATCH if is_row else Over.ROWS
        return DevicePlace(rows_of.source, Element.STORE, optional=optional, over=over)

    def _scratch(self, buffer: Buffer) -> DevicePlace:
        if buffer not in self.own:
            name, is_stored = f"deferred_{buffer.name}", buffer in operands_of(self.part.stages)
            memory = self.host.memory
            self.own[buffer] = memory.place(name, buffer, is_stored=is_stored, steps=(T,))
        return self.own[buffer]
