"""Where an array lies when a launch of a device runs, as values.

A ``DevicePlace`` is rows of an array, of the caller or of the workspace; or a choice between such
that is made when a launch runs: whether the caller gives an array, which step it is, whether steps
may be masked. Targets spell it; lengths are dimensions' expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.value import Value, axis_factors, format_axis
from cellgen.runtime.abi import axis_terms
from cellgen.schedule.schedule import Buffer, View, flat

ZERO = Integer(0)


class Element(Enum):
    """What an array of a device holds."""

    STORE = "in the type of arrays"
    REAL = "in the type of sums"
    FLAG = "as flags"
    NUMBER = "as numbers of steps"


class NeededWhen(Enum):
    """When an array of the workspace is needed."""

    ALWAYS = "always"
    GUARDED = "some steps may be masked"
    MOVED = "an array of the caller does not lie row after row"
    TOGETHER = "blocks are on the device together"


@dataclass(frozen=True)
class Extent:
    """How many elements an array has: a product of lengths; ``axes`` as an interface names them.

    ``chunks_of``: as many for each chunk of that many rows; ``entries``: of a nest's sums.
    ``moved`` is the number of the caller's array that is copied.
    """

    lengths: tuple[Expr, ...]
    need: NeededWhen = NeededWhen.ALWAYS
    axes: tuple[str, ...] = ()
    moved: int = 0
    chunks_of: tuple[Expr, ...] = ()
    entries: bool = False

    def __str__(self) -> str:
        terms = [(format_axis(axis), len(axis_factors(axis))) for axis in self.lengths]
        terms += [(axis, len(axis_terms(axis))) for axis in self.axes]
        factors = [f"({text})" if summands > 1 else text for text, summands in terms]
        if self.chunks_of:
            factors.insert(0, f"chunks of {' * '.join(map(format_axis, self.chunks_of))} rows")
        return " * ".join(factors) or "1"


@dataclass(frozen=True)
class DeviceMemory:
    """One array of the workspace."""

    name: str
    element: Element
    extent: Extent

    def __str__(self) -> str:
        need = self.extent.need
        condition = "" if need is NeededWhen.ALWAYS else f", where {need.value}"
        return f"{self.name}: {self.extent} {self.element.value}{condition}"


@dataclass
class DeviceWorkspace:
    """Collects the arrays of a workspace."""

    names: Names
    arrays: list[DeviceMemory] = field(default_factory=list)

    def add(self, name: str, element: Element, extent: Extent) -> str:
        """Reserve an array; returns its own name."""
        own = self.names.fresh(name)
        self.arrays.append(DeviceMemory(own, element, extent))
        return own

    def place(
        self, name: str, buffer: Buffer, *, is_stored: bool, steps: tuple[Expr, ...] = ()
    ) -> DevicePlace:
        """Reserve an array for a buffer, of so many steps; ``is_stored``: in the type of arrays."""
        element = Element.STORE if is_stored else Element.REAL
        own = self.add(name, element, Extent((*steps, *buffer.shape)))
        return DevicePlace.in_memory(own, row_stride(buffer), element)


class Moment(Enum):
    """A step of the loop over time."""

    BEFORE = "the step before"
    NOW = "the step"
    AFTER = "the step after it in the sequence"
    LAST = "the last step"
    END = "behind the last step"


class Over(Enum):
    """How a place's rows go through time where one launch works on many steps."""

    ROWS = "its own rows"
    PREVIOUS = "the rows one step earlier; the initial state at the first"
    BATCH = "the same rows at every step"


