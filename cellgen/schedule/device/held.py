"""A kernel that keeps the memory of a head in registers through all steps, as values.

A block takes one head of one row, so that every sum over a head's axes is a sum within the block,
in a fixed order and without atomics. Entries of a memory, which has two axes, lie in registers of
threads; vectors in shared memory; numbers of a head in a register of each thread, which all compute
them. What a step reads of arrays over time is read one step ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sympy import Expr

from cellgen.language.value import Value
from cellgen.schedule.device.places import DevicePlace, RowsOfArray
from cellgen.schedule.device.stages import names_of
from cellgen.schedule.schedule import Buffer, Line


class Holder(Enum):
    """What holds a value of one head of one row while a step runs."""

    THREAD = "a register of each thread"
    BLOCK = "shared memory"
    ENTRIES = "registers, each entry in one of a thread"


class Origin(Enum):
    """Where a value comes from."""

    CALL = "a number of the call"
    CONSTANT = "read once"
    STEP = "read a step ahead"
    BEFORE = "left by the step before"
    FORMED = "formed in the step"


@dataclass(frozen=True)
class HeldArray:
    """What a step reads or forms of a buffer: of one head where it is ``by_head``.

    ``axes`` are its lengths within a head; ``by_row``: rows have their own. ``place`` is where
    memory has it, if it does; ``is_stored``: in the type of arrays. Not ``is_held`` is what is
    formed and read by nobody, and a memory that is read where it is used. What ``follows``
    another is, at a step, what that was at the step taken before: it is read at the first alone.
    """

    buffer: Buffer
    axes: tuple[Expr, ...]
    by_head: bool
    by_row: bool
    origin: Origin
    place: DevicePlace | None
    is_stored: bool
    is_held: bool = True
    follows: Buffer | None = None

    @property
    def holder(self) -> Holder:
        """What holds it."""
        return (Holder.THREAD, Holder.BLOCK, Holder.ENTRIES)[len(self.axes)]

    @property
    def is_shared(self) -> bool:
        """Whether it takes shared memory."""
        return self.is_held and self.holder is Holder.BLOCK


@dataclass(frozen=True)
class HeldLoad:
    """A value that a stage reads of an array: along which of the stage's axes, by number."""

    value: Value
    buffer: Buffer
    along: tuple[int, ...]


@dataclass(frozen=True)
class HeldSum:
    """A sum of a stage's terms over those of its axes that ``along`` leaves out."""

    line: Line
    buffer: Buffer
    along: tuple[int, ...]


@dataclass(frozen=True)
class HeldLoop:
    """Lines for each place along some ``axes`` of a head, and sums over such places.

    ``formed`` are the buffers that lines set. ``barrier``: threads meet before it.
    """

    axes: tuple[Expr, ...]
    loads: tuple[HeldLoad, ...]
    lines: tuple[Line, ...]
    formed: Mapping[Value, Buffer]
    sums: tuple[HeldSum, ...]
    barrier: bool = False

    @property
    def shares(self) -> tuple[HeldSum, ...]:
        """Sums of which each warp has a share: over the first axis of a memory, or over both."""
        return tuple(s for s in self.sums if len(self.axes) == 2 and 0 not in s.along)

    def __str__(self) -> str:
        return "; ".join(str(line.origin) for line in self.lines)


@dataclass(frozen=True)
class HeldShares:
    """The shares of warps added up, of each of some sums: along the last axis, or of one number."""

    sums: tuple[HeldSum, ...]
    axes: tuple[Expr, ...]
    barrier: bool = False

    def __str__(self) -> str:
        return "; ".join(str(total.line.origin) for total in self.sums)


@dataclass(frozen=True)
class HeldTaken:
    """What was read ahead is taken, where its threads meet: each its own units."""

    buffers: tuple[Buffer, ...]
    barrier: bool = False

    def __str__(self) -> str:
        return f"taken: {', '.join(buffer.name for buffer in self.buffers)}"


@dataclass(frozen=True)
class HeldState:
    """A state, or the gradient of one: read as ``read``, then set to ``new``.

    ``first`` is where it lies before the first step, ``last`` where it goes after the last one, if
    the steps do not leave it there.
    """

    read: Buffer
    new: Buffer
    first: RowsOfArray
    last: RowsOfArray | None


