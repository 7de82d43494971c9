"""Plans of a device are values: every text in them is a name, and faults in them are found."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import pytest
from sympy import Basic, Integer

from cellgen import Cell, H, Input, State, Static, tanh
from cellgen.cells import (
    GRU,
    LMU,
    LRU,
    LSTM,
    MLSTM,
    GRUBlockCell,
    GRUResetBefore,
    LayerNormLSTM,
    MinGRU,
    SLSTMHeads,
)
from cellgen.errors import DerivationError
from cellgen.language.cell import Definition
from cellgen.pipeline import planned
from cellgen.program.ssa import Statement
from cellgen.runtime.abi import Argument
from cellgen.schedule.device.lower import lower_for_device
from cellgen.schedule.device.persistent import PersistentChoice
from cellgen.schedule.device.places import Moment, NeededWhen, RowsOfArray
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import DeviceLoop, DeviceProduct, StepsShare, StepStage
from cellgen.schedule.device.tiers import TierLoop
from cellgen.schedule.device.verify import verify_for_device
from tests.awkward_cells import Unread
from tests.conftest import Contexts

CELLS = (GRU, LSTM, GRUResetBefore, SLSTMHeads, LRU, MLSTM, LayerNormLSTM)


@cache
def plans(cell: type[Cell]) -> tuple[DeviceTimePlan, ...]:
    names = planned(cell).in_c
    assert names.sequence is not None
    return lower_for_device(names.sequence, names.over_time)


def texts(item: object) -> Iterator[str]:
    """Every text in a plan; a program's own values, and what an author wrote, are left out."""
    if isinstance(item, str):
        yield item
    elif isinstance(item, Basic | Statement | Definition | Argument) or item is None:
        return
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from (*texts(key), *texts(value))
    elif isinstance(item, tuple | list | frozenset):
        for one in item:
            yield from texts(one)
    elif dataclasses.is_dataclass(item) and type(item).__module__.startswith("cellgen.schedule"):
        for field in dataclasses.fields(item):
            if field.name not in ("axes", "reason", "text"):  # as an interface names them, prose
                yield from texts(getattr(item, field.name))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)
def test_every_text_in_a_plan_is_a_name(cell: type[Cell]) -> None:
    """So no pass can have decided by what is spelled, and any dialect can spell it."""
    for plan in plans(cell):
        found = set(texts(plan))
        assert len(found) > 3
        assert {text for text in found if not re.fullmatch(r"\w*", text)} == set()


def faults(plan: DeviceTimePlan) -> str:
    with pytest.raises(DerivationError) as caught:
        verify_for_device(plan)
    assert caught.value.code == "schedule.verify"
    return str(caught.value)


def without_barrier(plan: DeviceTimePlan, number: int) -> DeviceTimePlan:
    """The plan without the barrier of one stage of its kernel over all steps."""
    tier = plan.tier.tier
    assert tier is not None
    stages = [
        replace(stage, barrier=stage.barrier and n != number) for n, stage in enumerate(tier.stages)
    ]
    return replace(plan, tier=replace(plan.tier, tier=replace(tier, stages=tuple(stages))))


NOT_NEEDED = {("gru_reset_before", "sequence_backward", 4)}
"""Of the last loop of a step: the next one's first loop has the same units in the same threads."""


@pytest.mark.parametrize("cell", [GRU, LSTM, GRUResetBefore], ids=lambda c: c.definition.name)
def test_a_barrier_that_is_dropped_is_found(cell: type[Cell]) -> None:
    dropped = 0
    for plan in plans(cell):
        tier = plan.tier.tier
        assert tier is not None
        for number, stage in enumerate(tier.stages):
            if stage.barrier and (plan.cell, plan.function, number) not in NOT_NEEDED:
                assert "without a barrier between" in faults(without_barrier(plan, number))
                dropped += 1
    assert dropped >= 3


STAGES = ("prologue", "ahead", "steps", "deferred", "epilogue")


@pytest.mark.parametrize("cell", [*CELLS, GRUBlockCell], ids=lambda c: c.definition.name)
def test_any_stage_that_is_left_out_is_found(cell: type[Cell]) -> None:
    """What it alone writes, a product of a sum, a block of a weight gradient."""
    lack = "not written before|never written|the sum of .* products|are written by products"
    for plan in plans(cell):
        for part in STAGES:
            stages = getattr(plan, part)
            for at in range(len(stages)):
                rest = (*stages[:at], *stages[at + 1 :])
                assert re.search(lack, faults(replace(plan, **{part: rest})))


