"""What an explanation is: sections of rows, a choice and its reason, which print."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellgen.program.recurrence import Recurrence
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.notebook import ShownInNotebooks
from cellgen.views.layout import LINE


@dataclass(frozen=True)
class ChoiceRow:
    """One choice and its reason."""

    what: str
    why: str = ""


@dataclass(frozen=True)
class Section:
    """The rows on one subject."""

    title: str
    rows: tuple[ChoiceRow, ...]

    def text(self, width: int = LINE) -> str:
        """The title, then each choice and its reason, of lines no wider than ``width``."""
        lines = [*textwrap.wrap(self.title, width, subsequent_indent="    ")]
        for row in self.rows:
            lines += textwrap.wrap(row.what, width, initial_indent="  ", subsequent_indent="      ")
            lines += textwrap.wrap(
                row.why, width, initial_indent="    - ", subsequent_indent="      "
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class ExplainedShape:
    """What figures are for: the lengths of a kernel's dimensions, threads, a precision.

    And how many bytes what a run keeps for its backward pass may take; None: as many as it needs.
    """

    sizes: Mapping[str, int]
    threads: int
    dtype: str = "float32"
    memory_limit: int | None = None

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        return f"{sizes}; {count_of(self.threads, 'thread')}; {self.dtype}"


@dataclass(frozen=True)
class Explanation(ShownInNotebooks):
    """The plan of a cell over time; ``plans`` are what depends on the shape, where one is given."""

    cell: str
    recurrence: Recurrence
    sections: tuple[Section, ...]
    plans: Mapping[str, SequencePlan]

    def text(self, width: int = LINE) -> str:
        """All sections, of lines no wider than ``width`` columns."""
        head = f"{self.cell} over time"
        return "\n\n".join([head, *(section.text(width) for section in self.sections)])

    def __str__(self) -> str:
        return self.text()

    def as_dict(self) -> dict[str, object]:
        """Return what ``json.dumps`` takes."""
        return {
            "cell": self.cell,
            "class": self.recurrence.kind.value,
            "levels": self.recurrence.levels,
            "sections": {
                section.title: [{"what": row.what, "why": row.why} for row in section.rows]
                for section in self.sections
            },
            "plans": {
                name: {key: getattr(plan, key) for key in plan.__dataclass_fields__ if key != "by"}
                for name, plan in self.plans.items()
            },
        }


def count_of(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def bytes_of(number: int) -> str:
    """A number of bytes, in a fitting unit."""
    return amount_of(number, ("bytes", "KiB", "MiB", "GiB"), 1024)


def amount_of(number: int, units: Sequence[str], base: int) -> str:
    """A number in the largest unit that leaves it above 1."""
    value, place = float(number), 0
    while value >= base and place < len(units) - 1:
        value, place = value / base, place + 1
    return f"{value:.0f} {units[0]}" if place == 0 else f"{value:.3g} {units[place]}"
