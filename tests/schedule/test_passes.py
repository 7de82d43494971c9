"""Passes from schedule to plan: what each leaves behind is held to a rule, which planted faults
break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cellgen import Cell
from cellgen.cells import GRU, LSTM, DeltaNet
from cellgen.errors import DerivationError
from cellgen.pipeline import planned
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.lower.passes import (
    ON_DEVICE,
    PASSES,
    functions_over_time,
    lowered_for_launches,
)
from cellgen.schedule.lower.plan import GroupPlan, OutersPlan, Rows, StagePlan
from cellgen.schedule.lower.strips import with_strips
from cellgen.schedule.lower.verify import OF_LAUNCHES, RULES, Rule, verify


def plans(cell: type[Cell] = GRU) -> tuple[TimePlan, TimePlan]:
    whole = planned(cell)
    assert whole.sequence is not None
    return lower(whole.sequence, whole.over_time)


def fault(plan: TimePlan, rules: Sequence[Rule] = RULES) -> str:
    with pytest.raises(DerivationError) as caught:
        verify(plan, rules)
    assert caught.value.code == "schedule.verify"
    return str(caught.value)


def changed(plan: TimePlan, change: Callable[[StagePlan], StagePlan], part: str = "") -> TimePlan:
    return plan.with_stages(
        lambda name, stage: change(stage) if not part or name == part else stage
    )


def test_every_pass_has_a_rule():
    for passes, rules in ((PASSES, RULES), (ON_DEVICE, OF_LAUNCHES)):
        assert all(any(f"``{run.__name__}``" in str(r.__doc__) for r in rules) for run in passes)


def test_a_sum_that_nothing_begins_is_found_before_launches_are_planned():
    """GRU's ``d_h_prev``: a loop stores its first term where a product adds the rest."""
    whole = planned(GRU)
    assert whole.sequence is not None
    _, backward = map(lowered_for_launches, functions_over_time(whole.sequence, whole.over_time))
    begun = [s for s in backward.parts[0].stages if isinstance(s, GroupPlan) and s.begun]
    assert begun
    verify(backward, OF_LAUNCHES)

    def forgetting(stage: StagePlan) -> StagePlan:
        return replace(stage, begun=()) if isinstance(stage, GroupPlan) else stage

    text = fault(changed(backward, forgetting), OF_LAUNCHES)
    assert "has a slot that no product begins" in text
    without = replace(backward.parts[0], stages=(begun[0],))
    text = fault(replace(backward, parts=(without, *backward.parts[1:])), OF_LAUNCHES)
    assert "which no loop before it begins" in text


def test_a_sum_in_a_tile_is_none_of_a_launch():
    forward, _ = plans(LSTM)
    assert "leaves a sum in its tile" in fault(forward, OF_LAUNCHES)
    whole = planned(LSTM)
    assert whole.sequence is not None
    stored, _ = map(lowered_for_launches, functions_over_time(whole.sequence, whole.over_time))

    def forgetting(stage: StagePlan) -> StagePlan:
        uses = tuple(p for p in stage.uses if not p.buffer.name.startswith("w_"))
        return replace(stage, uses=uses) if isinstance(stage, GroupPlan) else stage

    assert "has no place for w_" in fault(changed(stored, forgetting), OF_LAUNCHES)


def test_a_stage_that_others_need_is_not_skipped():
    _, backward = plans()

    def skipping(stage: StagePlan) -> StagePlan:
        return replace(stage, wants=("d_h_prev", "d_n_bar", "d_r_bar", "d_z_bar", "d_s_n"))

    assert "is skipped without" in fault(changed(backward, skipping, "reverse"))


def test_a_stage_that_is_skipped_writes_what_is_not_wanted_alone():
    _, backward = plans()
    wanted = [s for s in backward.parts[1].stages if not isinstance(s, OutersPlan) and s.wants]
    assert wanted

    def other(stage: StagePlan) -> StagePlan:
        return replace(stage, wants=("d_other",)) if stage == wanted[0] else stage

    assert "is skipped without d_other but writes more" in fault(changed(backward, other))