def test_a_stage_that_comes_too_late_is_found() -> None:
    """What it writes is then read before it is written, in the first step."""
    for plan in plans(GRUResetBefore):
        assert len(plan.steps) >= 3
        turned = replace(plan, steps=(*plan.steps[1:], plan.steps[0]))
        assert re.search("which is not written before|the sum of", faults(turned))
    forward, _ = plans(LSTM)
    assert "not written before" in faults(replace(forward, ahead=()))
    assert "not written before" in faults(replace(forward, packed=()))


def test_a_sum_that_is_read_before_all_of_its_products_is_found() -> None:
    """The recurrent product of a step, where that of the inputs serves all steps; one of d_x."""
    forward, _ = plans(LSTM)
    (product,) = (stage for stage in forward.steps if isinstance(stage, DeviceProduct))
    assert product.onto
    rest = tuple(stage for stage in forward.steps if stage is not product)
    assert "is the sum of 1 of 2 products" in faults(replace(forward, steps=rest))
    _, backward = plans(GRU)
    assert isinstance(backward.deferred[-1], DeviceProduct)
    text = faults(replace(backward, deferred=backward.deferred[:-1]))
    assert "d_x, a result, is the sum of 1 of 3 products" in text


def test_launches_of_another_plan_are_found() -> None:
    """What the common plan forms is formed, and nothing else is."""
    for plan in plans(LSTM):
        part = plan.time.parts[-1]
        text = faults(
            replace(
                plan,
                time=replace(plan.time, parts=(*plan.time.parts[:-1], replace(part, stages=()))),
            )
        )
        assert f"a launch of {part.name} writes" in text
        both = replace(part, stages=(*part.stages, *plans(GRU)[plan.is_backward].stepped.stages))
        parts = (*plan.time.parts[:-1], both)
        text = faults(replace(plan, time=replace(plan.time, parts=parts)))
        assert f"no launch of {part.name} forms" in text


def test_rows_that_launches_do_not_find_are_reported() -> None:
    """A matrix over all steps whose rows may lie apart; steps without their strides."""
    for plan in plans(LSTM):
        apart = replace(plan, options=replace(plan.options, whole=()))
        assert "need not lie row after row" in faults(apart)
        assert "at strides" in faults(replace(plan, strides=()))


def test_an_array_that_is_not_reserved_or_is_twice_is_found() -> None:
    for plan in plans(GRU):
        last = plan.memory[-1]
        assert f"{last.name} is there 2 times" in faults(replace(plan, memory=(*plan.memory, last)))
        panel = plan.packed[-1].panel
        rest = tuple(array for array in plan.memory if array.name != panel)
        assert f"lies in {panel}, which is no array" in faults(replace(plan, memory=rest))
        refused = replace(plan, persistent=PersistentChoice(None, "planted"))
        assert "is of no channel" in faults(refused)


def test_a_part_without_work_in_its_steps_has_no_kernel_over_them() -> None:
    forward, _ = plans(Unread)
    assert not forward.steps
    assert forward.tier is not None
    assert forward.tier.reason == "no work is left in a step"


def test_a_kernel_that_is_refused_halfway_reserves_nothing() -> None:
    """LMU's input to its memory is read by all units; the states had their channels by then."""
    forward, _ = plans(LMU)
    assert "is read by threads of other units" in forward.persistent.reason
    assert all(array.extent.need is not NeededWhen.TOGETHER for array in forward.memory)


class WithConstant(Cell, name="with_constant"):
    """What is constant over time has a gradient: the shares of all steps, added up."""

    x, a = Input(H), Static(H, gradient=True)
    h_prev = State(H)
    h = tanh(a * h_prev + x)
    outputs = (h,)


def test_a_constant_without_its_gradient_is_found() -> None:
    _, backward = plans(WithConstant)
    assert isinstance(backward.deferred[-1], StepsShare)
    text = faults(replace(backward, deferred=backward.deferred[:-1]))
    assert "d_a, a result, is never written" in text


def test_gradients_of_constants_are_added_up_in_the_order_of_the_programs() -> None:
    """Not in that in which stages of the common plan happen to name them."""
    _, backward = plans(Contexts)
    shares = [stage.buffer.value for stage in backward.deferred if isinstance(stage, StepsShare)]
    assert len(shares) > 1
    assert tuple(shares) == backward.options.programs.contexts


