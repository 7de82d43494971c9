"""Where the buffers of a part lie at every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sympy import Expr

from cellgen.language.value import Role, Value
from cellgen.program.over_time import StateLink
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.lengths import length
from cellgen.schedule.lower.plan import How, Place, StagePlan
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Buffer, BufferKind


def places_of_stage(stage: StagePlan) -> tuple[Place, ...]:
    """The places of a stage, those of sums over rows first."""
    sums = tuple(place for place in stage.uses if place.how is How.SUMS)
    return sums + tuple(place for place in stage.uses if place not in sums)


def places_of(stages: Sequence[StagePlan]) -> tuple[Place, ...]:
    """The places of a part, each once: a sum over rows lies with its groups in every stage."""
    places: dict[Buffer, Place] = {}
    for stage in stages:
        for place in places_of_stage(stage):
            places.setdefault(place.buffer, place)
    return tuple(places.values())


@dataclass(frozen=True)
class Places:
    """Says where each buffer of a part lies."""

    function: FunctionOverTime
    name: str

    @cached_property
    def part(self) -> Part:
        """The part that is planned."""
        return self.function.part(self.name)

    @property
    def in_chunks(self) -> bool:
        """Whether the part runs over the rows of many steps."""
        return self.function.in_chunks(self.name)

    @cached_property
    def links_of_next(self) -> dict[Value, StateLink]:
        """The states by their new values."""
        return {link.next: link for link in self.function.programs.links}

    def uses(
        self, reads: Iterable[Buffer], written: Iterable[Buffer], sums: Iterable[Buffer] = ()
    ) -> tuple[Place, ...]:
        """The places of what a stage reads, writes and sums up over rows, each once."""
        own = tuple(self.of(buffer) for buffer in dict.fromkeys([*reads, *written]))
        return own + tuple(self.sum_of_group(buffer) for buffer in sums)

    def is_in_place(self, buffer: Buffer) -> bool:
        """Whether each row of many steps is written where it belongs."""
        return self.in_chunks and buffer.name in self.function.arrays.written_in_place

    def sum_of_group(self, buffer: Buffer) -> Place:
        """The place of a sum over rows: that of the group that the rows of a stage are of."""
        return Place(buffer, How.SUMS, sums_of_groups(buffer), length(buffer.shape))

    def of(self, buffer: Buffer) -> Place:  # noqa: PLR0911 - one case a return
        """The place of a buffer."""
        storage, width = self.part.storage[buffer], buffer.shape[-1] if buffer.shape else None
        optional, name = buffer.kind is BufferKind.OPTIONAL, str(buffer.value.name)
        if buffer.kind is BufferKind.SCALAR:
            return Place(buffer, How.SCALAR, name, None)
        if self.is_in_place(buffer):
            return Place(buffer, How.IN_PLACE, name, width)
        if self._is_series(buffer):
            return Place(buffer, self._over_time(buffer), name, width, optional=optional)
        if storage is Storage.PREVIOUS:
            return Place(buffer, How.BEFORE, name, width)
        if storage in (Storage.CARRY_IN, Storage.CARRY_OUT):
            carry = storage is Storage.CARRY_IN
            how = How.CARRY if carry else How.PASSED
            return Place(buffer, how, str(self._passed(buffer, carry).previous.name), width)
        if storage is Storage.TIME:
            return self._own_over_time(buffer, width)
        return self._steady(buffer, storage, width)

    def _passed(self, buffer: Buffer, carry: bool) -> StateLink:
        links = self.function.programs.links
        if carry:
            return next(k for k in links if k.carry == buffer.value)
        return next(k for k in links if k.passed == buffer.value)

    def _is_series(self, buffer: Buffer) -> bool:
        """Whether rows over time lie at strides: the caller's, or those of a row block."""
        if self.part.storage[buffer] is not Storage.TIME:
            return False
        if self.in_chunks and self.function.arrays.is_saved_across(buffer.value):
            return True
        return self.function.arrays.has_strides(buffer.value)

    def _over_time(self, buffer: Buffer) -> How:
        """The array as this part finds it: for steps, or for rows of many steps."""
        if self.in_chunks:
            return How.ACROSS
        if self.function.by_step:
            return How.SERIES
        staged = buffer.kind is BufferKind.ARGUMENT and buffer.value.role is Role.INPUT
        staged = staged or self.function.arrays.is_repeated(str(buffer.value.name))
        return How.STAGED if staged else How.SERIES

    def _own_over_time(self, buffer: Buffer, width: Expr | None) -> Place:
        """An array over time of the function's own, or a saved one."""
        value, name, programs = buffer.value, str(buffer.value.name), self.function.programs
        if self.name == "forward" and buffer.kind is BufferKind.RESULT:
            if value in self.links_of_next:
                state = self.links_of_next[value].previous
                return Place(buffer, How.PAIR, str(state.name), width)
            own = f"forward_{name}"
            if value not in programs.saved:
                return Place(buffer, How.MEMORY, own, width)
            other = "" if self.function.by_step else own
            return Place(buffer, How.SAVED, name, width, other=other)
        if value in programs.kept:
            return Place(buffer, How.KEPT, f"{name}_time", width)
        return Place(buffer, How.SAVED, name, width)

    def _steady(self, buffer: Buffer, storage: Storage, width: Expr | None) -> Place:
        """What is in the same place at every step."""
        if storage is Storage.SCRATCH:
            return Place(buffer, How.MEMORY, f"{self.name}_{buffer.name}", width)
        if self.in_chunks and storage is Storage.CONSTANT and buffer.value.is_batched:
            return Place(buffer, How.MEMORY, f"rows_{buffer.name}", width)
        of, in_memory = self.function.place_of(buffer.value)
        return Place(buffer, How.MEMORY if in_memory else How.MEMBER, of, width)


def sums_of_groups(total: Buffer) -> str:
    """Memory of the sums over groups of rows of a chunk."""
    return f"sums_{total.name}"
