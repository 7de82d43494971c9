"""Faults planted in plans of functions over time are found: lifetimes and barriers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellgen import Cell
from cellgen.cells import GRU, LRU, LSTM, MLSTM, GRUBlockCell, GRUResetBefore
from cellgen.errors import DerivationError
from cellgen.pipeline import planned
from cellgen.program.learning import running, training
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.lower.flow import reaches
from cellgen.schedule.lower.plan import How, Place, StagePlan, StripPlan
from cellgen.schedule.lower.strips import with_strips
from cellgen.schedule.lower.verify import verify
from cellgen.schedule.over_time import schedule_sequence
from cellgen.targets.interface import sequence_signatures


def plans(cell: type[Cell]) -> tuple[TimePlan, ...]:
    found = planned(cell)
    assert found.sequence is not None
    return lower(found.sequence, found.over_time)


def plans_by_step(cell: type[Cell]) -> tuple[TimePlan, ...]:
    """What runs a cell step by step, and what trains it so."""
    found = planned(cell)
    assert found.sequence is not None
    programs = found.sequence.programs
    run, train = (schedule_sequence(form(programs), by_step=True) for form in (running, training))
    forward, _ = lower(run, sequence_signatures(run))
    return (forward, *lower(train, sequence_signatures(train)))


def with_stages(plan: TimePlan, number: int, stages: tuple[StagePlan, ...]) -> TimePlan:
    parts = [
        replace(part, stages=stages) if n == number else part for n, part in enumerate(plan.parts)
    ]
    return replace(plan, parts=tuple(parts))


def fault(plan: TimePlan) -> str:
    with pytest.raises(DerivationError) as caught:
        verify(plan)
    assert caught.value.code == "schedule.verify"
    return str(caught.value)


@pytest.mark.parametrize("cell", [GRU, LSTM, GRUResetBefore], ids=lambda c: c.definition.name)
def test_a_barrier_that_is_dropped_is_found(cell: type[Cell]) -> None:
    """Of threads that share units, and of those that share rows of many steps and then products."""
    dropped = 0
    for plan in plans(cell):
        for number, part in enumerate(plan.parts):
            for at, stage in enumerate(part.stages):
                if stage.barrier:
                    open_stage = replace(stage, barrier=False)
                    stages = (*part.stages[:at], open_stage, *part.stages[at + 1 :])
                    assert "no barrier stands between" in fault(with_stages(plan, number, stages))
                    dropped += 1
    assert dropped >= 2


def test_a_stage_that_comes_too_late_is_found() -> None:
    """What it writes is then read before it is written, or a step too late."""
    for plan in plans(GRUResetBefore):
        stages = plan.parts[0].stages
        turned = (*stages[1:], stages[0])
        assert "before it is written" in fault(with_stages(plan, 0, turned))


CELLS = (GRU, LSTM, GRUResetBefore, MLSTM, LRU, GRUBlockCell)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.definition.name)
def test_any_stage_that_is_left_out_is_found(cell: type[Cell]) -> None:
    """What it alone writes was in no place before: no array of the workspace, no result."""
    for lowered in plans(cell):
        for plan in dict.fromkeys((lowered, with_strips(lowered))):
            _find_every_stage_left_out(plan)
    for plan in plans_by_step(cell):
        _find_every_stage_left_out(plan)


def alone(stages: tuple[StagePlan, ...], at: int) -> bool:
    """Whether a stage writes what no other does: products by themselves add up in one array."""
    written = [{use.buffer for use in reaches(stage) if use.writes} for stage in stages]
    return bool(written[at] - set().union(*written[:at], *written[at + 1 :]))


def _find_every_stage_left_out(plan: TimePlan) -> None:
    for number, part in enumerate(plan.parts):
        meeting = tuple(replace(stage, barrier=True) for stage in part.stages)
        for at in range(len(meeting)):
            if plan.by_step and not alone(part.stages, at):
                continue
            stages = (*meeting[:at], *meeting[at + 1 :])
            assert "written" in fault(with_stages(plan, number, stages))


def test_by_step_the_parts_of_a_step_follow_each_other() -> None:
    """What one step keeps for what is deferred has one row, which the next one writes over."""
    *_, backward = plans_by_step(GRU)
    assert [part.name for part in backward.parts] == ["reverse", "deferred"]
    assert not any(stage.barrier for part in backward.parts for stage in part.stages)
    turned = replace(backward, parts=backward.parts[::-1])
    assert "before it is written" in fault(turned)


def elsewhere(plan: TimePlan, number: int, places: dict[Place, Place]) -> TimePlan:
    """The plan with other places in one part."""

    def moved(stage: StagePlan) -> StagePlan:
        return replace(stage, uses=tuple(places.get(place, place) for place in stage.uses))

    part = plan.parts[number]
    own = tuple(places.get(place, place) for place in part.places)
    part = replace(part, places=own, stages=tuple(map(moved, part.stages)))
    parts = (*plan.parts[:number], part, *plan.parts[number + 1 :])
    return replace(plan, parts=parts)


def test_an_array_for_two_values_that_are_live_at_once_is_found() -> None:
    _, backward = plans(GRUResetBefore)
    kept = [place for place in backward.parts[0].places if place.how is How.KEPT]
    assert len(kept) >= 2
    shared = {kept[1]: replace(kept[1], of=kept[0].of)}
    assert "overwrote" in fault(elsewhere(backward, 0, shared))


def deferred_places(plan: TimePlan) -> dict[str, Place]:
    assert plan.parts[1].name == "deferred"
    return {place.buffer.name: place for place in plan.parts[1].places}


def test_the_deferred_part_reads_each_value_where_it_was_kept() -> None:
    """Not in the array of another gate."""
    _, backward = plans(GRU)
    places = deferred_places(backward)
    r, z = places["d_r_bar"], places["d_z_bar"]
    wrong = elsewhere(backward, 1, {r: replace(r, of=z.of)})
    assert "reads d_r_bar, which d_z_bar overwrote" in fault(wrong)


def test_two_weight_gradients_in_one_result_are_found() -> None:
    _, backward = plans(GRU)
    places = deferred_places(backward)
    r, z = places["d_u_r"], places["d_u_z"]
    wrong = elsewhere(backward, 1, {r: replace(r, of=z.of)})
    assert "writes d_u_z over the result d_u_r" in fault(wrong)


def test_a_sum_over_rows_without_its_groups_is_found() -> None:
    """Memory of the groups, where the sum over them finds nothing."""
    _, backward = plans(GRU)
    places = deferred_places(backward)
    r, z = places["d_b_r"], places["d_b_z"]
    wrong = elsewhere(backward, 1, {r: replace(r, of=z.of)})
    assert f"d_b_r is the sum of {r.of}, which is never written" in fault(wrong)


def test_an_epilogue_without_its_stages_is_found() -> None:
    _, backward = plans(LRU)
    assert backward.epilogue is not None
    epilogue = replace(backward.epilogue, stages=backward.epilogue.stages[:-1])
    assert "is never written" in fault(replace(backward, epilogue=epilogue))


def test_a_state_in_place_that_is_read_afterwards_is_found() -> None:
    """Each entry is written over the one before: a later stage then finds the new one."""
    forward = with_strips(plans(MLSTM)[0])
    verify(forward)
    part = forward.parts[0]
    assert any(state.in_place for state in forward.states)
    strip = next(stage for stage in part.stages if isinstance(stage, StripPlan))
    late = (*part.stages, replace(strip, name="late"))
    assert "overwrote" in fault(with_stages(forward, 0, late))
