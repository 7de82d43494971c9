"""Decide whether all steps of a part run in one launch, and what such a kernel holds.

Input: what a part does in every step (products, loops), as values. Output: ``TierChoice``. Three
tiers stand above one launch per level and step, of which the third is planned by ``hold``:

- a stream: no product and one loop in a step. A thread takes one unit of one row through all
  steps, its state in a register: one pass over memory. What some steps read does not wait for the
  state: it is read while the steps before them run, so that none waits for memory.
- blocks: loops without sums between units. A block takes some rows through all steps, the
  recurrent weights in its shared memory; blocks never meet. Of heads, a block takes one: those
  read nothing of each other.
- held: memories of heads. A block takes one head of a row, its memory in registers.

Which tier runs is chosen by the host at run time, by capacity and a cost model; a part that has
no tier says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sympy import Expr, expand

from cellgen.language.value import B, Value
from cellgen.schedule.device.held import HeldTier
from cellgen.schedule.device.places import DevicePlace, Over, RowsOfArray
from cellgen.schedule.device.stages import (
    DeviceLoop,
    DeviceProduct,
    DeviceRoutine,
    StepStage,
    loads_for,
    names_of,
    places_in_tier,
)
from cellgen.schedule.schedule import Buffer, BufferKind, Line, Load, Loop, Store

MOST_SLOTS = 8
"""Sums that a thread of a block holds in registers; more would spill."""
MOST_AHEAD, DEEPEST = 18, 8
"""Values that a thread of a stream reads ahead of their use, in registers twice, with what is the
same at every step; and of so many steps."""


class TierKind(Enum):
    """What takes rows through all steps."""

    STREAM = "stream"
    BLOCK = "block"


@dataclass(frozen=True)
class Carried:
    """A state, or the gradient of one, in a register: read as ``read``, then set to ``new``.

    ``first`` is where it lies before the first step, ``last`` where it goes after the last one, if
    anywhere. ``rounded`` says that the next step reads what memory would hold.
    """

    read: Value
    new: Value
    first: RowsOfArray
    last: RowsOfArray | None
    rounded: bool

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace that it names."""
        return self.first.names


@dataclass(frozen=True)
class Passed:
    """Where a step leaves the gradient for the step before, of so many ``units``."""

    rows: RowsOfArray
    units: Expr


@dataclass(frozen=True)
class TierLoop:
    """A loop within a kernel over all steps.

    It loads no value ``in_registers``, and stores none that is ``unwritten``. ``units`` are those
    that it runs over: of one head where blocks have one.
    """

    stage: DeviceLoop
    places: Mapping[Buffer, DevicePlace]
    units: Expr
    in_registers: frozenset[Value] = frozenset()
    unwritten: frozenset[Value] = frozenset()

    @property
    def loop(self) -> Loop:
        """The loop of the schedule."""
        return self.stage.loop

    @property
    def loads(self) -> tuple[Load, ...]:
        """What it reads from memory, numbers of the call too."""
        loads = loads_for(self.loop.lines, self.loop)
        return tuple(load for load in loads if load.value not in self.in_registers)

    @property
    def written(self) -> tuple[Line, ...]:
        """Lines whose values it stores."""
        lines = (line for line in self.loop.lines if line.store is Store.WRITE)
        return tuple(line for line in lines if line.statement.target not in self.unwritten)

    @property
    def reads(self) -> tuple[Load, ...]:
        """What it reads from memory for each row and unit."""
        return tuple(
            load
            for load in self.loads
            if load.view.buffer.kind is not BufferKind.SCALAR
            and self.places[load.view.buffer].over is not Over.PREVIOUS
        )

    @property
    def ahead(self) -> int:
        """How many of these differ from step to step."""
        return sum(not self.places[load.view.buffer].steady for load in self.reads)

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it names."""
        touched = [load.view for load in self.loads]
        touched += [line.view for line in self.written if line.view is not None]
        return names_of(self.places[view.buffer] for view in touched)


@dataclass(frozen=True)
class TierStage:
    """A stage of a kernel over time: a product or a loop.

    No ``barrier`` follows a product whose sums the same thread reads next.
    """

    work: DeviceProduct | TierLoop
    barrier: bool = True

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it names."""
        if isinstance(self.work, DeviceProduct):
            return self.work.names_in_tier
        return self.work.names


