"""What a target is: a language in which planned cells are spelled.

Input: ``PlannedCell``, in which nothing is left to decide. Output: ``Files``, or ``NotYet`` with a
reason. A target spells; what compiles and calls its files is the backend of the same name
(``runtime/backend.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

from cellgen.language.cell import Definition
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import Interface
from cellgen.schedule import Schedule
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.targets.c_names import in_c, signature_in_c
from cellgen.targets.head import Head
from cellgen.targets.interface import make_interface, sequence_signatures

Files: TypeAlias = Mapping[str, str]
"""Texts by suffix: that of ``.c`` becomes ``generated/<cell>/<cell>.c``."""


@dataclass(frozen=True)
class NotYet:
    """A cell that a target cannot spell, and why."""

    reason: str


@dataclass(frozen=True)
class NamesOfC:
    """Schedules and signatures in which every value has the name that it has in C."""

    schedule: Schedule
    sequence: SequenceSchedule | None
    signatures: Mapping[str, Signature]
    over_time: tuple[Signature, ...]


@dataclass(frozen=True)
class PlannedCell:
    """A cell as every target gets it, with an author's names.

    ``sequence`` is None for a cell that has the functions of one step only.
    """

    definition: Definition
    interface: Interface
    schedule: Schedule
    sequence: SequenceSchedule | None

    @staticmethod
    def of(
        definition: Definition, schedule: Schedule, sequence: SequenceSchedule | None
    ) -> PlannedCell:
        """Plan what all targets spell."""
        over_time = sequence_signatures(sequence) if sequence else ()
        interface = make_interface(schedule, over_time, definition)
        return PlannedCell(definition, interface, schedule, sequence)

    @cached_property
    def head(self) -> Head:
        """What the files say first."""
        return Head.of(self.definition, self.interface.digest)

    @property
    def over_time(self) -> tuple[Signature, ...]:
        """The functions over time."""
        return tuple(function for function in self.interface.functions if function.team)

    @cached_property
    def in_c(self) -> NamesOfC:
        """The same for targets whose names are those of C."""
        schedule, sequence = in_c(self.schedule, self.sequence)
        signatures = {f.name: signature_in_c(f) for f in self.interface.functions}
        over_time = tuple(signatures[function.name] for function in self.over_time)
        return NamesOfC(schedule, sequence, signatures, over_time)


class Target(Protocol):
    """A language that cells are spelled in."""

    @property
    def name(self) -> str:
        """What ``load`` and ``--target`` call it."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the files that it writes, one of each."""

    def render(self, cell: PlannedCell) -> Files | NotYet:
        """Spell a cell."""

    def explain(self, cell: PlannedCell) -> list[str]:
        """Lines that say what this target makes of the plan, and why."""

    def plans(self, cell: PlannedCell) -> list[str]:
        """Texts of plans of its own, beside those that all targets share."""
