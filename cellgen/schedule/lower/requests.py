"""Say what is formed for a caller alone who may not want it.

Pass: a plan whose stages all run and write all -> the same with what each stage is skipped without
(``wants``), and what it writes where the caller gives memory for it (``keeps``).
"""

from __future__ import annotations

from dataclasses import replace

from cellgen.language.value import Value
from cellgen.schedule.groups import GroupedStage
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import GroupPlan, LoopPlan, OutersPlan, StagePlan, TimePlan
from cellgen.schedule.lower.touched import (
    read_from_memory,
    stored,
    written_beside_sums,
)
from cellgen.schedule.on_request import (
    gradients_reached,
    reached_by,
    skipped_with,
    wanted_by,
    written_on_request,
)
from cellgen.schedule.over_time import written_by
from cellgen.schedule.schedule import Buffer


def with_requests(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Leave out what leads to nothing but what nobody wants; weight gradients one by one.

    That is a stage, a sum over all steps in memory, and what follows from such sums. A stage of the
    reverse loop may be one with others, and runs but where it forms such gradients alone.
    """
    if not plan.backward:
        return plan
    schedule = function.schedule
    requested, reached = skipped_with(schedule), gradients_reached(schedule)
    formed = _formed(function, plan)
    sums = {function.place_of(value)[0]: reached[value] for value in schedule.programs.totals}

    def names(gradients: frozenset[Value]) -> tuple[str, ...]:
        return tuple(str(value.name) for value in wanted_by(gradients, requested))

    def skipping(name: str, stage: StagePlan) -> StagePlan:
        if isinstance(stage, OutersPlan):
            return stage
        of = formed[stage.name]
        alone = name == "deferred" or written_by(of) <= requested
        return replace(stage, wants=names(reached_by(of, reached)) if alone else ())

    late = plan.epilogue.stages if plan.epilogue else ()
    return replace(
        plan.with_stages(skipping),
        totals=tuple(
            replace(total, wants=names(sums[total.of])) if total.in_memory else total
            for total in plan.totals
        ),
        late_wants=tuple(names(reached_by(stage, reached)) for stage in late),
    )


def _formed(function: FunctionOverTime, plan: TimePlan) -> dict[str, GroupedStage]:
    """What each stage is made of, by its name."""
    return {
        stage.name: run[0]
        for part in plan.parts
        for stage, run in zip(part.stages, function.runs(part.name), strict=True)
    }


def with_written_on_request(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Write what only a caller may want where the caller gives memory for it.

    That is what a forward pass saves, and of a backward pass gradients that a loop forms beside
    others.
    """
    for_caller = _gradients_of(function) if plan.backward else _for_caller(function)

    def keeping(name: str, stage: StagePlan) -> StagePlan:
        if not isinstance(stage, GroupPlan | LoopPlan):
            return stage
        loops = stage.group.loops if isinstance(stage, GroupPlan) else (stage.loop,)
        written = [buffer for loop in loops for buffer in stored(loop)]
        if isinstance(stage, GroupPlan):
            written += [slot.view.buffer for slot in stage.group.slots if slot.needs_memory]
        own = (buffer for buffer in dict.fromkeys(written) if buffer in for_caller)
        return replace(stage, keeps=tuple(buffer.name for buffer in own))

    return plan.with_stages(keeping)


def _gradients_of(function: FunctionOverTime) -> frozenset[Buffer]:
    """The gradients that a deferred loop need not write."""
    requested = written_on_request(function.schedule)
    return frozenset(
        buffer
        for buffer in function.schedule.deferred.function.buffers
        if buffer.value in requested
    )


def _for_caller(function: FunctionOverTime) -> frozenset[Buffer]:
    """What a forward pass saves and reads from memory in no step.

    Saves 10 % of GRU's forward at (1000, 16, 64, 64) on two threads, 3 % at (100, 32, 128, 256).
    Not beside a sum over units: GCC makes no second loop there, and masked stores take 1.6 times
    as long (layer-norm LSTM, AVX2).
    """
    programs, part = function.programs, function.schedule.forward
    after = {link.next for link in programs.links}
    read = read_from_memory(part.stages)
    beside = written_beside_sums(part.stages)
    return frozenset(
        buffer
        for buffer in part.function.buffers
        if buffer.value in programs.saved
        and buffer.value not in after
        and buffer not in read
        and buffer not in beside
    )
