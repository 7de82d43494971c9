"""Plan the stages that run in every step: forward, or in reverse."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sympy import Expr

from cellgen.language.value import B
from cellgen.program.over_time import StateLink
from cellgen.schedule.device.function import FunctionPlanner
from cellgen.schedule.device.hold import has_memory, hold
from cellgen.schedule.device.loops import named_loops, plan_loop, plan_routine
from cellgen.schedule.device.persistent import PersistentChoice, choose_persistent
from cellgen.schedule.device.places import (
    IfGiven,
    Moment,
    RowsOfArray,
    row_stride,
    row_width,
)
from cellgen.schedule.device.stacked import (
    Column,
    Neighbours,
    StackedProduct,
    ordered_slots,
    planned_product,
    stack,
)
from cellgen.schedule.device.stages import Cleared, DeviceProduct, StepStage, not_rendered
from cellgen.schedule.device.step_places import StepPlaces
from cellgen.schedule.device.tiers import Carried, Passed, TierChoice, choose
from cellgen.schedule.groups import Group
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import BufferKind, Loop, Routine, View

AheadStage: TypeAlias = Cleared | DeviceProduct
"""What is done for all steps before the loop over them."""


@dataclass
class StepsPlanner:
    """Plans the stages of a part that runs step by step: ``forward`` or ``reverse``.

    ``begun`` are groups that add to what their slots hold.
    """

    host: FunctionPlanner
    name: str
    part: Part
    places: StepPlaces
    neighbours: Neighbours
    begun: frozenset[Group] = frozenset()
    ahead: list[AheadStage] = field(default_factory=list)
    stages: list[StepStage] = field(default_factory=list)

    def plan(self) -> None:
        """Plan every stage: what serves all steps at once, and what runs in each."""
        for index, stage in enumerate(self.part.stages, start=1):
            stem = f"{self.name}_{index}"
            if isinstance(stage, Group):
                self._group(stem, stage)
                for name, loop in named_loops(stem, stage.loops):
                    self._loop(name, loop, stem)
            elif isinstance(stage, Loop):
                self._loop(stem, stage)
            elif isinstance(stage, Routine):
                self.stages.append(plan_routine(stage, (B,), self.places.place))
            else:
                raise not_rendered(self.host.cell, stage)
        for planned in self.stages:
            self.host.names |= planned.names

    def _loop(self, stem: str, loop: Loop, group: str = "") -> None:
        name = f"{self.host.cell}_{stem}"
        place, add = self.places.place, self.host.memory.add
        self.stages.append(plan_loop(name, loop, place, add, group=group))

    def choice(self) -> TierChoice:
        """The kernel that runs all steps at once, if there is one."""
        links, places = self.host.schedule.programs.links, self.places.place_in_tier
        carried = [self._carried(link) for link in links]
        passed = [self._passed(link) for link in links if link.passed in self.places.carries]
        chosen = choose(self.stages, places, carried, passed)
        if chosen.tier is not None or not has_memory(links):
            return chosen
        held = hold(self.stages, places, links, carried)
        return TierChoice(None, held) if isinstance(held, str) else TierChoice(None, "", held)

    def persistent(self) -> PersistentChoice:
        """The kernel whose blocks are on the device together, if there is one."""
        links = self.host.schedule.programs.links
        return choose_persistent(
            self.stages,
            self.places.place,
            links,
            [self._passed(link) for link in links if link.passed in self.places.carries],
            self.host.memory.add,
        )

    def _carried(self, link: StateLink) -> Carried:
        if self.name == "forward":
            previous = link.previous
            first = RowsOfArray(str(previous.name), row_width(previous), of_caller=True)
            return Carried(previous, link.next, first, None, rounded=True)
        last = self.places.carries[link.passed]
        first = self.places.carried(link, Moment.END)
        return Carried(link.carry, link.passed, first, last, rounded=False)

    def _passed(self, link: StateLink) -> Passed:
        return Passed(self.places.carried(link, Moment.NOW), row_width(link.passed))

    def left_by_step(self, link: StateLink) -> RowsOfArray | IfGiven:
        """Where the current step leaves a state."""
        rows = self.places.state_rows(link.next, Moment.NOW)
        self.host.names |= rows.names
        return rows

    def _group(self, stem: str, group: Group) -> None:
        """The products of a group: those for all steps at once, those of a step."""
        self.host.count_products(group, begun=group in self.begun)
        over_time = self.name == "forward" and any(self._is_input(t.operand) for t in group.terms)
        begun = set(range(len(group.slots))) if group in self.begun else set[int]()
        inputs = [t for t in group.terms if over_time and self._is_input(t.operand)]
        others = [t for t in group.terms if t not in inputs]
        group = ordered_slots(replace(group, terms=(*inputs, *others)), len(inputs))
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
        return value in self.host.schedule.programs.outputs

    def _product(
        self, name: str, stem: str, group: Group, run: StackedProduct, hoisted: bool
    ) -> DeviceProduct:
        panel = self.host.packing.panel(name, run, self.places.place)
        operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
        a, c = self.places.place(operand.buffer), self.places.place(target.buffer)
        if hoisted:
            self.host.options.whole |= {operand.buffer.name, target.buffer.name}
            a, c = a.at_all_steps(self._in_order(operand)), c.at_all_steps(self._in_order(target))
        in_tier = None if hoisted else self.places.place_in_tier(operand.buffer)
        return planned_product(group, run, panel, a, c, in_tier=in_tier, name=stem)

    def _in_order(self, view: View) -> Expr | None:
        """The row stride of an array over time whose rows follow each other; None for others."""
        is_over_time = self.host.options.fixed.find(view.buffer.name) is not None
        return row_stride(view.buffer) if is_over_time else None

    def _is_input(self, view: View) -> bool:
        buffer = view.buffer
        return buffer.kind is BufferKind.ARGUMENT and self.part.storage[buffer] is Storage.TIME
