"""Values of a row where blocks stay on the device together: sums over units, and what is of them.

Input: loops of a step. Output: ``RowSums`` that blocks tell each other, and the values of a row
that loops read. Of a sum the threads of each octet of units tell their part, in float32 whatever
arrays hold; every thread of the row adds the parts up, in one order. What is formed of such values,
row by row, all threads of the row form alike and one stores. So nobody reads from memory what
another thread has formed there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sympy import Expr

from cellgen.language.value import Value
from cellgen.schedule.device.places import DevicePlace
from cellgen.schedule.device.stages import DeviceLoop, DeviceProduct, StepStage
from cellgen.schedule.schedule import Access, Buffer, BufferKind, Line, Load, Store, View

MOST_TOLD = 4
"""Sums that are told at once: numbers of float32 in 16 bytes."""


class RowValueError(Exception):
    """Why a value of a row cannot be told."""


@dataclass(frozen=True)
class RowValue:
    """A value of a row, which each of its threads has; where one of them stores it."""

    value: Value
    view: View
    place: DevicePlace


@dataclass(frozen=True)
class RowSums:
    """Sums over ``units`` that one loop forms the terms of; their parts lie in ``memory``."""

    sums: tuple[RowValue, ...]
    units: Expr
    memory: str

    def __str__(self) -> str:
        return ", ".join(str(one.value) for one in self.sums)


@dataclass
class RowValues:
    """What is known of values of a row while stages are planned one after the other.

    ``states`` are what goes from step to step, ``written`` what any stage of the step writes.
    """

    states: Collection[Value]
    stages: Sequence[StepStage]
    formed: dict[Buffer, RowValue] = field(default_factory=dict)

    @property
    def written(self) -> frozenset[Buffer]:
        """What a step writes."""
        loops = [stage for stage in self.stages if isinstance(stage, DeviceLoop)]
        products = [stage for stage in self.stages if isinstance(stage, DeviceProduct)]
        return frozenset(
            {line.view.buffer for loop in loops for line in loop.loop.lines if line.view}
            | {view.buffer for product in products for view in product.targets}
        )

    def is_by_row(self, stage: DeviceLoop) -> bool:
        """Whether a loop is of rows: of one column, and it reads or forms values of a row."""
        if stage.loop.space[-1] != 1:
            return False
        own = {line.view.buffer for line in stage.loop.lines if line.view is not None}
        read = {load.view.buffer for load in stage.loop.loads}
        loops = (other for other in self.stages if isinstance(other, DeviceLoop))
        by_row = {
            load.view.buffer
            for other in loops
            for load in other.loop.loads
            if load.access is Access.ROW
        }
        return bool(read & self.formed.keys() or own & by_row)

    def read(self, stage: DeviceLoop) -> Mapping[Value, RowValue]:
        """The values of a row that a loop reads, by its own names of them."""
        by_row, read = self.is_by_row(stage), {}
        for load in stage.loop.loads:
            if load.view.buffer not in self.formed:
                continue
            if load.access is not (Access.ELEMENT if by_row else Access.ROW):
                raise RowValueError(f"{load.value}, a value of a row, is read as one of units")
            read[load.value] = self.formed[load.view.buffer]
        return read

    def form(self, stage: DeviceLoop) -> tuple[RowValue, ...]:
        """The values of a row that a loop forms: sums over units, or all where it is of rows."""
        by_row = self.is_by_row(stage)
        if by_row:
            self._require_alike(stage)
        own = tuple(_formed(stage, Store.WRITE if by_row else Store.ADD_UNITS))
        for one in own:
            if one.value in self.states or one.view.shape != one.view.buffer.shape:
                raise RowValueError(f"{one.value} is a state, or a part of a value, of one column")
            self.formed[one.view.buffer] = one
        return own

    def _require_alike(self, stage: DeviceLoop) -> None:
        """Check that all threads of a row read the same in a loop of rows, and from no other."""
        if any(line.store is Store.ADD_UNITS for line in stage.loop.lines):
            raise RowValueError("a sum over units is formed of values of a row")
        others = (load for load in stage.loop.loads if load.view.buffer not in self.formed)
        for load in others:
            if not self._is_given(load):
                raise RowValueError(f"{load.value} is read by all threads of a row")

    def _is_given(self, load: Load) -> bool:
        buffer = load.view.buffer
        if buffer.kind is BufferKind.SCALAR:
            return True
        return buffer.value not in self.states and buffer not in self.written


def _formed(stage: DeviceLoop, store: Store) -> Iterator[RowValue]:
    lines: Iterator[Line] = (line for line in stage.loop.lines if line.store is store)
    for line in lines:
        assert line.view is not None
        place = stage.places[line.view.buffer].unguarded
        yield RowValue(line.statement.target, line.view, place)


def told_at_once(sums: Sequence[RowValue]) -> Iterator[tuple[RowValue, ...]]:
    """Sums in parts of as many as are told at once."""
    for first in range(0, len(sums), MOST_TOLD):
        yield tuple(sums[first : first + MOST_TOLD])
