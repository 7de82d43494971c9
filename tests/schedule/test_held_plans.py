"""Plans that keep memories in registers: which cells have one, what a step touches, faults."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from cellgen import Cell
from cellgen.cells import (
    HGRN2,
    MLSTM,
    SHIPPED,
    Comba,
    DeltaNet,
    DeltaProduct,
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedLinearAttention,
    KimiDeltaAttention,
    Mamba2,
    MLSTMSigmoid,
    RetNet,
    Titans,
    TTTLinear,
)
from cellgen.errors import DerivationError
from cellgen.pipeline import planned
from cellgen.schedule.device.held import HeldTier, Holder, Origin
from cellgen.schedule.device.lower import lower_for_device
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.verify import verify_for_device

BOTH = (GatedLinearAttention, RetNet, DeltaNet, GatedDeltaNet, MLSTM, TTTLinear)
"""Cells whose passes, forward and back, keep their memory in registers."""
LIKEWISE = (
    *(KimiDeltaAttention, GatedDeltaNet2, DeltaProduct, Comba, HGRN2, MLSTMSigmoid, Titans),
)
"""Cells whose passes do too, of whose plans no more is tested than that."""
LEFT_OUT = {
    "mamba2": "d_reshaped_c is a sum over heads",
    "m2rnn": "a nest whose axes are not those of a memory",
    "mamba3": "1 units, which are not those of heads",
    "rwkv6": "`d_exp_pre @ [w_b.T]` in every step is no work of a single head",
    "rwkv7": "`d_a_pre @ [a_b.T]` in every step is no work of a single head",
}
"""Why the backward passes of other cells with a matrix for each head do not."""


@cache
def plans(cell: type[Cell]) -> tuple[DeviceTimePlan, DeviceTimePlan]:
    names = planned(cell).in_c
    assert names.sequence is not None
    return lower_for_device(names.sequence, names.over_time)


def held(plan: DeviceTimePlan) -> HeldTier:
    assert plan.tier.held is not None
    return plan.tier.held


def test_cells_with_a_matrix_for_each_head_keep_it_in_registers_or_say_why_not() -> None:
    for cell in SHIPPED:
        if all(len(state.shape) != 4 for state in cell.definition.states):
            continue
        forward, backward = plans(cell)
        name = cell.definition.name
        if cell in {*BOTH, *LIKEWISE}:
            assert forward.tier.held
            assert backward.tier.held, name
        else:
            assert (forward.tier.held is not None) == (cell is Mamba2), name
            assert backward.tier.reason == LEFT_OUT[name]


@pytest.mark.parametrize("cell", BOTH, ids=lambda cell: cell.definition.name)
def test_a_step_reads_a_memory_once_backward_and_never_forward(cell: type[Cell]) -> None:
    """Forward it is written where it is an output over time. Backward, what forward has left is
    read once, since the next step taken has it already, and its gradient where that is given.
    Nothing else of (K, D) is in an array, and none of it is in the workspace."""
    forward, backward = map(held, plans(cell))
    (state,) = (s for s in cell.definition.states if len(s.shape) == 4)
    after = cell.definition.next_state(state)
    assert list(forward.of_states) == [(str(after.name), True)]
    read = after if cell is RetNet else state  # whose decay is a constant: no gradient of it
    assert list(backward.of_states) == [(f"d_{after.name}", False), (str(read.name), False)]
    workspace = {array.name for plan in plans(cell) for array in plan.memory}
    for tier in (forward, backward):
        for array in tier.arrays.values():
            if array.holder is Holder.ENTRIES and array.place is not None:
                assert not array.place.names & workspace


@pytest.mark.parametrize("cell", BOTH, ids=lambda cell: cell.definition.name)
def test_a_forward_step_meets_at_most_as_often_as_its_sums_depend_on_each_other(
    cell: type[Cell],
) -> None:
    """Each chain of sums over a memory costs two barriers at most: its operands, its shares."""
    most = {
        GatedLinearAttention: 2,
        RetNet: 2,
        MLSTM: 2,
        DeltaNet: 5,
        GatedDeltaNet: 5,
        TTTLinear: 8,
    }[cell]
    assert sum(stage.barrier for stage in held(plans(cell)[0]).stages) <= most


def without(plan: DeviceTimePlan, tier: HeldTier) -> str:
    with pytest.raises(DerivationError) as caught:
        verify_for_device(replace(plan, tier=replace(plan.tier, held=tier)))
    assert caught.value.code == "schedule.verify"
    return str(caught.value)


@pytest.mark.parametrize("cell", BOTH, ids=lambda cell: cell.definition.name)
def test_a_barrier_that_is_dropped_is_found(cell: type[Cell]) -> None:
    dropped = 0
    for plan in plans(cell):
        tier = held(plan)
        for number, stage in enumerate(tier.stages):
            if stage.barrier:
                stages = list(tier.stages)
                stages[number] = replace(stage, barrier=False)
                text = without(plan, replace(tier, stages=tuple(stages)))
                assert "without a barrier between" in text
                dropped += 1
    assert dropped > 3


@pytest.mark.parametrize("cell", BOTH, ids=lambda cell: cell.definition.name)
def test_any_stage_that_is_left_out_is_found(cell: type[Cell]) -> None:
    for plan in plans(cell):
        tier = held(plan)
        for number, left_out in enumerate(tier.stages):
            after = [replace(stage, barrier=True) for stage in tier.stages[number + 1 :]]
            stages = (*tier.stages[:number], *after)
            text = without(plan, replace(tier, stages=stages))
            assert re.search("which is not there|does not store", text), left_out


def test_a_memory_that_is_taken_before_what_follows_it_is_found() -> None:
    plan = plans(GatedLinearAttention)[1]
    tier = held(plan)
    first = tier.stages[0]
    followers = [b for b in first.buffers if tier.arrays[b].follows is not None]  # type: ignore[union-attr]
    assert [b.name for b in followers] == ["s"]
    turned = replace(first, buffers=tuple(reversed(first.buffers)))  # type: ignore[union-attr, call-arg]
    assert "reads s, which is not there" in without(
        plan, replace(tier, stages=(turned, *tier.stages[1:]))
    )


def test_a_plan_says_what_holds_each_value() -> None:
    text = str(plans(GatedLinearAttention)[1])
    assert "one launch for all steps: held, one head of a row in registers" in text
    assert "s_prev: read a step ahead (s at the step before, first s_prev)" in text
    assert "d_s_next: left by the step before, registers, each entry in one of a thread" in text
    held_once = [
        a
        for a in held(plans(GatedLinearAttention)[0]).arrays.values()
        if a.origin is Origin.CONSTANT
    ]
    assert [a.buffer.name for a in held_once] == ["b_a"]