@dataclass(frozen=True)
class Tier:
    """A kernel over all steps; ``names`` are the arrays of the workspace and the strides it reads.

    With ``heads``, a block has one of them, whose units are ``head_units``. ``passed`` is cleared
    in a backward pass where a window of steps begins. ``depth``: of how many steps a stream reads
    at once.
    """

    kind: TierKind
    stages: tuple[TierStage, ...]
    carried: tuple[Carried, ...] = ()
    passed: tuple[Passed, ...] = ()
    heads: Expr | None = None
    head_units: Expr | None = None

    @property
    def products(self) -> tuple[DeviceProduct, ...]:
        """The products, in order."""
        return tuple(s.work for s in self.stages if isinstance(s.work, DeviceProduct))

    @property
    def loops(self) -> tuple[TierLoop, ...]:
        """The loops, in order."""
        return tuple(stage.work for stage in self.stages if isinstance(stage.work, TierLoop))

    @property
    def depth(self) -> int:
        """Of how many steps a stream reads at once: a power of two."""
        ahead = sum(loop.ahead for loop in self.loops)
        room = MOST_AHEAD - sum(len(loop.reads) - loop.ahead for loop in self.loops)
        fits = [d for d in (2, 4, 8) if d <= DEEPEST and d * ahead <= room]
        return max(fits, default=1)

    @property
    def widest(self) -> tuple[Expr, ...]:
        """Units of each stage, each once."""
        units = [product.units for product in self.products]
        units += [loop.units for loop in self.loops]
        return tuple({expand(length): length for length in units}.values())

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it reads and writes."""
        names = [stage.names for stage in self.stages]
        names += [state.names for state in self.carried]
        names += [one.rows.names for one in self.passed]
        return frozenset[str]().union(*names)


@dataclass(frozen=True)
class TierChoice:
    """The kernel over time of a part, one that keeps memories in registers, or why it has none."""

    tier: Tier | None = None
    reason: str = ""
    held: HeldTier | None = None


def choose(
    stages: Sequence[StepStage], carried: Sequence[Carried], passed: Sequence[Passed]
) -> TierChoice:
    """Choose the best tier that a part allows."""
    if reason := refusal(stages) if stages else "no work is left in a step":
        return TierChoice(None, reason)
    loops = [stage for stage in stages if isinstance(stage, DeviceLoop)]
    if len(stages) == len(loops) == 1 and _all_formed(loops[0].loop, carried):
        return TierChoice(_stream(loops[0], carried))
    first = next((stage for stage in stages if isinstance(stage, DeviceProduct)), None)
    heads = first.heads if first else None
    units = first.units if first and heads is not None else None
    followers = (*stages[1:], None)
    in_blocks = tuple(
        TierStage(_in_block(stage, units), not _same_thread(stage, following))
        for stage, following in zip(stages, followers, strict=True)
    )
    cuts = tuple(Passed(p.rows, p.units if units is None else units) for p in passed)
    return TierChoice(Tier(TierKind.BLOCK, in_blocks, (), cuts, heads, units))


def _in_block(stage: StepStage, units: Expr | None) -> DeviceProduct | TierLoop:
    assert not isinstance(stage, DeviceRoutine)
    if isinstance(stage, DeviceProduct):
        return stage
    return TierLoop(stage, places_in_tier([stage]), units or stage.loop.space[-1])


def _stream(stage: DeviceLoop, carried: Sequence[Carried]) -> Tier:
    """A thread for each unit; a gradient that stays in its register needs no memory.

    A state is an output, or saved.
    """
    loop = TierLoop(
        stage,
        places_in_tier([stage]),
        stage.loop.space[-1],
        in_registers=frozenset(c.read for c in carried),
        unwritten=frozenset(c.new for c in carried if not c.rounded),
    )
    read = {load.value for load in stage.loop.loads}
    held = tuple(c for c in carried if c.read in read or c.last is not None)
    return Tier(TierKind.STREAM, (TierStage(loop),), held)


def _same_thread(stage: StepStage, following: StepStage | None) -> bool:
    """Whether what follows reads the sums of a product at the same row and unit only."""
    if not isinstance(stage, DeviceProduct) or isinstance(following, DeviceRoutine | None):
        return False
    return bool(stage.group) and stage.group == following.group


def refusal(  # noqa: PLR0911 - one case a return
    stages: Sequence[StepStage], *, together: bool = False
) -> str:
    """Say why a part cannot run in one launch, or nothing.

    ``together``: blocks are there together, and tell each other sums over units.
    """
    products = [stage for stage in stages if isinstance(stage, DeviceProduct)]
    by_head = {product.heads for product in products}
    widths = {expand(product.width) for product in products}
    if len(by_head) > 1:
        return "some products go head by head and others mix all heads"
    for stage in stages:
        if isinstance(stage, DeviceRoutine):
            return "work over the units of whole heads in every step"
        if isinstance(stage, DeviceProduct):
            if stage.slots > MOST_SLOTS:
                return f"{stage.slots} sums for each unit would not stay in registers"
            continue
        if stage.loop.is_nest:
            return "values that differ along some of several inner axes in every step"
        stores = {line.store for line in stage.loop.lines}
        if stores - {Store.LOCAL, Store.WRITE, *([Store.ADD_UNITS] if together else [])}:
            return "a sum over units in every step needs whole rows"
        if len(stage.loop.space) != 2 or stage.loop.space[0] != B:
            return "work without batch rows in every step"
        if by_head - {None} and {expand(stage.loop.space[-1])} != widths:
            return "the units of its stages are not those of its heads"
    return ""


def _all_formed(loop: Loop, carried: Sequence[Carried]) -> bool:
    """Whether one loop makes every new state, unit by unit of the old one."""
    formed = {line.statement.target for line in loop.lines}
    return all(c.new in formed and c.new.shape == loop.space for c in carried)
