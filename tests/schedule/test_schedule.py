"""Schedules of single steps: what is planned, and what the verifier rejects."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

from cellgen import Cell, Dim, H, I, Input, State, Weight, concat, split, tanh
from cellgen.cells import AntisymmetricRNN, GRUBlockCell
from cellgen.errors import DerivationError
from cellgen.pipeline import schedule_of, sequence_of
from cellgen.program.ssa import Statement
from cellgen.proof.check import check
from cellgen.schedule import Access, BufferKind, Loop, PlannedFunction, Product, Schedule, Store
from cellgen.schedule.groups import Group
from tests.conftest import SLSTM, LayerNormGRU, Softmax, every_cell

K = Dim("K")


def function(schedule: Schedule, name: str) -> PlannedFunction:
    return next(f for f in schedule.functions if f.name == name)


def products(planned: PlannedFunction) -> list[Product]:
    return [stage for stage in planned.stages if isinstance(stage, Product)]


def loops(planned: PlannedFunction) -> list[Loop]:
    return [stage for stage in planned.stages if isinstance(stage, Loop)]


@every_cell
def test_steps_of_every_cell_are_scheduled_and_verified(cell: type[Cell]) -> None:
    schedule = schedule_of(cell)
    schedule.verify()
    assert str(schedule).startswith(f"{cell.definition.name} {schedule.digest}")
    for planned in schedule.functions:
        results = {str(buffer.value) for buffer in planned.of_kind(BufferKind.RESULT)}
        assert results == {str(result) for result in planned.program.results}


def test_what_lies_at_another_place_of_a_value_is_read_in_a_later_loop() -> None:
    class Shifted(Cell):
        x, y, p_prev, q_prev = Input(H), Input(K), State(K), State(H)
        joined = concat(tanh(x) + q_prev, tanh(y) + p_prev)
        one, two = split(joined, (K, H))
        p, q = tanh(one) * p_prev, tanh(two) * q_prev

    for planned in schedule_of(Shifted).functions:
        planned.verify()
    planned = function(schedule_of(Shifted), "forward")
    reader = next(loop for loop in loops(planned) if any(s.target.name == "p" for s in lines(loop)))
    assert not {"joined"} & {line.view.buffer.name for line in reader.lines if line.view}
    merged = replace(
        planned,
        stages=tuple(
            replace(stage, lines=(*stage.lines, *reader.lines), loads=(*stage.loads, *reader.loads))
            if isinstance(stage, Loop) and stage is not reader
            else stage
            for stage in planned.stages
        ),
    )
    with pytest.raises(DerivationError, match="is read in the loop that writes joined"):
        merged.verify()


def lines(loop: Loop) -> list[Statement]:
    return [line.statement for line in loop.lines]


def test_gru_block_cell_has_as_many_products_and_loops_as_it_needs() -> None:
    schedule = schedule_of(GRUBlockCell)
    counts = {f.name: (len(products(f)), len(loops(f))) for f in schedule.functions}
    assert counts == {"forward": (4, 2), "backward": (4, 3), "weight_gradients": (4, 2)}
    backward = function(schedule, "backward")
    # x and the biases are not read; nothing but two products waits in memory.
    assert [str(b) for b in backward.of_kind(BufferKind.WORKSPACE)] == [
        "workspace d_h_prev_r (B, H)",
        "workspace d_h_prev_1 (B, H)",
    ]


def test_parts_and_concatenations_cost_no_copy() -> None:
    backward = function(schedule_of(GRUBlockCell), "backward")
    written = {
        str(line.view)
        for loop in loops(backward)
        for line in loop.lines
        if line.store is Store.WRITE
    }
    halves = {"d_r_bar_u_bar[:B, :H]", "d_r_bar_u_bar[:B, H:2*H]"}
    assert written == {"d_c_bar", "d_h_prev", *halves}
    assert not any(b.name.endswith("_copy") for b in backward.buffers)


def test_gates_of_a_slstm_are_computed_in_one_loop() -> None:
    forward = function(schedule_of(SLSTM), "forward")
    assert len(loops(forward)) == 1
    kept = [line for line in loops(forward)[0].lines if line.store is Store.LOCAL]
    assert {"z", "o", "i", "f", "log_f"} <= {str(line.statement.target) for line in kept}


def test_reductions_over_units_end_a_loop() -> None:
    forward = function(schedule_of(LayerNormGRU), "forward")
    stores = [line.store for loop in loops(forward) for line in loop.lines]
    assert stores.count(Store.ADD_UNITS) == 2
    rows = {
        load.access
        for loop in loops(function(schedule_of(Softmax), "forward"))
        for load in loop.loads
    }
    assert {Access.ROW, Access.SCALAR, Access.ELEMENT} <= rows


def test_verifier_rejects_reading_before_writing_and_missing_results() -> None:
    forward = function(schedule_of(GRUBlockCell), "forward")
    with pytest.raises(DerivationError, match="is read before it is written") as caught:
        replace(forward, stages=tuple(reversed(forward.stages))).verify()
    assert caught.value.code == "schedule.verify"
    with pytest.raises(DerivationError, match=r"gru_block_cell\.forward: .*c, h is never written"):
        replace(forward, stages=forward.stages[:-1]).verify()


def test_transposed_weights_are_read_where_they_lie() -> None:
    forward = function(schedule_of(AntisymmetricRNN), "forward")
    assert [str(b) for b in forward.of_kind(BufferKind.WORKSPACE)] == [
        "workspace a (H, H)",
        "workspace x_w_h_prev (B, H)",
    ]
    transposed = [x for loop in loops(forward) for x in loop.loads if x.access is Access.COLUMN]
    assert [str(load.view) for load in transposed] == ["u.T"]


def test_wholes_that_are_read_in_the_phase_in_which_their_parts_are_formed() -> None:
    class Whole(Cell):
        x, h_prev, w = Input(I), State(2 * H), Weight(I, 2 * H)
        y = x @ w
        a, b = split(y, 2)
        h = y + h_prev * tanh(y)
        outputs = a, b, h, y
        gradients = x, h_prev, a, b, y

    schedule_of(Whole)


def test_a_level_of_more_products_than_a_tile_has_slots_is_computed() -> None:
    """Nine and more on one operand: panels of eight slots and of what is left."""

    def body(own: dict[str, object]) -> None:
        own["x"], own["h_prev"] = Input(I), State(H)
        terms = []
        for number in range(17):
            own[f"w_{number}"], own[f"u_{number}"] = Weight(I, H), Weight(H, H)
            drive = own["x"] @ own[f"w_{number}"] + own["h_prev"] @ own[f"u_{number}"]
            terms.append(tanh(drive))
        own["h"] = sum(terms[1:], terms[0]) / 17

    wide = types.new_class("Wide", (Cell,), {}, body)
    (group,) = [s for s in sequence_of(wide).forward.stages if isinstance(s, Group)]
    assert [[len(run) for run in term.runs] for term in group.terms] == [[8, 8, 1], [8, 8, 1]]
    report = check(wide)
    assert report.ok, str(report)
