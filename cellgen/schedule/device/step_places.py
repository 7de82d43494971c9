"""Where buffers lie in a step that runs again and again.

Input: a plan, whose common part says how each buffer is found (``How``), and its workspace. Output:
``DevicePlace`` of each buffer in the launches of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sympy import Expr, Integer

from cellgen.language.value import B, T
from cellgen.schedule.device.loops import operands_of
from cellgen.schedule.device.places import (
    BeforeStep,
    DevicePlace,
    DeviceWorkspace,
    Element,
    Extent,
    IfGiven,
    Moment,
    RowsOfArray,
    row_stride,
)
from cellgen.schedule.device.plan import DeviceState, DeviceTimePlan
from cellgen.schedule.device.stacked import Column
from cellgen.schedule.device.states import rows_over_time
from cellgen.schedule.groups import Group, loops_of, views_read
from cellgen.schedule.lower.plan import How, Place
from cellgen.schedule.schedule import Access, Buffer, BufferKind, Load, Loop, Store, View


class StepPlaces:
    """Places of the buffers of ``forward`` or ``reverse``; sums of a group lie side by side."""

    def __init__(self, plan: DeviceTimePlan, memory: DeviceWorkspace) -> None:
        self.plan, self.memory, self.part = plan, memory, plan.stepped
        self.operands = operands_of(self.part.work)
        self.read = {view.buffer for work in self.part.work for view in views_read(work)}
        self.states = {str(state.link.previous.name): state for state in plan.states}
        self.columns: dict[Buffer, Column] = {}
        self.sums: dict[str, tuple[Expr, bool]] = {}
        self.own: dict[Buffer, DevicePlace] = {}
        self.ahead: set[Buffer] = set()
        self.kept_sums: dict[Buffer, DevicePlace] = {}

    def place(self, buffer: Buffer) -> DevicePlace:
        """Where a buffer lies in the current step."""
        if buffer in self.columns:
            at = self._sum_place(self.columns[buffer])
            return replace(at, kept=self.kept_sums.get(buffer))
        place = self.part.place(buffer)
        return _OF_HOW[place.how](self, place)

    def is_input(self, view: View) -> bool:
        """Whether an operand of a forward step is there for all steps before the first."""
        place = self.part.place(view.buffer)
        over_time = place.how in (How.SERIES, How.STAGED)
        is_argument = view.buffer.kind is BufferKind.ARGUMENT
        return not self.plan.is_backward and is_argument and over_time

    def _sum_place(self, column: Column) -> DevicePlace:
        stride, over_time = self.sums[column.memory]
        at = Moment.NOW if over_time else None
        return DevicePlace.in_memory(column.memory, stride, Element.REAL, at, column.start)

    # --- what is found how ---

    def _steady(self, place: Place) -> DevicePlace:
        """What is the same at every step."""
        buffer = place.buffer
        optional = buffer.kind is BufferKind.OPTIONAL
        return DevicePlace.of_caller(
            buffer.name, row_stride(buffer), optional=optional, steady=True
        )

    def _memory(self, place: Place) -> DevicePlace:
        return self.plan.once.get(place.buffer.value) or self._scratch(place)

    def _over_time(self, place: Place) -> DevicePlace:
        rows = self._rows(place.buffer)
        if place.buffer.kind is BufferKind.OPTIONAL:
            return _nullable(rows)
        return DevicePlace(rows, Element.STORE)

    def _saved(self, place: Place) -> DevicePlace:
        """What the caller has saved, or may want saved: then steps read their own."""
        if not place.other:
            return self._over_time(place)
        rows = self._rows(place.buffer)
        if place.buffer not in self.read:
            return _nullable(rows)
        own = self._scratch(place).source
        assert isinstance(own, RowsOfArray)
        return DevicePlace(IfGiven(rows, own), Element.STORE)

    def _rows(self, buffer: Buffer) -> RowsOfArray:
        """Rows of an array of the caller, at the step."""
        return RowsOfArray(
            buffer.name,
            row_stride(buffer),
            of_caller=True,
            at=Moment.NOW,
            strides=self.plan.options.strides_of(buffer.name),
        )

    def _before(self, place: Place) -> DevicePlace:
        """A state before the current step: a copy where steps may be masked."""
        buffer, state = place.buffer, self.states[place.of]
        stride, step = row_stride(buffer), Moment.NOW if self.plan.is_backward else None
        copy = RowsOfArray(self.plan.options.copy_of(buffer.value), stride, at=step)
        before = BeforeStep(self._left(state, Moment.BEFORE), buffer.name, stride, copy)
        return DevicePlace(before, Element.STORE)

    def _pair(self, place: Place) -> DevicePlace:
        return DevicePlace(self._left(self.states[place.of], Moment.NOW), Element.STORE)

    def _left(self, state: DeviceState, at: Moment) -> RowsOfArray | IfGiven:
        """Where a state lies after a step."""
        if state.left is None:
            return replace(rows_over_time(self.plan, state.link), at=at)
        return state.left.at_step(at)

    def _carry(self, place: Place) -> DevicePlace:
        """The gradient that reaches a step, or the step before it."""
        at = Moment.AFTER if place.how is How.CARRY else Moment.NOW
        return DevicePlace(self.states[place.of].carried(at), Element.REAL)

    def _kept(self, place: Place) -> DevicePlace:
        return self.plan.kept_place(place.buffer.value, Moment.NOW)

    def _scratch(self, place: Place) -> DevicePlace:
        buffer = place.buffer
        if buffer not in self.own:
            is_stored = buffer in self.operands or buffer.kind is BufferKind.RESULT
            steps = (T,) if buffer in self.ahead else ()
            name = place.other or place.of
            own = self.memory.place(name, buffer, is_stored=is_stored, steps=steps)
            self.own[buffer] = own.at_step(Moment.NOW) if steps else own
        return self.own[buffer]

    # --- sums of groups ---

    def form_ahead(self, buffers: Iterable[Buffer]) -> None:
        """Give what products of all steps form a place at every step, unless the caller has one."""
        outputs = self.plan.options.programs.outputs
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
        memory = self.memory.add(f"{stem}_sums", Element.REAL, extent)
        self.sums[memory] = (total, over_time)
        start: Expr = Integer(0)
        for buffer in chosen:
            self.columns[buffer] = Column(memory, start, buffer.shape[-1])
            start = start + buffer.shape[-1]

    def _is_scratch(self, buffer: Buffer) -> bool:
        """Whether nothing fixes the place of a step's own value, and no product reads it."""
        place = self.part.place(buffer)
        is_own = place.how is How.MEMORY and buffer.kind is BufferKind.WORKSPACE
        return is_own and buffer not in self.operands

    def _is_kept(self, buffer: Buffer, group: Group) -> bool:
        """Whether a sum is saved for the backward pass, and one loop of the group reads it."""
        place = self.part.place(buffer)
        if not (place.how is How.SAVED and place.other) or buffer in self.operands:
            return False
        if group.heads is not None:
            return False
        readers = [loop for loop in loops_of(self.part.work) if _loads_of(loop, buffer)]
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


_OF_HOW: Mapping[How, Callable[[StepPlaces, Place], DevicePlace]] = {
    How.MEMBER: StepPlaces._steady,
    How.SCALAR: StepPlaces._steady,
    How.MEMORY: StepPlaces._memory,
    How.SERIES: StepPlaces._over_time,
    How.STAGED: StepPlaces._over_time,
    How.SAVED: StepPlaces._saved,
    How.BEFORE: StepPlaces._before,
    How.PAIR: StepPlaces._pair,
    How.CARRY: StepPlaces._carry,
    How.PASSED: StepPlaces._carry,
    How.KEPT: StepPlaces._kept,
}
"""Rows of many steps, and sums over groups of rows, are of the deferred part."""
