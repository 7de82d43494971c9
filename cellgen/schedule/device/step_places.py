"""Where buffers lie in a step that runs again and again.

Input: a part of the schedule and the workspace. Output: ``DevicePlace`` of each buffer, in the
launches of one step and in a kernel over all steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sympy import Expr, Integer

from cellgen.language.value import B, T, Value
from cellgen.program.over_time import StateLink
from cellgen.schedule.device.function import FunctionPlanner
from cellgen.schedule.device.loops import operands_of
from cellgen.schedule.device.places import (
    BeforeStep,
    DevicePlace,
    Element,
    Extent,
    IfGiven,
    Moment,
    RowsOfArray,
    row_stride,
)
from cellgen.schedule.device.stacked import Column
from cellgen.schedule.device.states import KeptOverTime, pair_of, saved_or
from cellgen.schedule.groups import Group, loops_of, views_read
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import (
    Access,
    Buffer,
    BufferKind,
    Load,
    Loop,
    Store,
    View,
)


class StepPlaces:
    """Places of the buffers of ``forward`` or ``reverse``; sums of a group lie side by side."""

    def __init__(
        self,
        host: FunctionPlanner,
        name: str,
        part: Part,
        states: Mapping[Value, RowsOfArray],
        kept: KeptOverTime | None,
    ) -> None:
        self.host, self.name, self.part, self.states = host, name, part, states
        self.kept = kept
        self.operands = operands_of(part.stages)
        self.read = {view.buffer for stage in part.stages for view in views_read(stage)}
        self.carries: dict[Value, RowsOfArray] = {}
        self.columns: dict[Buffer, Column] = {}
        self.sums: dict[str, tuple[Expr, bool]] = {}
        self.own: dict[Buffer, DevicePlace] = {}
        self.ahead: set[Buffer] = set()
        self.kept_sums: dict[Buffer, DevicePlace] = {}
        for link in host.schedule.programs.links if name == "reverse" else ():
            self.carries[link.passed] = pair_of(host, link.passed, Element.REAL)

    def place(self, buffer: Buffer) -> DevicePlace:  # noqa: PLR0911 - one case a return
        """Where a buffer lies in the current step."""
        if buffer.value in self.host.own:
            return self.host.own[buffer.value]
        if buffer in self.columns:
            at = self._sum_place(self.columns[buffer])
            return replace(at, kept=self.kept_sums.get(buffer))
        storage, stride = self.part.storage[buffer], row_stride(buffer)
        if storage is Storage.CARRY_IN or storage is Storage.CARRY_OUT:
            return self._carry(buffer, storage)
        if storage is Storage.PREVIOUS:
            return self._previous(buffer)
        if storage is Storage.SCRATCH:
            return self._scratch(buffer)
        if storage is Storage.TIME:
            return self._time(buffer, stride)
        optional = buffer.kind is BufferKind.OPTIONAL
        return DevicePlace.of_caller(buffer.name, stride, optional=optional, steady=True)

    def place_in_tier(self, buffer: Buffer) -> DevicePlace:
        """The same in a kernel over all steps, which runs where every step is valid."""
        if self.part.storage[buffer] is Storage.PREVIOUS and buffer.value not in self.host.own:
            return self._previous(buffer, guarded=False)
        return self.place(buffer)

    def _previous(self, buffer: Buffer, guarded: bool = True) -> DevicePlace:
        """A state before the current step: a copy where steps may be masked."""
        before = self.state_rows(self._link_of(buffer.value).next, Moment.BEFORE)
        stride, copy = row_stride(buffer), None
        if guarded:
            step = Moment.NOW if self.name == "reverse" else None
            copy = RowsOfArray(self.host.options.fixed.copy_of(buffer.value), stride, at=step)
        return DevicePlace(BeforeStep(before, buffer.name, stride, copy), Element.STORE)

    def _sum_place(self, column: Column) -> DevicePlace:
        stride, over_time = self.sums[column.memory]
        at = Moment.NOW if over_time else None
        return DevicePlace.in_memory(column.memory, stride, Element.REAL, at, column.start)

    def _carry(self, buffer: Buffer, storage: Storage) -> DevicePlace:
        links = self.host.schedule.programs.links
        link = next(k for k in links if buffer.value in (k.carry, k.passed))
        at = Moment.AFTER if storage is Storage.CARRY_IN else Moment.NOW
        return DevicePlace(self.carried(link, at), Element.REAL)

    def carried(self, link: StateLink, at: Moment) -> RowsOfArray:
        """Where the gradient that reaches a step, or the step before it, lies."""
        return replace(self.carries[link.passed], at=at)

    def _time(self, buffer: Buffer, stride: Expr) -> DevicePlace:  # noqa: PLR0911 - one case a return
        value, programs = buffer.value, self.host.schedule.programs
        if self.kept is not None and value in self.kept.order:
            return self.kept.place(value, Moment.NOW)
        strides = self.host.options.strides_of(buffer.name)
        rows = RowsOfArray(buffer.name, stride, of_caller=True, at=Moment.NOW, strides=strides)
        if buffer.kind is BufferKind.OPTIONAL:
            return _nullable(rows)
        is_result = self.name == "forward" and buffer.kind is BufferKind.RESULT
        if not is_result or value in programs.outputs:
            return DevicePlace(rows, Element.STORE)
        if value in self.states:
            return DevicePlace(self.state_rows(value, Moment.NOW), Element.STORE)
        if value not in programs.saved:
            return self._scratch(buffer)
        if buffer not in self.read:
            return _nullable(rows)
        own = self._scratch(buffer).source
        assert isinstance(own, RowsOfArray)
        return DevicePlace(IfGiven(rows, own), Element.STORE)

    def state_rows(self, value: Value, step: Moment) -> RowsOfArray | IfGiven:
        """Where a state lies after a step."""
        if self.name == "reverse":
            return replace(self.states[value], at=step)
        return saved_or(self.host, value, self.states[value], step)

    def _scratch(self, buffer: Buffer) -> DevicePlace:
        if buffer not in self.own:
            is_result = buffer.kind is BufferKind.RESULT
            is_stored = buffer in self.operands or is_result
            name, memory = f"{self.name}_{buffer.name}", self.host.memory
            steps = (T,) if buffer in self.ahead else ()
            own = memory.place(name, buffer, is_stored=is_stored, steps=steps)
            self.own[buffer] = own.at_step(Moment.NOW) if steps else own
        return self.own[buffer]

    def _link_of(self, state: Value) -> StateLink:
        return next(k for k in self.host.schedule.programs.links if k.previous == state)

    def form_ahead(self, buffers: Iterable[Buffer]) -> None:
        """Give what products of all steps form a place at every step, unless the caller has one."""
        outputs = self.host.schedule.programs.outputs
        self.ahead |= {b for b in buffers if b.value not in outputs and not self._is_scratch(b)}

    def put_side_by_side(self, stem: str, group: Group, over_time: bool) -> None:
        """Let the sums of a group lie side by side, where nothing fixes their place.

        What an earlier stage has begun to write, a part of a concatenation, stays where it is.
        Sums that the backward pass wants lie there too: the loop that reads them stores them.
        """
        chosen = list(dict.fromkeys(slot.view.buffer for slot in group.slots))
        chosen = [b for b in chosen if b not in self.columns and b not in self.own]
        free = [b for b in chosen if self._is_scratch(b)]
        kept = [b for b in chosen if self._is_kept(b, group)] if free or over_time else []
        chosen = [buffer for buffer in chosen if buffer in (*free, *kept)]
        if not chosen:
            return
        for buffer in kept:
            rows = RowsOfArray(buffer.name, row_stride(buffer), of_caller=True, at=Moment.NOW)
            self.kept_sums[buffer] = _nullable(rows)
        total = sum((b.shape[-1] for b in chosen[1:]), start=chosen[0].shape[-1])
        extent = Extent((T, B, total) if over_time else (B, total))
        memory = self.host.memory.add(f"{stem}_sums", Element.REAL, extent)
        self.sums[memory] = (total, over_time)
        start: Expr = Integer(0)
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
        readers = [loop for loop in loops_of(self.part.stages) if _loads_of(loop, buffer)]
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


def _nullable(rows: RowsOfArray) -> DevicePlace:
    """An array of the caller that may be left out."""
    return DevicePlace(IfGiven(rows), Element.STORE, optional=True)


def _loads_of(loop: Loop, buffer: Buffer) -> list[Load]:
    return [load for load in loop.loads if load.view.buffer == buffer]
