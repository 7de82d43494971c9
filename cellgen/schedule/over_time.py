"""Plan a cell over time: stages of a step, forward and in reverse, and the deferred stages.

Input: ``SequencePrograms``. Output: ``SequenceSchedule``. Each part is a planned step whose buffers
have a place over time (``Storage``). Row ranges can be given to threads through all steps without
meeting; where there are too few rows, ranges of units, with a meeting after every stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sympy import Expr

from cellgen.errors import DerivationError
from cellgen.language.value import B, Role, Value, format_shape
from cellgen.program.over_time import SequencePrograms
from cellgen.program.ssa import Program, digest
from cellgen.runtime.notebook import ShownInNotebooks
from cellgen.schedule.groups import Group, GroupedStage, group_products, loops_of, views_read
from cellgen.schedule.schedule import (
    Access,
    Buffer,
    BufferKind,
    Loop,
    PlannedFunction,
    Product,
    Routine,
    Store,
)
from cellgen.schedule.stages import plan_function

NOT_OVER_TIME = "schedule.sequence"
"""Code of the error for what a single step can do and a time loop cannot yet."""


class Storage(Enum):
    """Where a buffer of a step lives over time."""

    TIME = "one per step"
    PREVIOUS = "state of the step before"
    CARRY_IN = "gradient from the step after"
    CARRY_OUT = "gradient for the step before"
    CONSTANT = "the same at every step"
    TOTAL = "sum over all steps"
    SCRATCH = "reused by every step"


@dataclass(frozen=True)
class Part:
    """One planned step: its stages and where its buffers live."""

    function: PlannedFunction
    stages: tuple[GroupedStage, ...]
    storage: Mapping[Buffer, Storage]

    @property
    def can_split_units(self) -> bool:
        """Whether threads may share the units of a step instead of its rows."""
        loops = [stage for stage in self.stages if isinstance(stage, Loop)]
        by_head = (s.heads is not None for s in self.stages if isinstance(s, Group))
        if any(by_head) or any(isinstance(stage, Routine) for stage in self.stages):
            return False
        if any(loop.is_nest for loop in loops):
            return False
        return all(line.store is not Store.ADD_UNITS for loop in loops for line in loop.lines)

    def __str__(self) -> str:
        buffers = [f"    {buffer}: {storage.value}" for buffer, storage in self.storage.items()]
        return "\n".join([f"  {self.function.name}", *buffers, *(str(s) for s in self.stages)])


@dataclass(frozen=True)
class SequenceSchedule(ShownInNotebooks):
    """The time loop of a cell, forward and backward.

    ``by_step``: products stand alone, and what is deferred follows in each step; else products of
    a level are groups, and it follows over the rows of many steps.
    """

    programs: SequencePrograms
    digest: str
    forward: Part
    reverse: Part
    deferred: Part
    prologue: PlannedFunction | None
    epilogue: PlannedFunction | None
    by_step: bool = False

    def __str__(self) -> str:
        saved = ", ".join(f"{v} {format_shape(v.shape)}" for v in self.programs.saved)
        head = f"{self.programs.definition.name} over time; saves {saved or 'nothing'}"
        parts = (self.prologue, self.forward, self.reverse, self.deferred, self.epilogue)
        return "\n".join([head, *(str(part) for part in parts if part is not None)])


def step_barriers(part: Part, programs: SequencePrograms) -> tuple[bool, ...]:
    """Tell after which stages of a step threads that share units have to meet.

    A thread has the same units in every stage, so that only the operands of products, which are
    whole rows, make it wait for others: before it reads what they write, and before it writes over
    what they read. Where stages differ in their units threads meet after each of them.
    """
    if (
        len({stage.units if isinstance(stage, Group) else _units(stage) for stage in part.stages})
        > 1
    ):
        return (True,) * len(part.stages)
    same = {link.previous: link.next for link in programs.links}
    same |= {link.carry: link.passed for link in programs.links}
    reused = {b.value for b in part.storage if _is_reused(b, part, programs)}
    after = [False] * len(part.stages)
    written: set[Value] = set()
    read: set[Value] = set()
    for _ in range(2):  # the second time around, what the step before left is known
        for index, stage in enumerate(part.stages):
            rows = {same.get(value, value) for value in _whole_rows(stage)}
            writes = {same.get(value, value) for value in written_by(stage)}
            if rows & written or writes & read & reused:
                after[index - 1] = True
                written, read = set(), set()
            written |= writes
            read |= rows
    return tuple(after)


def summed_over_rows(stage: GroupedStage) -> tuple[Buffer, ...]:
    """The sums over rows that a stage of the deferred part forms."""
    lines = stage.lines if isinstance(stage, Loop) else ()
    views = [line.view for line in lines if line.store in (Store.ADD_ROWS, Store.ADD_ALL)]
    return tuple(dict.fromkeys(view.buffer for view in views if view is not None))


def row_by_row(
    stages: Sequence[GroupedStage], barriers: Sequence[bool]
) -> tuple[tuple[int, ...], ...]:
    """Neighbouring stages by number through which a few rows can go while they are near.

    None of them is a product, and threads do not meet between them. Products stand alone.
    """
    runs: list[tuple[int, ...]] = []
    for number, stage in enumerate(stages):
        apart = not runs or barriers[number - 1]
        if apart or mixes_rows(stage) or mixes_rows(stages[number - 1]):
            runs.append((number,))
        else:
            runs[-1] += (number,)
    return tuple(runs)


def mixes_rows(stage: GroupedStage) -> bool:
    """Whether a stage is a product, better formed for many rows.

    Threads share rows of all others over many steps, also of sums over rows, which are formed in
    groups of rows first.
    """
    return isinstance(stage, Group | Product)


def products_together(stages: Sequence[GroupedStage]) -> tuple[tuple[GroupedStage, ...], ...]:
    """Neighbouring weight gradients, which share operands, as one stage.

    Those of heads, and those of the whole. No array is a result twice.
    """
    runs: list[list[GroupedStage]] = []
    open_runs: dict[Expr | None, list[GroupedStage]] = {}  # of neighbours, by their heads
    results: set[Buffer] = set()
    for stage in stages:
        if not isinstance(stage, Product) or stage.target.buffer in results:
            open_runs, results = {}, set()
        if not isinstance(stage, Product):
            runs.append([stage])
            continue
        results.add(stage.target.buffer)
        if stage.heads not in open_runs:
            open_runs[stage.heads] = []
            runs.append(open_runs[stage.heads])
        open_runs[stage.heads].append(stage)
    return tuple(map(tuple, runs))


def deferred_barriers(runs: Sequence[Sequence[GroupedStage]]) -> tuple[bool, ...]:
    """Tell after which stages over the rows of many steps threads have to meet.

    A thread has the same rows in all stages that share rows; of a stage that shares units it has
    all rows. So it waits for others where stages of the two kinds touch the same array, and one of
    them writes it. A group may share rows or units, and is like no other stage. Threads meet
    before the first stage and after the last: rows of other steps are shared anew. Sums over groups
    of rows are added up after that.
    """
    after = [False] * len(runs)
    touched: dict[Value, set[tuple[object, bool]]] = {}
    for index, run in enumerate(runs):
        now = _touches(run)
        if any(
            (writes or wrote) and partition != before
            for value, uses in now.items()
            for partition, writes in uses
            for before, wrote in touched.get(value, ())
        ):
            after[index - 1] = True
            touched = {}
        for value, uses in now.items():
            touched.setdefault(value, set()).update(uses)
    return tuple(after)


def _touches(stages: Sequence[GroupedStage]) -> dict[Value, set[tuple[object, bool]]]:
    """Return by which partition some stages touch each array, and whether they write it."""
    touches: dict[Value, set[tuple[object, bool]]] = {}
    for stage in stages:
        partition: object = stage if mixes_rows(stage) else None
        sums = {buffer.value for buffer in summed_over_rows(stage)}
        for value in written_by(stage) - sums:
            touches.setdefault(value, set()).add((partition, True))
        for value in read_by(stage):
            touches.setdefault(value, set()).add((partition, False))
    return touches


def waits_for_no_state(part: Part, programs: SequencePrograms) -> bool:
    """Whether a part has products and none of them reads what a step before left.

    The loop over time is then pointwise: products can run ahead of it, and threads that share units
    never meet.
    """
    has_products = any(isinstance(stage, Group) for stage in part.stages)
    return has_products and part.can_split_units and not any(step_barriers(part, programs))


def _units(stage: GroupedStage) -> object:
    """The units that threads share; a product of the whole is like no other stage."""
    if isinstance(stage, Group):
        return stage.units
    return stage.space[-1] if isinstance(stage, Loop) else stage


def _is_reused(buffer: Buffer, part: Part, programs: SequencePrograms) -> bool:
    """Whether every step writes to the same memory: scratch, and what nobody may want saved."""
    storage = part.storage[buffer]
    steady = {*programs.outputs, *(link.next for link in programs.links)}
    unsaved = part.function.program is programs.forward and buffer.kind is BufferKind.RESULT
    unsaved = unsaved and storage is Storage.TIME and buffer.value not in steady
    return storage is Storage.SCRATCH or unsaved


def _whole_rows(stage: GroupedStage) -> set[Value]:
    """What a stage reads beyond its own units."""
    if isinstance(stage, Product | Routine):
        return read_by(stage)
    values = {
        load.view.buffer.value
        for loop in loops_of([stage])
        for load in loop.loads
        if load.access is not Access.ELEMENT or load.view.shape[-1] != load.view.buffer.shape[-1]
    }
    if isinstance(stage, Group):
        values |= {term.operand.buffer.value for term in stage.terms}
    return values


def schedule_sequence(programs: SequencePrograms, *, by_step: bool = False) -> SequenceSchedule:
    """Plan the time loop of a cell; ``by_step`` as ``SequenceSchedule`` says.

    Raises:
        DerivationError: with code ``schedule.sequence``, for what is not planned over time yet.
    """
    if not any(value.role is Role.INPUT for value in programs.forward.arguments):
        raise DerivationError(
            f"{programs.definition.name}: no input tells how many steps there are; a cell over "
            f"time reads one, if only Input(1)",
            code=NOT_OVER_TIME,
        )
    return SequenceSchedule(
        programs,
        digest(programs.all),
        _part(programs.forward, programs, by_step=by_step),
        _part(programs.reverse, programs, by_step=by_step),
        _part(programs.deferred, programs, by_step=by_step),
        _once(programs.prologue, programs),
        _once(programs.epilogue, programs),
        by_step,
    )


def _once(program: Program | None, programs: SequencePrograms) -> PlannedFunction | None:
    """Plan what runs once a sequence, on weights alone."""
    if program is None:
        return None
    function = plan_function(program, program.arguments, programs.definition.dims)
    function.verify()
    return function


def written_by(stage: GroupedStage) -> set[Value]:
    """The values that a stage puts into memory."""
    if isinstance(stage, Group):
        slots = {slot.view.buffer.value for slot in stage.slots if slot.needs_memory}
        return slots.union(*(written_by(loop) for loop in stage.loops))
    if isinstance(stage, Loop):
        return {line.view.buffer.value for line in stage.lines if line.view is not None}
    return {stage.target.buffer.value}


def read_by(stage: GroupedStage) -> set[Value]:
    """The values that a stage reads."""
    return {view.buffer.value for view in views_read(stage)}


def _part(program: Program, programs: SequencePrograms, *, by_step: bool) -> Part:
    function = plan_function(program, program.arguments, programs.definition.dims)
    function.verify()
    storage = {buffer: _storage(buffer, program, programs) for buffer in function.buffers}
    if by_step:
        return Part(function, function.stages, storage)
    stages = group_products(function, one_by_one=program is programs.deferred)
    for stage in stages:
        _require_rows(stage, program)
    return Part(function, stages, storage)


def _storage(buffer: Buffer, program: Program, programs: SequencePrograms) -> Storage:
    value = buffer.value
    if value in {link.carry for link in programs.links}:
        return Storage.CARRY_IN
    if value in {link.passed for link in programs.links} and program is programs.reverse:
        return Storage.CARRY_OUT
    if value.role is Role.STATE:
        return Storage.PREVIOUS
    if buffer.kind is BufferKind.WORKSPACE or value in programs.contexts:
        return Storage.SCRATCH
    if value.role is Role.STATIC or not value.is_batched:
        return Storage.TOTAL if buffer.kind is BufferKind.RESULT else Storage.CONSTANT
    return Storage.TIME


def _require_rows(stage: GroupedStage, program: Program) -> None:
    """Only work over batch rows can be spread over rows and steps."""
    if isinstance(stage, Loop):
        fits = len(stage.space) == 2 and stage.space[0] == B
    elif isinstance(stage, Group):
        fits = all(term.operand.shape[0] == B for term in stage.terms)
    else:
        fits = next(iter(views_read(stage))).shape[0] == B
    if not fits:
        raise DerivationError(
            f"{program.cell}.{program.function}: `{str(stage).strip()}` has no batch rows; work on "
            f"weights alone is not planned over time yet, compute it before the call",
            code=NOT_OVER_TIME,
        )