@dataclass(frozen=True)
class HeldRenewed:
    """What a step leaves takes the place of what it began with."""

    states: tuple[HeldState, ...]
    barrier: bool = False

    def __str__(self) -> str:
        return "; ".join(f"{s.read.name} = {s.new.name}" for s in self.states)


HeldStage: TypeAlias = HeldTaken | HeldLoop | HeldShares | HeldRenewed


@dataclass(frozen=True)
class SharedAccess:
    """What a stage touches in shared memory: a vector, or the shares of its warps in a sum.

    ``own``: a thread touches the unit of its own number alone.
    """

    buffer: Buffer
    writes: bool
    own: bool = False
    of_shares: bool = False

    def races(self, other: SharedAccess) -> bool:
        """Whether threads have to meet between the two."""
        same = (self.buffer, self.of_shares) == (other.buffer, other.of_shares)
        return same and (self.writes or other.writes) and not (self.own and other.own)


@dataclass(frozen=True)
class HeldTier:
    """A kernel over all steps whose states lie in registers; ``axes`` are those of a memory."""

    heads: Expr
    axes: tuple[Expr, Expr]
    arrays: Mapping[Buffer, HeldArray]
    states: tuple[HeldState, ...]
    stages: tuple[HeldStage, ...]

    def of(self, *origins: Origin) -> tuple[HeldArray, ...]:
        """Arrays of some origins, in order."""
        return tuple(array for array in self.arrays.values() if array.origin in origins)

    @property
    def loops(self) -> tuple[HeldLoop, ...]:
        """The loops, in order."""
        return tuple(stage for stage in self.stages if isinstance(stage, HeldLoop))

    @property
    def shares(self) -> tuple[HeldSum, ...]:
        """Sums of which each warp has a share, in order."""
        return tuple(total for loop in self.loops for total in loop.shares)

    @property
    def lengths(self) -> tuple[Expr, ...]:
        """Lengths along which a head has units, each once."""
        lengths = [length for array in self.arrays.values() for length in array.axes]
        lengths += [length for loop in self.loops for length in loop.axes]
        return tuple(dict.fromkeys((*self.axes, *lengths)))

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it reads and writes."""
        ends = [rows for s in self.states for rows in (s.first, s.last) if rows is not None]
        places = [array.place for array in self.arrays.values() if array.place is not None]
        return names_of(places).union(*(rows.names for rows in ends))

    @property
    def of_states(self) -> Iterator[tuple[str, bool]]:
        """Memories that a step reads or writes in arrays: their names, whether they are written."""
        for array in self.arrays.values():
            is_memory = array.holder is Holder.ENTRIES and array.place is not None
            if is_memory and array.follows is None:
                yield array.buffer.name, array.origin is Origin.FORMED

    def touched(self, stage: HeldStage) -> Iterator[SharedAccess]:
        """What of shared memory a stage touches."""
        if isinstance(stage, HeldTaken):
            yield from self._own(stage.buffers, writes=True)
        elif isinstance(stage, HeldRenewed):
            yield from self._own([s.new for s in stage.states], writes=False)
            yield from self._own([s.read for s in stage.states], writes=True)
        elif isinstance(stage, HeldShares):
            for total in stage.sums:
                yield SharedAccess(total.buffer, writes=False, of_shares=True)
                if total.along:
                    yield from self._own([total.buffer], writes=True)
        else:
            yield from self._of_loop(stage)

    def _of_loop(self, stage: HeldLoop) -> Iterator[SharedAccess]:
        whole = len(stage.axes) == 2 or bool(stage.sums)
        for load in stage.loads:
            if self.arrays[load.buffer].is_shared:
                yield SharedAccess(load.buffer, writes=False, own=not whole)
        yield from self._own(stage.formed.values(), writes=True)
        for total in stage.sums:
            if total in stage.shares:
                yield SharedAccess(total.buffer, writes=True, of_shares=True)
            elif total.along and self.arrays[total.buffer].is_shared:
                yield SharedAccess(total.buffer, writes=True)

    def _own(self, buffers: Iterable[Buffer], *, writes: bool) -> Iterator[SharedAccess]:
        for buffer in buffers:
            if self.arrays[buffer].is_shared:
                yield SharedAccess(buffer, writes, own=True)
