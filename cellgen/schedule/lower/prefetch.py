"""Name the rows of arrays over time that tiles fetch while the products of a step run.

Pass: a plan whose stages fetch nothing -> the same with what each group fetches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cellgen.language.value import Value
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import GroupPlan, Prefetch, StagePlan, TimePlan
from cellgen.schedule.lower.touched import read_by, up_to_group, writes
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Buffer, BufferKind, flat


def with_prefetch(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Let each group fetch what must come first; one whose products run ahead fetches nothing."""

    def fetching(name: str, stage: StagePlan) -> StagePlan:
        if name == "deferred" or not isinstance(stage, GroupPlan) or stage.free:
            return stage
        return replace(stage, prefetch=tuple(_prefetch(function, name, stage.group)))

    return plan.with_stages(fetching)


def _prefetch(function: FunctionOverTime, name: str, group: Group) -> Iterable[Prefetch]:
    """The rows that this group's tiles fetch."""
    rows = (_written_next if name == "forward" else _read_next)(function, group)
    for value, later in dict.fromkeys(rows):
        strided = function.arrays.has_strides(value)
        yield Prefetch(str(value.name), strided, flat(value.shape)[-1], later)


def _written_next(function: FunctionOverTime, group: Group) -> list[tuple[Value, int]]:
    """What this group and the loops behind it write in the next forward step.

    Beside it the inputs that are read there first.
    """
    part = function.schedule.forward
    stages, at = part.stages, part.stages.index(group)
    own = [group, *up_to_group(stages[at + 1 :])]
    before = stages[:at]
    is_first = not any(isinstance(stage, Group) for stage in before)
    near = {} if is_first else read_by(before)
    read = read_by([*before, *own] if is_first else own)
    inputs = [b for b in read if b.kind is BufferKind.ARGUMENT and b not in near]
    inputs = [b for b in inputs if part.storage[b] is Storage.TIME]
    written = [buffer for stage in own for buffer in writes(stage)]
    return _rows_of(function, [*written, *inputs], 1, part)


def _read_next(function: FunctionOverTime, group: Group) -> list[tuple[Value, int]]:
    """Of a reverse step: what is read behind this group up to the next group's own equations.

    By the last group, what the next step reads up to there, and then the deferred part.
    """
    part, deferred = function.schedule.reverse, function.schedule.deferred
    stages, at = part.stages, part.stages.index(group)
    behind = list(up_to_group(stages[at + 1 :]))
    following = [stage for stage in stages[at + 1 :] if isinstance(stage, Group)][:1]
    rows = _rows_of(function, read_by([*behind, *following]), 0, part)
    if not following:
        first = next(stage for stage in stages if isinstance(stage, Group))
        rows += _rows_of(function, read_by([*up_to_group(stages), first]), -1, part)
        rows += _rows_of(function, read_by(deferred.stages), 0, deferred)
    came = _rows_of(function, read_by(stages[: at + 1]), 0, part)
    came += _rows_of(function, read_by(stages), 1, part)  # by the reverse step before
    return [row for row in rows if row not in came]


def _rows_of(
    function: FunctionOverTime, buffers: Iterable[Buffer], later: int, of: Part
) -> list[tuple[Value, int]]:
    """Arrays over time, of more than a number a row, and how many steps later they are needed.

    A state before a step is the one after the step before.
    """
    programs = function.programs
    links = {link.previous: link.next for link in programs.links}
    rows = []
    for buffer in buffers:
        value, storage = buffer.value, of.storage[buffer]
        is_kept = value in programs.saved or function.arrays.has_strides(value)
        if not buffer.shape or buffer.shape[-1] == 1:
            continue
        if storage is Storage.PREVIOUS:
            rows.append((links[value], later - 1))
        elif storage is Storage.TIME and is_kept:
            rows.append((value, later))
    return rows