def test_what_a_step_reads_is_written_always():
    forward, _ = plans(LSTM)

    def keeping(stage: StagePlan) -> StagePlan:
        return replace(stage, keeps=("h",)) if isinstance(stage, GroupPlan) else stage

    part = forward.parts[0]
    late = replace(part.stages[0], name="late")
    assert isinstance(late, GroupPlan)
    reading = replace(
        late, runs=tuple(replace(r, operand=_buffer(forward, "h")) for r in late.runs)
    )
    again = replace(part, stages=(*part.stages, reading))
    assert "writes h on request, which a step reads" in fault(
        changed(replace(forward, parts=(again,)), keeping)
    )


def _buffer(plan: TimePlan, name: str):
    return next(p.buffer for p in plan.parts[0].places if p.buffer.name == name)


def test_operands_of_weight_gradients_are_packed_apart():
    _, backward = plans()

    def together(stage: StagePlan) -> StagePlan:
        if not isinstance(stage, OutersPlan):
            return stage
        return replace(stage, lefts=tuple(replace(o, packed_after=None) for o in stage.lefts))

    assert "packed operands of weight gradients meet" in fault(changed(backward, together))
    assert "rows of operands are packed, of" in fault(replace(backward, product_rows=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "elsewhere"}, "fetches elsewhere, which no stage touches over time"),
        ({"strided": False}, "at strides that it has not"),
    ],
)
def test_tiles_fetch_what_steps_touch(change, message):
    forward, _ = plans()

    def fetching(stage: StagePlan) -> StagePlan:
        if not isinstance(stage, GroupPlan):
            return stage
        return replace(stage, prefetch=tuple(replace(p, **change) for p in stage.prefetch))

    assert any(s.prefetch for s in forward.parts[0].stages if isinstance(s, GroupPlan))
    assert message in fault(changed(forward, fetching))


@pytest.mark.parametrize("rows", [Rows.CHUNK, Rows.GROUPS])
def test_an_array_that_is_too_small_is_refused(rows):
    """One step's rows, where the deferred part puts those of many."""
    _, backward = plans()
    small = next(item for item in backward.memory if item.rows is rows)
    memory = tuple(
        replace(item, rows=Rows.BATCH) if item == small else item for item in backward.memory
    )
    assert f"{small.name} has a batch of" in fault(replace(backward, memory=memory))
    narrow = tuple(
        replace(item, width=item.width / 2) if item == small else item for item in backward.memory
    )
    assert f"{small.name} has" in fault(replace(backward, memory=narrow))


def test_any_array_of_the_workspace_that_is_left_out_is_missed():
    for plan in plans():
        needed = [item for item in plan.memory if item.when.name in ("ALWAYS", "UNPACKED")]
        assert needed
        for item in needed:
            memory = tuple(other for other in plan.memory if other != item)
            assert item.name in fault(replace(plan, memory=memory))
        assert "there twice" in fault(replace(plan, memory=(*plan.memory, plan.memory[0])))


def test_groups_of_rows_go_through_every_deferred_stage_once():
    _, backward = plans()
    reverse, deferred = backward.parts
    skipped = replace(backward, parts=(reverse, replace(deferred, rows=deferred.rows[1:])))
    assert "no group of rows goes through once" in fault(skipped)


def test_threads_do_not_meet_within_a_group_of_rows():
    """Each has another number of groups, so that a strip waits where its loop did."""
    backward = with_strips(plans(DeltaNet)[1])
    reverse, deferred = backward.parts
    run = next(run for run in deferred.rows if run.count > 1)
    meeting = tuple(
        replace(stage, barrier=True) if n == run.first else stage
        for n, stage in enumerate(deferred.stages)
    )
    wrong = replace(backward, parts=(reverse, replace(deferred, stages=meeting)))
    assert "a barrier within a group of rows" in fault(wrong)