def test_a_result_of_one_step_alone_is_found() -> None:
    """An output over time that every step writes to the rows of the last one."""
    forward, _ = plans(MLSTM)

    def at_last(stage: StepStage) -> StepStage:
        if not isinstance(stage, DeviceLoop):
            return stage
        places = {
            buffer: replace(place, source=replace(place.source, at=Moment.LAST))
            if buffer.name == "h" and isinstance(place.source, RowsOfArray)
            else place
            for buffer, place in stage.places.items()
        }
        return replace(stage, places=places)

    steps = tuple(map(at_last, forward.steps))
    assert steps != forward.steps
    assert "h, a result, is never written" in faults(replace(forward, steps=steps))


PACKED = (GRU, LSTM, MLSTM, SLSTMHeads, LRU, MinGRU)


def test_weights_that_are_not_packed_are_found() -> None:
    """One copy less, whatever else lies in the panel."""
    dropped = 0
    for plan in (plan for cell in PACKED for plan in plans(cell)):
        for number, copy in enumerate(plan.packed):
            rest = (*plan.packed[:number], *plan.packed[number + 1 :])
            text = faults(replace(plan, packed=rest))
            assert f"reads {copy.source.view} in {copy.panel}, which is not written before" in text
            dropped += 1
    assert dropped >= 40


@pytest.mark.parametrize("cell", [LSTM, SLSTMHeads], ids=lambda c: c.definition.name)
def test_weights_that_are_packed_elsewhere_are_found(cell: type[Cell]) -> None:
    """In the place of those of another gate, or the weights of another gate in theirs."""
    forward, _ = plans(cell)
    first, second = forward.packed[-2:]
    place = replace(second, above=first.above, beside=first.beside, slot=first.slot)
    assert "share entries of" in faults(replace(forward, packed=(*forward.packed[:-1], place)))
    wrong = replace(second, source=first.source)
    text = faults(replace(forward, packed=(*forward.packed[:-1], wrong)))
    assert f"reads {second.source.view} in" in text


def moved(product: DeviceProduct, by: int) -> DeviceProduct:
    """The product with its sums so many slots further."""
    place = product.sums.place
    assert isinstance(place.source, RowsOfArray)
    column = place.source.column + by * product.width
    source = replace(place.source, column=column)
    return replace(product, sums=replace(product.sums, place=replace(place, source=source)))


def test_what_is_overwritten_while_it_is_live_is_found() -> None:
    """Sums of one product where those of another wait to be read."""
    forward, _ = plans(GRU)
    ahead = forward.ahead[-1]
    product = next(stage for stage in forward.steps if isinstance(stage, DeviceProduct))
    assert isinstance(ahead, DeviceProduct)
    steps = tuple(moved(s, -1) if s is product else s for s in forward.steps)
    assert re.search("overwritten by|not written before", faults(replace(forward, steps=steps)))
    late = replace(forward, ahead=(*forward.ahead, moved(ahead, 1)))
    assert "which is overwritten by" in faults(late)


@pytest.mark.parametrize("wrong", [Moment.NOW, Moment.BEFORE])
def test_a_gradient_that_is_read_at_another_step_is_found(wrong: Moment) -> None:
    _, backward = plans(LSTM)

    def at(stage: object) -> object:
        if not isinstance(stage, DeviceLoop):
            return stage
        places = {
            buffer: replace(place, source=replace(place.source, at=wrong, by_turns=False))
            if isinstance(place.source, RowsOfArray) and place.source.at is Moment.AFTER
            else place
            for buffer, place in stage.places.items()
        }
        return replace(stage, places=places)

    steps = tuple(map(at, backward.steps))
    assert steps != backward.steps
    assert "which is not written before" in faults(replace(backward, steps=steps))  # type: ignore[arg-type]


def test_threads_of_a_stream_read_nothing_that_another_writes() -> None:
    """A loop that reads other units of the state before a step can be no stream."""
    forward, _ = plans(MinGRU)
    tier = forward.tier.tier
    assert tier is not None
    (stage,) = tier.stages
    assert isinstance(stage.work, TierLoop)
    whole = replace(stage.work, in_registers=frozenset())
    loads = tuple(
        replace(load, view=replace(load.view, start=(Integer(0), Integer(1))))
        for load in whole.loop.loads
    )
    loop = replace(whole.loop, loads=loads)
    work = replace(whole, stage=replace(whole.stage, loop=loop))
    stages = (replace(stage, work=work),)
    plan = replace(forward, tier=replace(forward.tier, tier=replace(tier, stages=stages)))
    assert "without a barrier between" in faults(plan)


def test_a_plan_prints_every_stage() -> None:
    forward, backward = plans(LSTM)
    text = str(forward)
    assert "all steps at once: x @ [w_i, w_f, w_g, w_o]" in text
    assert "from h at the step before, first h_prev, or h_prev_before where steps may be" in text
    assert "after all steps" in str(backward)
