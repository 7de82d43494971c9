"""What stages read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from cellgen.schedule.groups import Group, GroupedStage, loops_of, views_read
from cellgen.schedule.over_time import Part
from cellgen.schedule.schedule import Buffer, Loop, Product, Routine, Store, View

_SUMS_OVER_UNITS = frozenset((Store.ADD_UNITS, Store.ADD_ALL))


def loaded(loop: Loop) -> list[Buffer]:
    """Buffers that a loop reads."""
    return [load.view.buffer for load in loop.loads]


def stored(loop: Loop) -> list[Buffer]:
    """Buffers that a loop writes."""
    return [line.view.buffer for line in loop.lines if line.view is not None]


def writes(stage: GroupedStage) -> list[Buffer]:
    """Buffers that a stage writes."""
    if isinstance(stage, Product | Routine):
        return [stage.target.buffer]
    if isinstance(stage, Loop):
        return stored(stage)
    in_slots = [slot.view.buffer for slot in stage.slots if slot.needs_memory]
    return in_slots + [buffer for loop in stage.loops for buffer in stored(loop)]


def begins_with_product(part: Part, total: Buffer) -> bool:
    """Whether only products write a sum over all steps: the first of them writes it whole."""
    written = {stage: writes(stage) for stage in part.stages}
    return all(isinstance(stage, Product) for stage in written if total in written[stage])


def up_to_group(stages: Sequence[GroupedStage]) -> Iterator[GroupedStage]:
    """The stages before the first group."""
    return takewhile(lambda stage: not isinstance(stage, Group), stages)


def read_by(stages: Iterable[GroupedStage]) -> dict[Buffer, None]:
    """Buffers that stages read, in order."""
    return dict.fromkeys(view.buffer for stage in stages for view in views_read(stage))


def views_written(stage: GroupedStage) -> list[View]:
    """What a group writes from its tiles, row by row."""
    if not isinstance(stage, Group):
        return []
    lines = [line for loop in stage.loops for line in loop.lines]
    views = [line.view for line in lines if line.view and line.store is Store.WRITE]
    return [slot.view for slot in stage.slots if slot.needs_memory] + views


def read_from_memory(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """The buffers that stages read; what a loop finds in the tile of its group is none."""
    return {
        view.buffer
        for stage in stages
        for view in views_read(stage)
        if not isinstance(stage, Group) or stage.slot_of(view) is None
    }


def written_beside_sums(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """The buffers that a loop writes unit by unit while it adds units up."""
    adding = (loop for loop in loops_of(stages) if _adds_units(loop))
    return {buffer for loop in adding for buffer in stored(loop)}


def _adds_units(loop: Loop) -> bool:
    return not _SUMS_OVER_UNITS.isdisjoint(line.store for line in loop.lines)
