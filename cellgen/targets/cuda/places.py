"""Say where a buffer lies in a kernel's launch, as C texts.

``DevicePlace`` is a base, a row stride and an element type; the functions address a view in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cellgen.errors import DerivationError
from cellgen.schedule.schedule import Buffer, View
from cellgen.targets.c_expressions import c_axis, c_factor


class Over(Enum):
    """How a place's rows go through time where one launch works on many steps."""

    ROWS = "its own rows"
    PREVIOUS = "the rows one step earlier; the initial state at the first"
    BATCH = "the same rows at every step"


@dataclass(frozen=True)
class DevicePlace:
    """Where a buffer lies when a launch runs, as C texts: its base, row stride and element type.

    ``rows`` and ``column`` say how far from the base it begins; ``steps`` instead of ``rows``,
    where steps lie any number of elements apart. ``element`` is ``store`` or ``real``.
    ``optional`` says that the pointer may be NULL: zeros are read, nothing is written.
    ``initial`` is the other pointer of ``Over.PREVIOUS``. ``uses`` are the workspace arrays and the
    strides that these texts name. ``steady`` says that it is the same at every step.
    ``kept`` is where the loop that reads it stores what it read, for the backward pass.
    """

    base: str
    stride: str
    element: str
    rows: str = ""
    steps: str = ""
    column: str = ""
    optional: bool = False
    over: Over = Over.ROWS
    initial: str = ""
    uses: frozenset[str] = frozenset()
    steady: bool = False
    kept: DevicePlace | None = None

    @staticmethod
    def in_memory(
        name: str, stride: str, element: str, *, rows: str = "", column: str = ""
    ) -> DevicePlace:
        """A place in an array of the workspace."""
        return DevicePlace(name, stride, element, rows=rows, column=column, uses=frozenset({name}))

    @property
    def pointer(self) -> str:
        """C text of the pointer to its first element."""
        rows = f" + {self.rows} * {factor(self.stride)}" if self.rows else ""
        rows = f" + {self.steps}" if self.steps else rows
        column = f" + {self.column}" if self.column else ""
        return f"{self.base}{rows}{column}"


Places = Callable[[Buffer], DevicePlace]
AddMemory = Callable[[str, str, str], str]
"""Reserves workspace: (name, element, count) to the C text of its address."""


def moved(place: DevicePlace, offset: str) -> str:
    """A pointer moved to a view's first element; NULL stays NULL."""
    if not offset:
        return place.pointer
    if place.optional:
        return f"{place.pointer} ? {place.pointer}{offset} : nullptr"
    return f"{place.pointer}{offset}"


def address(view: View, place: DevicePlace) -> str:
    """The C text of the address of a view's first element."""
    return f"{place.pointer}{offset_of(view, place)}"


def offset_of(view: View, place: DevicePlace) -> str:
    """How far a view's first element is from its buffer's: `` + nI * nH``, or nothing."""
    if len(view.start) > 2:
        raise DerivationError(
            f"{view}: an array of {len(view.start)} axes is not rendered for CUDA yet",
            code="cuda.loop",
        )
    offset = ""
    if len(view.start) == 2 and view.start[0] != 0:
        offset += f" + {c_factor(view.start[0])} * {factor(place.stride)}"
    if view.start and view.start[-1] != 0:
        offset += f" + {c_axis(view.start[-1])}"
    return offset


def factor(text: str) -> str:
    """Bracket a C text where it is a factor."""
    return f"({text})" if " " in text and not text.startswith("(") else text
