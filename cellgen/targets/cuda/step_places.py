"""Where buffers lie in a step that runs again and again.

Input: a part of the schedule and the workspace. Output: ``DevicePlace`` of each buffer, in the
launches of one step and in a kernel over all steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sympy import Integer

from cellgen.language.value import Value
from cellgen.program.over_time import StateLink
from cellgen.runtime.names import c_member
from cellgen.schedule import Buffer, BufferKind, Loop, Routine
from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Access, Load, Store, View
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.host import HostFunction, nullable, operands_of_stages, row_width
from cellgen.targets.cuda.places import DevicePlace
from cellgen.targets.cuda.products import Column
from cellgen.targets.cuda.states import KeptOverTime, StateOverTime, saved_or
from cellgen.targets.cuda.step import element_count, row_stride

STEP = "step * nB"
"""Rows before the current step."""


class StepPlaces:
    """Places of the buffers of ``forward`` or ``reverse``; sums of a group lie side by side."""

    def __init__(
        self,
        host: HostFunction,
        name: str,
        part: Part,
        states: dict[Value, StateOverTime],
        kept: KeptOverTime | None,
    ) -> None:
        self.host, self.name, self.part, self.states = host, name, part, states
        self.kept = kept
        self.operands = operands_of_stages(part.stages)
        self.read = _read_by_stages(part.stages)
        self.carries: dict[Value, str] = {}
        self.columns: dict[Buffer, Column] = {}
        self.sums: dict[str, tuple[str, bool]] = {}
        self.own: dict[Buffer, DevicePlace] = {}
        self.kept_sums: dict[Buffer, DevicePlace] = {}
        for link in host.schedule.programs.links if name == "reverse" else ():
            width = c_factor(row_width(link.passed))
            self.carries[link.passed] = host.memory.add(
                f"{link.passed.name}_pair", "real", f"2 * nB * {width}"
            )

    def place(self, buffer: Buffer) -> DevicePlace:  # noqa: PLR0911 - one case a return
        """Where a buffer lies in the current step."""
        if buffer.value in self.host.own:
            return self.host.own[buffer.value]
        if buffer in self.columns:
            at = self._sum_place(self.columns[buffer])
            return replace(at, kept=self.kept_sums.get(buffer))
        storage, stride = self.part.storage[buffer], row_stride(buffer)
        argument = f"args->{c_member(buffer.name)}"
        if storage is Storage.CARRY_IN or storage is Storage.CARRY_OUT:
            return self._carry(buffer, storage)
        if storage is Storage.PREVIOUS:
            return self._previous(buffer)
        if storage is Storage.SCRATCH:
            return self._scratch(buffer)
        if storage is Storage.TIME:
            return self._time(buffer, argument, stride)
        optional = buffer.kind is BufferKind.OPTIONAL
        return DevicePlace(argument, stride, "store", optional=optional, steady=True)

    def place_in_tier(self, buffer: Buffer) -> DevicePlace:
        """The same in a kernel over all steps, which runs where every step is valid."""
        if self.part.storage[buffer] is Storage.PREVIOUS and buffer.value not in self.host.own:
            return self._previous(buffer, guarded=False)
        return self.place(buffer)

    def _previous(self, buffer: Buffer, guarded: bool = True) -> DevicePlace:
        """A state before the current step: a copy where steps may be masked."""
        link = self._link_of(buffer.value)
        before = self.state_place(link.next, "step - 1")
        stride = row_stride(buffer)
        pointer = f"step ? {before.pointer} : args->{c_member(buffer.name)}"
        copy = self.host.options.before[buffer.value]
        if guarded:
            step = f" + {STEP} * {stride}" if self.name == "reverse" else ""
            pointer = f"guarded ? {copy}{step} : {pointer}"
        if before.stride != stride:
            dense = "guarded || step == 0" if guarded else "step == 0"
            stride = f"({dense} ? {stride} : {before.stride})"
        uses = before.uses | ({copy} if guarded else set())
        return DevicePlace(f"({pointer})", stride, "store", uses=uses)

    def _sum_place(self, column: Column) -> DevicePlace:
        stride, over_time = self.sums[column.memory]
        start = c_axis(column.start) if column.start != 0 else ""
        rows = STEP if over_time else ""
        return DevicePlace.in_memory(column.memory, stride, "real", rows=rows, column=start)

    def _carry(self, buffer: Buffer, storage: Storage) -> DevicePlace:
        links = self.host.schedule.programs.links
        link = next(k for k in links if buffer.value in (k.carry, k.passed))
        rows = "(step + 1) % 2 * nB" if storage is Storage.CARRY_IN else "step % 2 * nB"
        return DevicePlace.in_memory(
            self.carries[link.passed], row_stride(buffer), "real", rows=rows
        )

    def _time(self, buffer: Buffer, argument: str, stride: str) -> DevicePlace:  # noqa: PLR0911 - one case a return
        value, programs = buffer.value, self.host.schedule.programs
        if self.kept is not None and value in self.kept.order:
            return self.kept.place(value, STEP)
        over_time = DevicePlace(argument, stride, "store", rows=STEP)
        if buffer.name in self.host.options.places:
            over_time = StateOverTime(
                argument, stride, strides_of=self.host.options.strides_of[buffer.name]
            ).after("step")
        if buffer.kind is BufferKind.OPTIONAL:
            return nullable(argument, over_time)
        is_made = self.name == "forward" and buffer.kind is BufferKind.RESULT
        if not is_made or value in programs.outputs:
            return over_time
        if value in self.states:
            return self.state_place(value, "step")
        if value not in programs.saved:
            return self._scratch(buffer)
        if buffer not in self.read:
            return nullable(argument, over_time)
        own = self._scratch(buffer)
        pointer = f"({argument} ? {over_time.pointer} : {own.pointer})"
        return DevicePlace(pointer, stride, "store", uses=over_time.uses | own.uses)

    def state_place(self, value: Value, step: str) -> DevicePlace:
        """Where a state lies after a step."""
        if self.name == "reverse":
            return self.states[value].after(step)
        return saved_or(self.host, value, self.states[value], step)

    def _scratch(self, buffer: Buffer) -> DevicePlace:
        if buffer not in self.own:
            is_result = buffer.kind is BufferKind.RESULT
            element = "store" if buffer in self.operands or is_result else "real"
            name = self.host.memory.add(
                f"{self.name}_{buffer.name}", element, element_count(buffer)
            )
            self.own[buffer] = DevicePlace.in_memory(name, row_stride(buffer), element)
        return self.own[buffer]

    def _link_of(self, state: Value) -> StateLink:
        return next(k for k in self.host.schedule.programs.links if k.previous == state)

    def put_side_by_side(self, stem: str, group: Group, over_time: bool) -> None:
        """Let the sums of a group lie side by side, where nothing fixes their place.

        Sums that the backward pass wants lie there too: the loop that reads them stores them.
        """
        chosen = list(dict.fromkeys(slot.view.buffer for slot in group.slots))
        chosen = [buffer for buffer in chosen if buffer not in self.columns]
        free = [b for b in chosen if self._is_scratch(b)]
        kept = [b for b in chosen if self._is_kept(b, group)] if free or over_time else []
        chosen = [buffer for buffer in chosen if buffer in (*free, *kept)]
        if not chosen:
            return
        for buffer in kept:
            argument = f"args->{c_member(buffer.name)}"
            at = DevicePlace(argument, row_stride(buffer), "store", rows=STEP)
            self.kept_sums[buffer] = nullable(argument, at)
        total = sum((b.shape[-1] for b in chosen[1:]), start=chosen[0].shape[-1])
        count = f"{'nT * ' if over_time else ''}nB * {c_factor(total)}"
        memory = self.host.memory.add(f"{stem}_sums", "real", count)
        self.sums[memory] = (c_factor(total), over_time)
        start = Integer(0)
        for buffer in chosen:
            self.columns[buffer] = Column(memory, start, buffer.shape[-1])
            start = start + buffer.shape[-1]

    def _is_scratch(self, buffer: Buffer) -> bool:
        return self.part.storage[buffer] is Storage.SCRATCH and buffer not in self.operands

    def _is_kept(self, buffer: Buffer, group: Group) -> bool:
        """Whether a sum is saved for the backward pass, and one loop of the group reads it."""
        programs = self.host.schedule.programs
        fixed = {*programs.outputs, *self.states}
        is_saved = self.name == "forward" and buffer.value in programs.saved
        if not is_saved or buffer.value in fixed or buffer in self.operands:
            return False
        if group.heads is not None or self.part.storage[buffer] is not Storage.TIME:
            return False
        readers = [loop for loop in _loops(self.part.stages) if _loads_of(loop, buffer)]
        if len(readers) != 1 or readers[0] not in group.loops or readers[0].is_nest:
            return False
        stores = {line.store for line in readers[0].lines}
        loads = _loads_of(readers[0], buffer)
        plain = all(x.access is Access.ELEMENT and x.view.shape == buffer.shape for x in loads)
        return plain and stores <= {Store.LOCAL, Store.WRITE}

    def column(self, view: View) -> Column:
        """Where a slot lies: columns of a group's sums, or of its own buffer."""
        at = self.columns.get(view.buffer)
        start, width = view.start[-1], view.shape[-1]
        if at is None:
            return Column(view.buffer.name, start, width)
        return Column(at.memory, at.start + start, width)


def _loops(stages: Iterable[GroupedStage]) -> list[Loop]:
    """The loops of some stages."""
    listed = [stage.loops if isinstance(stage, Group) else (stage,) for stage in stages]
    return [loop for some in listed for loop in some if isinstance(loop, Loop)]


def _loads_of(loop: Loop, buffer: Buffer) -> list[Load]:
    return [load for load in loop.loads if load.view.buffer == buffer]


def _read_by_stages(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """Buffers that some stage reads from memory."""
    found = operands_of_stages(stages)
    for stage in stages:
        loops = stage.loops if isinstance(stage, Group) else (stage,)
        for loop in loops:
            if isinstance(loop, Loop):
                found |= {load.view.buffer for load in loop.loads}
            elif isinstance(loop, Routine):
                found |= {view.buffer for view in loop.operands}
    return found