@dataclass(frozen=True)
class RowsOfArray:
    """Rows of an array, ``of_caller`` or of the workspace: at a step, from ``column`` on.

    ``by_turns``: two steps share the memory. ``strides`` name the caller's numbers of elements from
    step to step and from row to row, in the place of a batch of rows of ``stride``.
    """

    array: str
    stride: Expr
    of_caller: bool = False
    at: Moment | None = None
    by_turns: bool = False
    column: Expr = ZERO
    strides: tuple[str, str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The array of the workspace and the strides that it names."""
        return frozenset(self.strides or (() if self.of_caller else (self.array,)))

    def at_step(self, at: Moment | None) -> RowsOfArray:
        """The same at a step, or from the first one on."""
        return replace(self, at=at)

    def __str__(self) -> str:
        turns = ", two by turns" if self.by_turns else ""
        at = f" at {self.at.value}{turns}" if self.at else ""
        column = f" from column {format_axis(self.column)}" if self.column != 0 else ""
        return f"{self.array}{at}{column}"


@dataclass(frozen=True)
class IfGiven:
    """Rows of an array that the caller may leave out; in its place other rows, or nothing."""

    rows: RowsOfArray
    other: RowsOfArray | None = None

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it names."""
        return self.rows.names | (self.other.names if self.other else frozenset())

    def at_step(self, at: Moment | None) -> IfGiven:
        """The same at a step, or from the first one on."""
        return IfGiven(self.rows.at_step(at), self.other and self.other.at_step(at))

    def __str__(self) -> str:
        return f"{self.rows}, or if that is left out {self.other or 'nothing'}"


@dataclass(frozen=True)
class BeforeStep:
    """A state before a step: as the step before leaves it, or as the sequence begins.

    ``copy`` is where it lies where steps may be masked.
    """

    rows: RowsOfArray | IfGiven
    initial: str
    stride: Expr
    copy: RowsOfArray | None = None

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it names."""
        return self.rows.names | (self.copy.names if self.copy else frozenset())

    def __str__(self) -> str:
        masked = f", or {self.copy} where steps may be masked" if self.copy else ""
        return f"{self.rows}, first {self.initial}{masked}"


@dataclass(frozen=True)
class BeforeSteps:
    """The states before all steps: those that steps leave, and the first; or a ``copy`` of all."""

    left: str
    initial: str
    stride: Expr
    copy: str

    @property
    def names(self) -> frozenset[str]:
        """The array of the workspace that it names."""
        return frozenset({self.copy})

    def __str__(self) -> str:
        return f"{self.left} one step earlier, first {self.initial}, or {self.copy}"


Source: TypeAlias = RowsOfArray | IfGiven | BeforeStep | BeforeSteps


@dataclass(frozen=True)
class DevicePlace:
    """Where a buffer lies when a launch runs.

    ``optional`` says that the pointer may be NULL: zeros are read, nothing is written. ``steady``
    says that it is the same at every step. ``kept`` is where the loop that reads it stores what it
    read, for the backward pass.
    """

    source: Source
    element: Element
    optional: bool = False
    over: Over = Over.ROWS
    steady: bool = False
    kept: DevicePlace | None = None

    @staticmethod
    def in_memory(
        name: str, stride: Expr, element: Element, at: Moment | None = None, column: Expr = ZERO
    ) -> DevicePlace:
        """A place in an array of the workspace."""
        return DevicePlace(RowsOfArray(name, stride, at=at, column=column), element)

    @staticmethod
    def of_caller(
        name: str, stride: Expr, *, optional: bool = False, steady: bool = False
    ) -> DevicePlace:
        """An array of the caller."""
        rows = RowsOfArray(name, stride, of_caller=True)
        return DevicePlace(rows, Element.STORE, optional=optional, steady=steady)

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it names."""
        return self.source.names

    def at_step(self, at: Moment | None) -> DevicePlace:
        """The same at a step, or from the first one on: of rows, and of what stands for them."""
        if isinstance(self.source, RowsOfArray | IfGiven):
            return replace(self, source=self.source.at_step(at))
        return self

    @property
    def unguarded(self) -> DevicePlace:
        """The same in a kernel over all steps, which runs where every step is valid."""
        if isinstance(self.source, BeforeStep):
            return replace(self, source=replace(self.source, copy=None))
        return self

    def at_all_steps(self, stride: Expr | None = None) -> DevicePlace:
        """Where a matrix over all steps begins: one row follows the other."""
        if not isinstance(self.source, RowsOfArray):
            return self.at_step(None)
        rows = replace(self.source, at=None, by_turns=False)
        if stride is not None:
            rows = replace(rows, strides=None, stride=stride)
        return replace(self, source=rows)

    def __str__(self) -> str:
        return f"{self.source}"


Places: TypeAlias = Callable[[Buffer], DevicePlace]
AddMemory: TypeAlias = Callable[[str, Element, Extent], str]
"""Reserves workspace; returns the array's name."""


@dataclass(frozen=True)
class Matrix:
    """A view of a buffer, and where that lies."""

    view: View
    place: DevicePlace


def row_stride(buffer: Buffer) -> Expr:
    """Elements from row to row of a buffer."""
    return buffer.shape[-1] if buffer.shape else Integer(1)


def row_width(value: Value) -> Expr:
    """Elements of a row: the units of all heads."""
    return flat(value.shape)[-1]


def placed(buffers: Iterable[Buffer], places: Places) -> Mapping[Buffer, DevicePlace]:
    """Where some buffers lie."""
    return {buffer: places(buffer) for buffer in buffers}
