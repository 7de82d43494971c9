"""Where the buffers of a part lie at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sympy import Expr

from cellgen.language.value import Role
from cellgen.program.over_time import StateLink
from cellgen.schedule.lower.memory import length
from cellgen.schedule.lower.plan import How, Place, Rows
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Buffer, BufferKind

if TYPE_CHECKING:
    from cellgen.schedule.lower.function import Lowering


class Places:
    """Finds the place of each buffer of a part, and the memory that it needs."""

    def __init__(self, owner: Lowering, name: str, part: Part) -> None:
        self.owner, self.name, self.part = owner, name, part
        self.programs = owner.schedule.programs
        self._after = {link.next: link for link in self.programs.links}
        self._found: dict[Buffer, Place] = {}

    @property
    def all(self) -> tuple[Place, ...]:
        """Every place that was asked for, in order."""
        return tuple(self._found.values())

    def of(self, buffer: Buffer) -> Place:
        """The place of a buffer."""
        if buffer not in self._found:
            self._found[buffer] = self._place(buffer)
        return self._found[buffer]

    def is_in_place(self, buffer: Buffer) -> bool:
        """Whether each row of many steps is written where it belongs."""
        return self.name == "deferred" and buffer.name in self.owner.arrays.written_in_place

    def sum_of_group(self, buffer: Buffer) -> Place:
        """The place of a sum over rows: that of the group that the rows of a stage are of."""
        place = Place(buffer, How.SUMS, self.owner.sums_of_groups(buffer), length(buffer.shape))
        self._found[buffer] = place
        return place

    def _place(self, buffer: Buffer) -> Place:  # noqa: PLR0911 - one case a return
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
        links = self.programs.links
        if carry:
            return next(k for k in links if k.carry == buffer.value)
        return next(k for k in links if k.passed == buffer.value)

    def _is_series(self, buffer: Buffer) -> bool:
        """Whether rows over time lie at strides: the caller's, or those of a row block."""
        if self.part.storage[buffer] is not Storage.TIME:
            return False
        if self.name == "deferred" and self.owner.arrays.is_saved_across(buffer.value):
            return True
        return self.owner.arrays.has_strides(buffer.value)

    def _over_time(self, buffer: Buffer) -> How:
        """The array as this part finds it: for steps, or for rows of many steps."""
        if self.name == "deferred":
            return How.ACROSS
        staged = buffer.kind is BufferKind.ARGUMENT and buffer.value.role is Role.INPUT
        staged = staged or self.owner.arrays.is_repeated(str(buffer.value.name))
        return How.STAGED if staged else How.SERIES

    def _own_over_time(self, buffer: Buffer, width: Expr | None) -> Place:
        """An array over time of the function's own, or a saved one."""
        value, name, workspace = buffer.value, str(buffer.value.name), self.owner.workspace
        assert width is not None
        if self.name == "forward" and buffer.kind is BufferKind.RESULT:
            if value in self._after:
                self.owner.state_pair(value)
                return Place(buffer, How.PAIR, str(self._after[value].previous.name), width)
            own = workspace.add(f"forward_{name}", Rows.BATCH, width, "of one step")
            if value not in self.programs.saved:
                return Place(buffer, How.MEMORY, own, width)
            return Place(buffer, How.SAVED, name, width, other=own)
        if value in self.programs.kept:
            note = "kept for a chunk of steps"
            memory = workspace.add(f"{name}_time", Rows.CHUNK, width, note)
            return Place(buffer, How.KEPT, memory, width)
        return Place(buffer, How.SAVED, name, width)

    def _steady(self, buffer: Buffer, storage: Storage, width: Expr | None) -> Place:
        """What is in the same place at every step."""
        workspace = self.owner.workspace
        if storage is Storage.SCRATCH:
            many = self.name == "deferred"
            rows, note = (Rows.CHUNK, "of a chunk") if many else (Rows.BATCH, "of one step")
            name = f"{self.name}_{buffer.name}"
            assert width is not None
            return Place(buffer, How.MEMORY, workspace.add(name, rows, width, note), width)
        if self.name == "deferred" and storage is Storage.CONSTANT and buffer.value.is_batched:
            assert width is not None
            note = "for each step of a chunk"
            memory = workspace.add(f"rows_{buffer.name}", Rows.CHUNK, width, note)
            return Place(buffer, How.MEMORY, memory, width)
        of, in_memory = self.owner.place_of(buffer.value)
        return Place(buffer, How.MEMORY if in_memory else How.MEMBER, of, width)
