"""Spell the stages that run in every step: forward, or in reverse."""

from __future__ import annotations

from dataclasses import replace

from cellgen.program.over_time import StateLink
from cellgen.runtime.names import c_member
from cellgen.schedule import BufferKind, Loop, Routine
from cellgen.schedule.groups import Group
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import View
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.host import (
    HostFunction,
    named_loops,
    row_width,
    term_comment,
)
from cellgen.targets.cuda.kernels import spell_loop
from cellgen.targets.cuda.places import DevicePlace, address, factor
from cellgen.targets.cuda.products import (
    Column,
    Neighbours,
    StackedProduct,
    gemm,
    gemm_heads,
    ordered_slots,
    stack,
)
from cellgen.targets.cuda.step import (
    not_rendered,
    row_stride,
    spell_routine,
)
from cellgen.targets.cuda.step_places import StepPlaces
from cellgen.targets.cuda.tiers import (
    Carried,
    Passed,
    StepItem,
    StepLoop,
    StepProduct,
    TierChoice,
    choose,
)


class StepsWriter:
    """Spells the stages of a part that runs step by step: ``forward`` or ``reverse``."""

    def __init__(
        self,
        host: HostFunction,
        name: str,
        part: Part,
        places: StepPlaces,
        neighbours: Neighbours,
        begun: frozenset[Group] = frozenset(),
    ) -> None:
        self.host, self.name, self.part, self.begun = host, name, part, begun
        self.places, self.neighbours = places, neighbours
        self.items: list[StepItem] = []

    def lines(self) -> tuple[list[str], list[str]]:
        """Host lines that run once before the loop over steps, and in each step."""
        ahead: list[str] = []
        body: list[str] = []
        for index, stage in enumerate(self.part.stages, start=1):
            stem = f"{self.name}_{index}"
            if isinstance(stage, Group):
                once, each = self._group(stem, stage)
                ahead += once
                body += each
                for name, loop in named_loops(stem, stage.loops):
                    body += self._loop(name, loop, stem)
            elif isinstance(stage, Loop):
                body += self._loop(stem, stage)
            elif isinstance(stage, Routine):
                body += spell_routine(stage, "nB", self.places.place)
                for view in (*stage.operands, stage.target):
                    self.host.uses |= self.places.place(view.buffer).uses
                self.items.append(stage)
            else:
                raise not_rendered(self.host.cell, stage)
        return ahead, body

    def _loop(self, stem: str, loop: Loop, group: str = "") -> list[str]:
        spelled = spell_loop(
            f"{self.host.cell}_{stem}", loop, self.places.place, self.host.memory.add
        )
        self.host.kernels += spelled.kernels
        self.host.uses |= spelled.uses
        self.items.append(StepLoop(stem, loop, group))
        return spelled.launches

    def choice(self) -> TierChoice:
        """The kernel that runs all steps at once, if there is one."""
        definition = self.host.schedule.programs.definition
        return choose(
            f"{definition.name}_{self.name}",
            f"{definition.name}_cuda_{self.host.signature.name}_args",
            self.host.signature,
            self.items,
            self.places.place_in_tier,
            [self._carried(link) for link in self.host.schedule.programs.links],
            [
                self._passed(k)
                for k in self.host.schedule.programs.links
                if k.passed in self.places.carries
            ],
            self.host.memory.arrays,
            self.host.options.strides(),
        )

    def _carried(self, link: StateLink) -> Carried:
        if self.name == "forward":
            width = c_axis(row_width(link.previous))
            member = c_member(str(link.previous.name))
            first = f"cg_load(cg_in(args->{member}, {width}), row, unit)"
            return Carried(link.previous, link.next, first, "", True)
        width, pair = c_factor(row_width(link.passed)), self.places.carries[link.passed]
        first = f"cg_load(cg_in({pair} + nT % 2 * nB * {width}, {width}), row, unit)"
        last = f"cg_store(cg_rows({pair}, {width}), row, unit, {link.carry.name})"
        return Carried(link.carry, link.passed, first, last, False, frozenset({pair}))

    def made(self, link: StateLink) -> str:
        """Where the current step leaves a state."""
        made = self.places.state_place(link.next, "step")
        self.host.uses |= made.uses
        return made.pointer

    def cut(self, link: StateLink) -> str:
        """Let no gradient go on to the step before."""
        passed = self._passed(link)
        rows = f"cg_rows({passed.pointer}, {passed.stride})"
        return f"cg_clear(&run, nB, {c_axis(row_width(link.passed))}, {rows});"

    def _passed(self, link: StateLink) -> Passed:
        """Where the current step leaves the gradient for the step before."""
        width, stride = c_axis(row_width(link.passed)), c_factor(row_width(link.passed))
        pair = self.places.carries[link.passed]
        return Passed(f"{pair} + step % 2 * nB * {stride}", stride, width, frozenset({pair}))

    def masked_select(self, link: StateLink) -> str:
        """Put the gradient for the step before right where this one is masked."""
        pair, stride = self.places.carries[link.passed], c_factor(row_width(link.passed))
        passed, carry = (f"{pair} + {at} % 2 * nB * {stride}" for at in ("step", "(step + 1)"))
        return self.host.options.masked_select_gradient(link, passed, carry)

    def carry_line(self, link: StateLink, when: str) -> str:
        """Take the gradient of the last state in, or hand that of the initial one out."""
        width, pair = c_axis(row_width(link.passed)), self.places.carries[link.passed]
        if when == "begin":
            target = f"cg_rows({pair} + nT % 2 * nB * {factor(width)}, {width})"
            source = f"cg_in(args->{c_member(f'd_{link.next.name}_last')}, {width})"
        else:
            target = f"cg_rows(args->{c_member(str(link.passed.name))}, {width})"
            source = f"cg_in({pair}, {width})"
        return f"cg_copy(&run, nB, {width}, {target}, {source});"

    def _group(self, stem: str, group: Group) -> tuple[list[str], list[str]]:
        """The products of a group: those for all steps at once, those of a step."""
        over_time = self.name == "forward" and any(self._is_input(t.operand) for t in group.terms)
        begun = set(range(len(group.slots))) if group in self.begun else set[int]()
        inputs = [t for t in group.terms if over_time and self._is_input(t.operand)]
        others = [t for t in group.terms if t not in inputs]
        group = ordered_slots(replace(group, terms=(*inputs, *others)), len(inputs))
        self.places.put_side_by_side(stem, group, over_time)
        columns = [self.places.column(slot.view) for slot in group.slots]
        cleared = self._cleared(group, len(inputs))
        ahead, body = [self._clear(columns[slot]) for slot in sorted(cleared)], list[str]()
        runs = stack(group, columns, self.neighbours, cleared | begun)
        for number, run in enumerate(runs, start=1):
            hoisted = run.terms[0] in inputs and self._lies_over_time(group, run)
            line = self._product(f"{stem}_weights_{number}", group, run, hoisted)
            (ahead if hoisted else body).extend(line)
        return ahead, body

    def _cleared(self, group: Group, inputs: int) -> set[int]:
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

    def _clear(self, column: Column) -> str:
        """Clear columns of sums at all steps."""
        stride, _ = self.places.sums[column.memory]
        at = f"{column.memory} + {c_axis(column.start)}" if column.start != 0 else column.memory
        return f"cg_clear(&run, nT * nB, {c_axis(column.width)}, cg_rows({at}, {stride}));"

    def _lies_over_time(self, group: Group, run: StackedProduct) -> bool:
        """Whether the columns that a run forms have a place of their own at every step."""
        slot = group.slots[run.slots[0]]
        memory = self.places.column(slot.view).memory
        if memory in self.places.sums:
            return self.places.sums[memory][1]
        value = slot.view.buffer.value
        return value in self.host.schedule.programs.outputs

    def _product(self, name: str, group: Group, run: StackedProduct, hoisted: bool) -> list[str]:
        panel = self.host.packing.panel(name, run, self.places.place)
        operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
        a, c = self.places.place(operand.buffer), self.places.place(target.buffer)
        rows = "nB"
        if hoisted:
            self.host.options.whole |= {operand.buffer.name, target.buffer.name}
            a, c, rows = self._at_all_steps(operand), self._at_all_steps(target), "nT * nB"
        inner = sum((t.inner for t in run.terms[1:]), start=run.terms[0].inner)
        width = group.units * len(run.slots)
        terms = zip(run.terms, run.weights, strict=True)
        comment = "; ".join(term_comment(t, w) for t, w in terms)
        routine = "nt" if panel.transposed else "nn"
        matrices = (
            (address(operand, a), a.stride),
            (panel.pointer, panel.stride),
            (address(target, c), c.stride),
        )
        heads, units = run.heads(group), group.units
        if heads is None:
            call = gemm(routine, (rows, c_axis(width), c_axis(inner)), *matrices, run.onto)
        else:
            units = group.units / heads
            sizes = (rows, c_axis(units), c_axis(inner))
            call = gemm_heads(routine, len(run.slots), heads, sizes, *matrices, run.onto)
        if hoisted:
            self.host.ahead.append(comment)
        else:
            self.host.uses |= a.uses | c.uses
            in_tier = self.places.place_in_tier(operand.buffer)
            self.items.append(
                StepProduct(
                    comment,
                    len(run.slots),
                    c_axis(units),
                    c_axis(inner),
                    (address(operand, in_tier), in_tier.stride),
                    (panel.pointer, panel.stride),
                    panel.transposed,
                    matrices[2],
                    run.onto,
                    in_tier.uses | panel.uses | c.uses,
                    name.rpartition("_weights_")[0],
                    "" if heads is None else c_factor(heads),
                    c_axis(group.units),
                )
            )
        return [f"/* {comment}{', all steps at once' if hoisted else ''} */", call]

    def _at_all_steps(self, view: View) -> DevicePlace:
        """Where a matrix over all steps begins: one row follows the other."""
        place = replace(self.places.place(view.buffer), rows="", steps="")
        if view.buffer.name in self.host.options.places:
            return replace(place, stride=row_stride(view.buffer))
        return place

    def _is_input(self, view: View) -> bool:
        buffer = view.buffer
        return buffer.kind is BufferKind.ARGUMENT and self.part.storage[buffer] is Storage.TIME
