"""Plan a kernel that keeps the memory of a head in registers, where a part allows it.

Input: what a part does in every step, as values. Output: ``HeldTier``, or the reason why there is
none. A part qualifies whose states belong to heads, one of them at least a matrix, and whose steps
have no product and no sum but those within a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sympy import Expr, Integer, Mul, expand

from cellgen.program.over_time import StateLink
from cellgen.schedule.device.held import (
    HeldArray,
    HeldLoad,
    HeldLoop,
    HeldRenewed,
    HeldShares,
    HeldStage,
    HeldState,
    HeldSum,
    HeldTaken,
    HeldTier,
    Holder,
    Origin,
    SharedAccess,
)
from cellgen.schedule.device.places import Element, IfGiven, RowsOfArray, Source
from cellgen.schedule.device.stages import DeviceLoop, StepStage, places_in_tier
from cellgen.schedule.device.tiers import Carried
from cellgen.schedule.schedule import (
    Access,
    Buffer,
    BufferKind,
    Load,
    Loop,
    Store,
    View,
    Walk,
)


class NotHeld(Exception):  # noqa: N818 - an answer, no error
    """A part has no such kernel; its text says why."""


@dataclass(frozen=True)
class _Walked:
    """How a stage goes through an array: its axes by number, and their lengths; by head or not."""

    along: tuple[int, ...]
    axes: tuple[Expr, ...]
    by_head: bool
    by_row: bool


def has_memory(links: Sequence[StateLink]) -> bool:
    """Whether a state is a matrix for each head."""
    return any(_is_memory(link) for link in links)


def _is_memory(link: StateLink) -> bool:
    """Whether each head of a row has two axes of a state, neither of them of length one."""
    shape = link.previous.shape
    return len(shape) == 4 and 1 not in shape[2:]


def hold(
    stages: Sequence[StepStage], links: Sequence[StateLink], carried: Sequence[Carried]
) -> HeldTier | str:
    """Plan the kernel of a part, or say why it has none."""
    try:
        return _Holding(stages, links, carried).plan()
    except NotHeld as reason:
        return str(reason)


@dataclass
class _Holding:
    """A kernel while it is planned."""

    stages: Sequence[StepStage]
    links: Sequence[StateLink]
    carried: Sequence[Carried]
    arrays: dict[Buffer, HeldArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = places_in_tier(self.stages)

    def plan(self) -> HeldTier:
        """Plan the kernel.

        Raises:
            NotHeld: with the reason why there is none.
        """
        self.heads, self.axes = self._memory()
        loops = [self._loop_of(stage) for stage in self.stages]
        self.formed = {b for loop in loops for b in _targets(loop)}
        held = [self._stage(loop) for loop in loops]
        states = tuple(self._state(one) for one in self.carried)
        self._follow()
        self._keep_what_is_read(held, states)
        read = [a for a in self.arrays.values() if a.origin is Origin.STEP]
        read.sort(key=lambda array: array.follows is None)  # before what they follow is taken
        work: list[HeldStage] = [HeldTaken(tuple(array.buffer for array in read))]
        for loop in held:
            work.append(loop)
            work += _shared_out(loop)
        work.append(HeldRenewed(states))
        tier = HeldTier(self.heads, self.axes, self.arrays, states, ())
        return replace(tier, stages=_with_barriers(tier, work))

    def _memory(self) -> tuple[Expr, tuple[Expr, Expr]]:
        """How many heads there are, and the axes of a memory of one."""
        shapes = {link.previous.shape for link in self.links if _is_memory(link)}
        if not shapes:
            raise NotHeld("no state is a matrix for each head")
        if len(shapes) > 1:
            raise NotHeld("memories of different shapes")
        _, heads, first, last = next(iter(shapes))
        return heads, (first, last)

    def _loop_of(self, stage: StepStage) -> Loop:
        if isinstance(stage, DeviceLoop):
            return stage.loop
        raise NotHeld(f"`{str(stage).strip()[:60]}` in every step is no work of a single head")

    # --- stages ---

    def _stage(self, loop: Loop) -> HeldLoop:
        axes = self._axes_of(loop)
        loads = tuple(self._load(load, axes) for load in loop.loads if not _is_number(load))
        for load in loop.loads:
            if _is_number(load):
                self._add(load.view.buffer, _Walked((), (), False, False), Origin.CALL)
        sums, formed = [], {}
        for line in loop.lines:
            if line.store is Store.LOCAL:
                continue
            assert line.view is not None
            buffer, walked = line.view.buffer, self._walked(line.view, line.walk, axes, rows=True)
            self._add(buffer, walked, Origin.FORMED)
            if line.store is Store.ADD_UNITS and loop.is_nest:
                if not walked.by_head:
                    raise NotHeld(f"{line.statement.target} is a sum over heads")
                sums.append(HeldSum(line, buffer, walked.along))
            elif line.store is Store.WRITE and walked.along == tuple(range(len(axes))):
                formed[line.statement.target] = buffer
            else:
                raise NotHeld(f"{line.statement.target} is a sum that goes beyond a head")
        return HeldLoop(axes, loads, loop.lines, formed, tuple(sums))

    def _axes_of(self, loop: Loop) -> tuple[Expr, ...]:
        """The axes of a head that a loop goes along."""
        if len(loop.space) != 2:
            raise NotHeld("work without batch rows in every step")
        if loop.is_nest:
            axes = loop.axes[1:]
            if loop.axes[0] != self.heads or not (len(axes) == 1 or axes == self.axes):
                raise NotHeld("a nest whose axes are not those of a memory")
            return axes
        width = expand(loop.space[-1] / self.heads)
        if width == 1:
            return ()
        if width == expand(Mul(*self.axes)):
            return self.axes
        if self.heads in width.free_symbols or width.is_polynomial() is not True:
            raise NotHeld(f"{loop.space[-1]} units, which are not those of heads")
        return (width,)

    def _load(self, load: Load, axes: tuple[Expr, ...]) -> HeldLoad:
        buffer = load.view.buffer
        rows = load.access not in (Access.UNIT,)
        if load.walk is None and load.access not in (Access.ELEMENT, Access.UNIT):
            raise NotHeld(f"{buffer.name} is read {load.access.value}")
        walked = self._walked(load.view, load.walk, axes, rows)
        if buffer not in self.arrays:
            self._add(buffer, walked, self._origin(buffer))
        elif (walked.axes, walked.by_head) != self._lies(buffer):
            raise NotHeld(f"{buffer.name} is read in different ways")
        return HeldLoad(load.value, buffer, walked.along)

    def _walked(self, view: View, walk: Walk | None, axes: tuple[Expr, ...], rows: bool) -> _Walked:
        """How a stage goes through an array, which lies head by head."""
        if view.shape != view.buffer.shape or any(start != 0 for start in view.start):
            raise NotHeld(f"{view} is a part of an array")
        if walk is None:
            return _Walked(tuple(range(len(axes))), axes, True, rows)
        of_head, *strides = walk.strides
        along = tuple(n for n, stride in enumerate(strides) if stride != 0)
        lengths = tuple(axes[n] for n in along)
        expected: Expr = Integer(1)
        for n in reversed(along):
            if expand(strides[n] - expected) != 0:
                raise NotHeld(f"{view} does not lie head by head")
            expected = expected * axes[n]
        if of_head != 0 and expand(of_head - expected) != 0:
            raise NotHeld(f"{view} does not lie head by head")
        return _Walked(along, lengths, of_head != 0, walk.rows)

    # --- arrays ---

    def _lies(self, buffer: Buffer) -> tuple[tuple[Expr, ...], bool]:
        array = self.arrays[buffer]
        return array.axes, array.by_head

    def _origin(self, buffer: Buffer) -> Origin:
        """Where what no stage has formed comes from."""
        if buffer in self.formed:
            raise NotHeld(f"{buffer.name} is read before it is formed")
        if buffer.value in {one.read for one in self.carried}:
            return Origin.BEFORE
        return Origin.CONSTANT if self.places[buffer].steady else Origin.STEP

    def _add(self, buffer: Buffer, walked: _Walked, origin: Origin) -> None:
        place = self.places[buffer]
        is_own = origin is Origin.FORMED and not lasts(place.source)
        self.arrays[buffer] = HeldArray(
            buffer,
            walked.axes,
            walked.by_head,
            walked.by_row,
            origin,
            None if is_own or origin is Origin.BEFORE else place,
            is_stored=place.element is Element.STORE,
        )

    def _state(self, one: Carried) -> HeldState:
        by_value = {buffer.value: buffer for buffer in self.arrays}
        if one.new not in by_value:
            raise NotHeld(f"no step forms {one.new}")
        new = by_value[one.new]
        read = by_value.get(one.read)
        if read is None:
            raise NotHeld(f"no step reads {one.read}")
        if self._lies(read) != self._lies(new) or not self.arrays[new].by_head:
            raise NotHeld(f"{one.read} and {one.new} are not alike")
        if one.last is None and self.arrays[new].place is None:
            raise NotHeld(f"{one.new} is no output")
        return HeldState(read, new, one.first, one.last)

    def _follow(self) -> None:
        """In reverse a memory is, at a step, what it was before the step that was taken last."""
        read = {array.buffer.value: array for array in self.arrays.values()}
        for link in self.links:
            before, after = read.get(link.previous), read.get(link.next)
            if before is None or after is None or len(after.axes) < 2:
                continue
            if before.origin is after.origin is Origin.STEP:
                self.arrays[after.buffer] = replace(after, follows=before.buffer)

    def _keep_what_is_read(self, loops: Sequence[HeldLoop], states: Sequence[HeldState]) -> None:
        """What is formed stays in its holder where something reads it.

        The gradient of a memory at each step, which is seldom given, is read where it is used.
        """
        read = {load.buffer for loop in loops for load in loop.loads} | {s.new for s in states}
        for buffer, array in self.arrays.items():
            if array.origin is Origin.FORMED:
                self.arrays[buffer] = replace(array, is_held=buffer in read)
            elif array.holder is Holder.ENTRIES and array.place and array.place.optional:
                self.arrays[buffer] = replace(array, is_held=False)


def _is_number(load: Load) -> bool:
    return load.view.buffer.kind is BufferKind.SCALAR


def _targets(loop: Loop) -> Iterable[Buffer]:
    return (line.view.buffer for line in loop.lines if line.view is not None)


def lasts(source: Source) -> bool:
    """Whether what follows the steps reads a place: of the caller, or over time."""
    rows = source.rows if isinstance(source, IfGiven) else source
    return isinstance(rows, RowsOfArray) and rows.at is not None and not rows.by_turns


def _shared_out(loop: HeldLoop) -> list[HeldShares]:
    """The shares of a loop's sums added up, those along the last axis together."""
    stages = []
    for along in dict.fromkeys(total.along for total in loop.shares):
        sums = tuple(total for total in loop.shares if total.along == along)
        stages.append(HeldShares(sums, tuple(loop.axes[n] for n in along)))
    return stages


def _with_barriers(tier: HeldTier, stages: Sequence[HeldStage]) -> tuple[HeldStage, ...]:
    """Let threads meet where one needs what another wrote, or has read: in any two steps."""
    barriers = [False] * len(stages)
    since: list[SharedAccess] = []
    for number, stage in [*enumerate(stages)] * 2:
        touched = list(tier.touched(stage))
        if any(one.races(other) for one in touched for other in since):
            barriers[number] = True
        since = touched if barriers[number] else [*since, *touched]
    return tuple(replace(s, barrier=b) for s, b in zip(stages, barriers, strict=True))
