"""Say after which stages threads meet, and which ones a group of rows goes through at a time.

Pass: a plan whose threads never meet -> the same with barriers, as few as hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cellgen.schedule.groups import GroupedStage
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import PartPlan, StageRows, TimePlan
from cellgen.schedule.over_time import (
    deferred_barriers,
    mixes_rows,
    row_by_row,
    step_barriers,
)


def with_barriers(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Let threads meet where one needs what another wrote, or has read."""
    return replace(plan, parts=tuple(_meeting(function, part) for part in plan.parts))


def _meeting(function: FunctionOverTime, part: PartPlan) -> PartPlan:
    runs = function.runs(part.name)
    rows: tuple[StageRows, ...] = ()
    if part.name == "deferred":
        barriers = deferred_barriers(runs)
        rows = _rows([run[0] for run in runs], barriers)
    else:
        barriers = step_barriers(function.part(part.name), function.programs)
    pairs = zip(part.stages, barriers, strict=True)
    stages = tuple(replace(stage, barrier=barrier) for stage, barrier in pairs)
    return replace(part, stages=stages, rows=rows)


def _rows(stages: Sequence[GroupedStage], barriers: Sequence[bool]) -> tuple[StageRows, ...]:
    """Neighbouring stages that a group of rows goes through at a time, and others one by one."""
    return tuple(
        StageRows(run[0], len(run), not mixes_rows(stages[run[0]]))
        for run in row_by_row(stages, barriers)
    )
