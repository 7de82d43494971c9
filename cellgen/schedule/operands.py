"""Which weights products alone read, which may then be of another type than what they multiply.

Input: a schedule over time. Output: values. Panels of such weights are packed, in bfloat16 where a
call asks for that; no loop and no work on weights alone looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator

from cellgen.language.value import Role, Value
from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.over_time import SequenceSchedule, read_by
from cellgen.schedule.schedule import reads


def operands_alone(schedule: SequenceSchedule) -> frozenset[Value]:
    """Return the weights that are operands of products in tiles, and nothing else."""
    parts = (schedule.forward, schedule.reverse, schedule.deferred)
    stages = [stage for part in parts for stage in part.stages]
    packed = {value for stage in stages for value in _packed(stage)}
    others = {value for stage in stages for value in _read_otherwise(stage)}
    for once in (schedule.prologue, schedule.epilogue):
        if once is not None:
            others |= {view.buffer.value for stage in once.stages for view in reads(stage)}
    return frozenset(v for v in packed - others if v.role is Role.WEIGHT)


def _packed(stage: GroupedStage) -> Iterator[Value]:
    if isinstance(stage, Group):
        yield from (w.view.buffer.value for term in stage.terms for w in term.weights)


def _read_otherwise(stage: GroupedStage) -> Iterator[Value]:
    """What a stage reads, but for weights of tiles."""
    if not isinstance(stage, Group):
        yield from read_by(stage)
        return
    yield from (term.operand.buffer.value for term in stage.terms)
    for loop in stage.loops:
        yield from read_by(loop)
