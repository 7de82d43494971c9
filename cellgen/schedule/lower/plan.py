"""The plan of a function over time: frozen, printable, the same for every target.

Input of a target, output of ``lower``. Arrays, memory and states are named; lengths are
dimensions' expressions. A target numbers and spells these; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TypeAlias

from sympy import Expr

from cellgen.language.value import Shape, format_axis, format_shape
from cellgen.runtime.notebook import ShownInNotebooks
from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.lower.sums import Operand, Outer, RowArray, RowSum, StepsTotal, Total
from cellgen.schedule.schedule import Buffer, Loop, PlannedFunction, Product, Routine


class Rows(Enum):
    """How many rows an array of the workspace has."""

    ONE = "one row"
    BATCH = "a batch"
    TWO_BATCHES = "two steps"
    CHUNK = "a chunk of steps"
    GROUPS = "groups of the rows of a chunk"
    PANELS = "packed weights"
    AHEAD = "products of a hoist window of steps"
    BATCH_SLOTS = "products of a step"
    CHUNK_SLOTS = "products of a chunk"


class When(Enum):
    """When an array of the workspace is needed."""

    ALWAYS = "always"
    TABLES = "some steps may be masked"
    LAST = "the last step alone is wanted"
    GUARDED = "states need a look at each step"
    GATHERED = "rows of many steps lie apart"
    ROW_BLOCK = "a row block sums by itself"
    UNPACKED = "weights are read where they lie"


@dataclass(frozen=True)
class WorkspaceArray:
    """One array of the workspace; ``packed``: made of weights alone, kept for many calls."""

    name: str
    rows: Rows
    width: Expr | None
    when: When = When.ALWAYS
    packed: bool = False
    slots: int = 0
    units: Expr | None = None
    widest: int = 0
    heads: Expr | None = None


@dataclass(frozen=True)
class Series:
    """One array over time, (T, B, width).

    ``strided``: at the caller's strides; others are saved, without gaps. ``staged``: steps read a
    copy where some are masked; ``across``: the deferred part reads it over many steps;
    ``scattered``: the deferred part writes it over many. An output that ``repeats_when_masked`` is
    no state: a masked step has that of the step before; the gradient of one is ``repeated``.
    """

    name: str
    width: Expr
    strided: bool = True
    output: bool = False
    repeats_when_masked: bool = False
    repeated: bool = False
    staged: bool = False
    across: bool = False
    scattered: bool = False


@dataclass(frozen=True)
class State:
    """One state: ``now`` and ``across``, whether a step, or the deferred part, reads it before.

    ``series``: the array over time of its new value, if that is kept. ``pair``: memory of two
    steps, of the state, or of its gradient. ``upstream``: the gradient of the output, if it is one.
    ``start``: the value of each unit where the state starts anew. ``in_place``: a step may write
    each entry over the one before; backward, of its gradient.
    """

    name: str
    previous: str
    passed: str
    width: Expr
    output: bool
    saved: bool
    series: str
    now: bool
    across: bool
    pair: str
    upstream: str
    start: float
    in_place: bool = False


class How(Enum):
    """How the rows of an array are found at a step."""

    MEMBER = "the caller's, the same at every step"
    MEMORY = "the same at every step"
    SERIES = "over time"
    STAGED = "over time, or a copy where steps may be masked"
    ACROSS = "rows of many steps"
    IN_PLACE = "rows of many steps, each where it belongs"
    BEFORE = "the state before the step"
    CARRY = "the gradient from the step after"
    PASSED = "the gradient for the step before"
    SAVED = "saved"
    PAIR = "the state, of two steps"
    KEPT = "a row for each step of a chunk"
    SUMS = "the sum over the rows' group"
    SCALAR = "a number of the call"


@dataclass(frozen=True)
class Place:
    """Where one buffer of a part lies: ``of`` names a member, memory, series or state.

    ``other`` is the memory of one that the caller may leave out.
    """

    buffer: Buffer
    how: How
    of: str
    width: Expr | None
    other: str = ""
    optional: bool = False

    @property
    def moves(self) -> bool:
        """Whether its rows are as far apart as the call, or the step, says."""
        moving = (How.SERIES, How.STAGED, How.ACROSS, How.IN_PLACE, How.BEFORE, How.CARRY)
        return self.how in moving


@dataclass(frozen=True)
class Weights:
    """The weights of one slot, in member or memory ``of``; ``begins``: the first product of it."""

    of: str
    in_memory: bool
    offset: Expr | None
    stride: Expr
    head_step: Expr | None
    transposed: bool
    slot: int
    begins: bool


@dataclass(frozen=True)
class PanelProduct:
    """One operand times one packed panel of neighbouring slots.

    ``ahead``: memory of the product for a hoist window of steps, where it can be formed ahead of
    the loop.
    """

    operand: Buffer
    offset: Expr | None
    inner: Expr
    by_head: bool
    slots: int
    first_slot: int
    panel: str
    ahead: str
    weights: tuple[Weights, ...]


@dataclass(frozen=True)
class Prefetch:
    """Rows of an array over time that tiles fetch, so many steps later; ``strided`` as a series."""

    name: str
    strided: bool
    width: Expr
    later: int


@dataclass(frozen=True)
class GroupPlan:
    """Products in tiles, and the equations that run on each of them.

    ``granularity``: slots of the widest panel by whose blocks threads share units. ``whole``:
    memory for the products where weights are not packed. ``free``: nothing in it waits for a state.
    ``in_place``: result rows of many steps that tiles write where they belong. ``begun``: slots
    that a loop before it has begun. ``wants``, of every kind of stage: results for which alone it
    runs, and is skipped where the caller wants none.
    """

    name: str
    group: Group
    uses: tuple[Place, ...]
    keeps: tuple[str, ...]
    units: Expr
    heads: Expr | None
    granularity: int
    widest: int
    depth: Expr
    whole: str
    free: bool
    fetching_depth: Expr
    runs: tuple[PanelProduct, ...]
    prefetch: tuple[Prefetch, ...]
    in_place: tuple[tuple[Buffer, Expr | None], ...]
    zeroed: tuple[int, ...]
    leaves_out: bool
    begun: tuple[int, ...] = ()
    wants: tuple[str, ...] = ()
    barrier: bool = False

    @property
    def chains(self) -> tuple[tuple[int, int], ...]:
        """Neighbouring runs that fill the same slots, in one call each: the first, how many."""
        chains: list[tuple[int, int]] = []
        for number, run in enumerate(self.runs):
            before = self.runs[chains[-1][0]] if chains else None
            if before and (before.first_slot, before.slots) == (run.first_slot, run.slots):
                chains[-1] = (chains[-1][0], chains[-1][1] + 1)
            else:
                chains.append((number, 1))
        return tuple(chains)


@dataclass(frozen=True)
class LoopPlan:
    """Equations over rows and units; ``down``: from the last row, as chunks of steps come."""

    name: str
    loop: Loop
    uses: tuple[Place, ...]
    keeps: tuple[str, ...]
    units: Expr
    granularity: int
    down: bool
    leaves_out: bool
    wants: tuple[str, ...] = ()
    barrier: bool = False


@dataclass(frozen=True)
class RoutinePlan:
    """Work on whole rows that is neither a product nor pointwise."""

    name: str
    routine: Routine
    uses: tuple[Place, ...]
    units: Expr
    wants: tuple[str, ...] = ()
    barrier: bool = False


@dataclass(frozen=True)
class ProductPlan:
    """One product by itself, where products of a level are no group."""

    name: str
    product: Product
    uses: tuple[Place, ...]
    units: Expr
    wants: tuple[str, ...] = ()
    barrier: bool = False


@dataclass(frozen=True)
class OutersPlan:
    """Weight gradients over the same rows: threads share the rows of each result."""

    name: str
    uses: tuple[Place, ...]
    heads: Expr | None
    lefts: tuple[Operand, ...]
    rights: tuple[Operand, ...]
    outers: tuple[Outer, ...]
    barrier: bool = False


@dataclass(frozen=True)
class StripPlan:
    """Loops through which a strip goes at a time: some neighbours along the last axis but one.

    Each of them is a nest over all ``axes``, or runs once for each place along all but the last.
    """

    name: str
    loops: tuple[Loop, ...]
    axes: Shape
    uses: tuple[Place, ...]
    keeps: tuple[str, ...]
    units: Expr
    wants: tuple[str, ...] = ()
    barrier: bool = False


StagePlan: TypeAlias = GroupPlan | LoopPlan | RoutinePlan | OutersPlan | StripPlan | ProductPlan


def work_of(stage: StagePlan) -> tuple[GroupedStage, ...]:
    """What a stage is made of: a group, loops, a routine, products."""
    if isinstance(stage, OutersPlan):
        return tuple(outer.product for outer in stage.outers)
    if isinstance(stage, StripPlan):
        return stage.loops
    if isinstance(stage, GroupPlan):
        return (stage.group,)
    if isinstance(stage, LoopPlan):
        return (stage.loop,)
    return (stage.routine if isinstance(stage, RoutinePlan) else stage.product,)


@dataclass(frozen=True)
class StageRows:
    """Neighbouring deferred stages; if ``by_rows``, a group of rows goes through them at a time."""

    first: int
    count: int
    by_rows: bool


@dataclass(frozen=True)
class PartPlan:
    """One part of a function; ``free_units``: those that threads can share without meeting."""

    name: str
    places: tuple[Place, ...]
    stages: tuple[StagePlan, ...]
    rows: tuple[StageRows, ...]
    can_split: bool
    free_units: Expr | None
    free_granularity: int

    @property
    def work(self) -> tuple[GroupedStage, ...]:
        """What its stages are made of, in order."""
        return tuple(work for stage in self.stages for work in work_of(stage))

    def place(self, buffer: Buffer) -> Place:
        """Where a buffer lies."""
        return next(place for place in self.places if place.buffer == buffer)


@dataclass(frozen=True)
class TimePlan(ShownInNotebooks):
    """One function over time, ``forward`` or ``backward``.

    ``forward_arrays``: those over time that a forward pass makes, as results of it or as arguments
    of a backward pass, which ``runs_again`` if it can make them itself from the states at some
    steps. ``by_step``: one thread runs all parts in each step, one after another.
    """

    cell: str
    function: str
    text: str
    backward: bool
    memory: tuple[WorkspaceArray, ...]
    series: tuple[Series, ...]
    states: tuple[State, ...]
    parts: tuple[PartPlan, ...]
    zeros: Expr | None
    product_rows: Expr | None
    reads_before: bool
    required: tuple[str, ...]
    row_arrays: tuple[tuple[str, Expr], ...]
    summed: tuple[tuple[str, Expr], ...]
    packs_from: tuple[str, ...]
    kept: tuple[RowArray, ...] = ()
    constants: tuple[RowArray, ...] = ()
    totals: tuple[Total, ...] = ()
    sums: tuple[RowSum, ...] = ()
    steps_totals: tuple[StepsTotal, ...] = ()
    forward_arrays: tuple[str, ...] = ()
    runs_again: bool = False
    by_step: bool = False
    prologue: PlannedFunction | None = None
    epilogue: PlannedFunction | None = None
    once_places: tuple[tuple[Buffer, str, bool], ...] = field(default=())
    """Arrays of prologue and epilogue: in member or memory, and whether in memory."""
    late_wants: tuple[tuple[str, ...], ...] = ()
    """The gradients for which alone each stage of the epilogue runs; none: it runs always."""

    def with_stages(self, change: Callable[[str, StagePlan], StagePlan]) -> TimePlan:
        """The plan with other stages: ``change(part's name, stage)`` of each."""
        staged = ((p, tuple(change(p.name, stage) for stage in p.stages)) for p in self.parts)
        return replace(self, parts=tuple(replace(p, stages=stages) for p, stages in staged))

    def __str__(self) -> str:
        return "\n".join([f"{self.cell} {self.function}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for name, rows in (("memory", self.memory), ("over time", self.series)):
            yield f"  {name}"
            yield from (f"    {_row(item)}" for item in rows)
        yield "  states"
        yield from (f"    {_row(item)}" for item in self.states)
        for part in self.parts:
            split = "may share units" if part.can_split else "share rows"
            yield f"  {part.name}: threads {split}"
            yield from (
                f"    {p.buffer.name}: {p.how.value} ({p.of or p.buffer.name})" for p in part.places
            )
            for stage in part.stages:
                yield from (f"    {line}" for line in _stage_lines(stage))
        for name, sums in (("totals", self.totals), ("sums over rows", self.sums)):
            yield from [f"  {name}"] * bool(sums)
            yield from (f"    {_row(item)}" for item in sums)


def _stage_lines(stage: StagePlan) -> Iterator[str]:
    barrier = "; barrier" if stage.barrier else ""
    if isinstance(stage, OutersPlan):
        yield f"{stage.name}: weight gradients{barrier}"
        yield from (f"  {o.text}{' (begins it)' if o.begins else ''}" for o in stage.outers)
        return
    barrier = f"; for {', '.join(stage.wants)}{barrier}" if stage.wants else barrier
    if isinstance(stage, RoutinePlan | ProductPlan):
        work = stage.routine if isinstance(stage, RoutinePlan) else stage.product
        yield f"{stage.name}: {str(work).strip()}{barrier}"
        return
    if isinstance(stage, StripPlan):
        axes = format_shape(stage.axes)
        yield f"{stage.name}: {len(stage.loops)} loops by strips of {axes}{barrier}"
        yield from (f"  {line.origin}" for loop in stage.loops for line in loop.lines)
        return
    if isinstance(stage, LoopPlan):
        ways = [", from the last row"] if stage.down else []
        ways += [", rows left out"] if stage.leaves_out else []
        yield f"{stage.name}: loop over {format_axis(stage.units)} units{''.join(ways)}{barrier}"
        yield from (f"  {line.origin}" for line in stage.loop.lines)
        return
    way = f"{', rows left out' if stage.leaves_out else ''}{barrier}"
    yield f"{stage.name}: {len(stage.group.slots)} slots of {format_axis(stage.units)}{way}"
    for run in stage.runs:
        ahead = ", may be formed ahead" if run.ahead else ""
        yield f"  {run.operand.name} -> slots {run.first_slot}+{run.slots}{ahead}"
    if stage.prefetch:
        yield f"  prefetch {', '.join(f'{p.name}[step{p.later:+d}]' for p in stage.prefetch)}"
    yield from (f"  {line.origin}" for loop in stage.group.loops for line in loop.lines)


def _row(item: object) -> str:
    """One row of a table: its name, then what is said of it."""
    said = []
    for entry in fields(item):  # type: ignore[arg-type]
        value = getattr(item, entry.name)
        if entry.name == "name" or value in (None, "", False, 0, When.ALWAYS):
            continue
        if isinstance(value, Expr):
            said.append(f"{entry.name} {format_axis(value)}")
        elif isinstance(value, Enum):
            said.append(str(value.value))
        else:
            said.append(entry.name if value is True else f"{entry.name} {value}")
    name = getattr(item, "name", "") or getattr(item, "of", "")
    return f"{name}: {', '.join(said)}"
