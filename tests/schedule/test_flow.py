"""Faults planted in plans of functions over time are found: lifetimes and barriers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellgen import Cell
from cellgen.cells import GRU, LSTM, MLSTM, GRUResetBefore
from cellgen.errors import DerivationError
from cellgen.pipeline import planned
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.lower.plan import How, StagePlan, StripPlan
from cellgen.schedule.lower.strips import with_strips
from cellgen.schedule.lower.verify import verify


def plans(cell: type[Cell]) -> tuple[TimePlan, ...]:
    found = planned(cell)
    assert found.sequence is not None
    return lower(found.sequence, found.over_time)


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


def test_an_array_for_two_values_that_are_live_at_once_is_found() -> None:
    _, backward = plans(GRUResetBefore)
    part = backward.parts[0]
    kept = [place for place in part.places if place.how is How.KEPT]
    assert len(kept) >= 2
    shared = {kept[1]: replace(kept[1], of=kept[0].of)}

    def moved(stage: StagePlan) -> StagePlan:
        return replace(stage, uses=tuple(shared.get(place, place) for place in stage.uses))

    places = tuple(shared.get(place, place) for place in part.places)
    parts = (replace(part, places=places, stages=tuple(map(moved, part.stages))), backward.parts[1])
    assert "overwrote" in fault(replace(backward, parts=parts))


def test_a_state_in_place_that_is_read_afterwards_is_found() -> None:
    """Each entry is written over the one before: a later stage then finds the new one."""
    forward = with_strips(plans(MLSTM)[0])
    verify(forward)
    part = forward.parts[0]
    assert any(state.in_place for state in forward.states)
    strip = next(stage for stage in part.stages if isinstance(stage, StripPlan))
    late = (*part.stages, replace(strip, name="late"))
    assert "overwrote" in fault(with_stages(forward, 0, late))
