"""What a function over time is lowered from: the schedule and its interface.

Every pass reads it, none changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cellgen.language.value import Value
from cellgen.program.over_time import SequencePrograms
from cellgen.runtime.abi import Function as Signature
from cellgen.schedule.groups import GroupedStage
from cellgen.schedule.lower.arrays import CallerArrays
from cellgen.schedule.lower.lengths import length
from cellgen.schedule.lower.plan import Rows, WorkspaceArray
from cellgen.schedule.over_time import Part, SequenceSchedule, products_together
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction


@dataclass(frozen=True)
class FunctionOverTime:
    """One function over time: what is scheduled, its interface, and that of the forward pass."""

    schedule: SequenceSchedule
    signature: Signature
    forward: Signature
    part_names: tuple[str, ...]

    @property
    def programs(self) -> SequencePrograms:
        """The programs over time."""
        return self.schedule.programs

    @property
    def is_backward(self) -> bool:
        """Whether it is the backward function, which has two parts."""
        return len(self.part_names) == 2

    @cached_property
    def arrays(self) -> CallerArrays:
        """The arrays of the caller."""
        stepped = self.part(self.part_names[0])
        return CallerArrays(self.schedule, self.signature, stepped, self.is_backward)

    @property
    def by_step(self) -> bool:
        """Whether products stand alone and what is deferred follows in each step."""
        return self.schedule.by_step

    def in_chunks(self, name: str) -> bool:
        """Whether a part runs over the rows of many steps."""
        return name == "deferred" and not self.by_step

    def part(self, name: str) -> Part:
        """The part of a name."""
        part: Part = getattr(self.schedule, name)
        return part

    def runs(self, name: str) -> tuple[tuple[GroupedStage, ...], ...]:
        """What each stage of a part's plan is made of: weight gradients over rows are one stage."""
        stages = self.part(name).stages
        return products_together(stages) if self.in_chunks(name) else tuple((s,) for s in stages)

    def place_of(self, value: Value) -> tuple[str, bool]:
        """Where a value that is the same at every step lies: a member's name, or memory's."""
        for kind, values in (("fixed", self.programs.fixed), ("total", self.programs.totals)):
            if value in values:
                return f"{kind}_{value.name}", True
        return str(value.name), False

    @cached_property
    def steady(self) -> Mapping[str, WorkspaceArray]:
        """Memory of what is the same at every step, by name: of weights alone, or summed."""
        arrays = (
            WorkspaceArray(
                self.place_of(value)[0],
                Rows.ONE,
                length(value.shape),
                packed=value in self.programs.fixed,
            )
            for value in (*self.programs.fixed, *self.programs.totals)
        )
        return {array.name: array for array in arrays}

    def once_place(self, once: PlannedFunction, buffer: Buffer) -> tuple[str, bool]:
        """Where an array of prologue or epilogue lies: a member's name, or memory's."""
        if buffer.kind is BufferKind.WORKSPACE:
            return f"{once.name}_{buffer.name}", True
        return self.place_of(buffer.value)
