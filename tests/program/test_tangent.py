"""The tangent of a cell is a cell: what it declares, what it computes, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import cellgen
from cellgen import (
    Bias,
    Cell,
    DeclarationError,
    H,
    I,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    activation,
    clip,
    concat,
    relu,
    split,
    stop_gradient,
    tangent,
    tanh,
    where,
)
from cellgen.cells import (
    GRU,
    LIF,
    LSTM,
    Elman,
    GRUBlockCell,
    GRUResetBefore,
    LayerNormGRU,
    LayerNormLSTM,
    LSTMBlockCell,
)
from cellgen.language.ops import Form
from cellgen.language.value import Role
from cellgen.pipeline import generate, programs_of, recurrence, sequence_of, time_plans
from cellgen.program.chunks import form_over_time
from cellgen.program.derive import forward
from cellgen.program.interpret import interpret
from cellgen.program.over_time import unroll
from cellgen.program.transforms.tangent import directions_of
from cellgen.proof.check import check
from cellgen.regularise import masks_of, variational_dropout, zoneout
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.plan import GroupPlan
from cellgen.schedule.over_time import products_together
from cellgen.schedule.schedule import Product
from tests.conftest import (
    CELLS,
    SIZES,
    VARIANTS,
    Arrays,
    directional,
    draw,
    relative,
)
from tests.cover import each_of, of_equations

ACCURACY = 1e-13
"""Complex step has no error of its own: what is left is the rounding of sums in another order."""

every_one = pytest.mark.parametrize(
    "cell", [*each_of(of_equations), *VARIANTS], ids=lambda cell: cell.definition.name
)


def moved(cell: type[Cell], made: type[Cell], seed: int = 0) -> tuple[Arrays, Arrays, Arrays]:
    """Random arguments of a cell, directions by the names of what moves, and by those of dots."""
    declared = forward(cell.definition).arguments
    given = {**draw(cell.definition.declared, seed), **draw(declared, seed)}
    names = directions_of(made)
    moving = [v for v in cell.definition.declared if str(v.name) in names]
    along = draw(moving, seed + 1)
    return given, along, {names[name]: array for name, array in along.items()}


def derivatives_agree(cell: type[Cell], made: type[Cell]) -> None:
    """Compare what a tangent returns with the complex step of its cell."""
    given, along, dots = moved(cell, made)
    base = forward(cell.definition)
    expected = directional(base, given, along)
    found = interpret(programs_of(made)["forward"], {**given, **dots}, SIZES)
    plain = interpret(base, given, SIZES)
    for output in cell.definition.outputs:
        name = str(output.name)
        assert relative(found[name], plain[name]) < ACCURACY
        assert relative(found[directions_of(made)[name]], expected[name]) < ACCURACY, name


@every_one
def test_a_tangent_computes_the_directional_derivative(cell: type[Cell]) -> None:
    derivatives_agree(cell, tangent(cell))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)
def test_a_tangent_along_some_values_takes_no_other_directions(cell: type[Cell]) -> None:
    definition = cell.definition
    inputs = definition.learning(Role.INPUT)
    by = [str(v.name) for v in (*inputs, *definition.states)]
    made = tangent(cell, by=by)
    declared = {str(value.name) for value in made.definition.declared}
    own = {str(value.name) for value in definition.declared}
    assert declared - own == {f"dot_{name}" for name in by} & declared
    derivatives_agree(cell, made)


@pytest.mark.parametrize("cell", [GRU, LSTMBlockCell, GRUBlockCell], ids=lambda c: c.__name__)
def test_states_follow_a_weight_that_moves(cell: type[Cell]) -> None:
    weight = str(cell.definition.parameters[0].name)
    made = tangent(cell, by=weight)
    assert {f"dot_{weight}", *(f"dot_{s.name}" for s in cell.definition.states)} <= {
        str(v.name) for v in made.definition.declared
    }
    derivatives_agree(cell, made)


def test_the_tangent_of_a_tangent_is_the_second_derivative() -> None:
    first = tangent(Elman)
    second = tangent(first)
    assert directions_of(second)["x"] == "dot2_x"
    assert directions_of(second)["dot_x"] == "dot2_dot_x"
    derivatives_agree(first, second)
    derivatives_agree(second, tangent(second, by="h_prev"))


def test_directions_never_have_a_name_of_the_cell() -> None:
    class Dotted(Cell):
        x, dot_h_prev, w = Input(H), State(H), Weight(H, H)
        dot_h = tanh(x @ w + dot_h_prev)

    made = tangent(Dotted)
    assert directions_of(made) == {
        "x": "dot2_x",
        "dot_h_prev": "dot2_dot_h_prev",
        "w": "dot2_w",
        "dot_h": "dot2_dot_h",
    }
    derivatives_agree(Dotted, made)


def test_equations_of_a_tangent_read_like_those_of_its_cell() -> None:
    assert [str(e) for e in tangent(Elman).definition.equations] == [
        "h_bar = x @ w + h_prev @ u + b",
        "h = tanh(h_bar)",
        "dot_h_bar = x @ dot_w + h_prev @ dot_u + dot_x @ w + dot_h_prev @ u + dot_b",
        "dot_h = (1 - h**2) * dot_h_bar",
    ]


@every_one
def test_a_tangent_is_of_the_class_of_its_cell(cell: type[Cell]) -> None:
    """But for a memory: its tangent reads the whole matrix at every step."""
    one, both = recurrence(cell), recurrence(tangent(cell))
    is_memory = bool(form_over_time(cell.definition).memories)
    assert both.kind == one.kind or is_memory
    assert both.levels == one.levels


def test_the_same_tangent_is_the_same_class() -> None:
    assert tangent(GRU) is tangent(GRU)
    assert tangent(GRU, by=("h_prev", "x")) is tangent(GRU, by=[GRU.x, GRU.h_prev])
    assert tangent(GRU).definition.name == "gru_tangent"
    assert tangent(GRU, by="x").definition.name == "gru_tangent_by_x"
    assert tangent(GRU, name="mine").definition.name == "mine"
    assert cellgen.tangent is tangent


class Everything(Cell):
    """Each role, with and without a gradient, and what declares its own derivative."""

    x, veil, h_prev = Input(I), Input(H, gradient=False), State(H)
    context, drop = Static(H, gradient=True), Static(H)
    rate, fixed = Scalar(0.5, gradient=True), Scalar(0.25)
    w, u, b = Weight(I, H), Weight(H, H, gradient=False), Bias(H)

    a = clip(x @ w * veil + h_prev @ u, -0.1, 0.1, gradient="straight_through")
    h = rate * tanh(a + context * drop) + fixed * stop_gradient(h_prev) * b + relu(h_prev)


def test_only_what_has_a_gradient_moves_unless_it_is_named() -> None:
    names = directions_of(tangent(Everything))
    assert set(names) == {"x", "h_prev", "context", "rate", "w", "b", "h"}
    derivatives_agree(Everything, tangent(Everything))
    named = tangent(Everything, by=("veil", "drop", "fixed", "u"))
    assert set(directions_of(named)) == {"veil", "drop", "fixed", "u", "h_prev", "h"}
    assert {str(v.name) for v in named.definition.fixed} >= {"dot_veil", "dot_drop", "dot_u"}
    derivatives_agree(Everything, named)


def test_defaults_and_starts_of_directions_are_0() -> None:
    class Late(Cell):
        x, h_prev, rate = Input(H), State(H, initial=1.0), Scalar(0.5, gradient=True)
        h = rate * h_prev + x

    definition = tangent(Late).definition
    assert definition.defaults == {"rate": 0.5, "dot_rate": 0.0}
    assert definition.initials == {"h_prev": 1.0}


def test_an_output_that_stands_still_has_the_derivative_0() -> None:
    class Counter(Cell):
        x, n_prev, h_prev, w = Input(I), State(H), State(H), Weight(I, H)
        n = where(n_prev > 3, 0, n_prev + 1)
        h = tanh(x @ w + h_prev)
        gate = where(h > 0, 1, 0)
        outputs = h, n, gate

    made = tangent(Counter, by="x")
    assert set(directions_of(made)) == {"x", "h_prev", "h", "n", "gate"}
    derivatives_agree(Counter, made)
    generate(made, ("c",))


def test_a_direction_that_is_spread_over_rows_has_the_shape_of_its_value() -> None:
    class Spread(Cell):
        x, h_prev, u, b = Input(H), State(H), Weight(H, H), Bias(H)
        a = x + b
        h = tanh(a @ u + h_prev)
        outputs = h, a

    made = tangent(Spread, by="b")
    derivatives_agree(Spread, made)
    generate(made, ("c",))


def test_heads_that_stand_still_are_joined_to_heads_that_move() -> None:
    class InHeads(Cell):
        x, h_prev, k = Input(2, I, gradient=False), State(H), Scalar(0.5, gradient=True)
        still, moving = tanh(x), x * k
        j = concat(still, moving)
        h = tanh(h_prev)
        outputs = h, j

    made = tangent(InHeads)
    derivatives_agree(InHeads, made)
    generate(made, ("c",))


def test_what_stands_still_beside_what_moves_costs_no_product() -> None:
    class Joined(Cell):
        x, h_prev, w = Input(I), State(H), Weight(I + H, H)
        joined = concat(x, h_prev)
        h = tanh(joined @ w)
        outputs = h, joined

    made = tangent(Joined, by="h_prev")
    derivatives_agree(Joined, made)
    program = programs_of(made)["forward"]
    products = [s for s in program.statements if s.traits.is_product]
    assert len(products) == 3  # x w, h w and dot_h w
    generate(made, ("c",))


def test_own_activations_follow_their_declared_derivatives() -> None:
    softsign = activation(
        "softsign_of_tangents",
        numpy=lambda x: x / (1 + np.sqrt(x * x)),
        c="{0} / (1 + cg_abs({0}))",
        derivative=lambda y, x: 1 / (1 + abs(x)) ** 2,
    )

    class Soft(Cell):
        x, h_prev, w = Input(I), State(H), Weight(I, H)
        h = softsign(x @ w + h_prev)

    derivatives_agree(Soft, tangent(Soft))
    derivatives_agree(tangent(Soft), tangent(tangent(Soft)))


@pytest.mark.parametrize("regularised", [variational_dropout, zoneout], ids=lambda f: f.__name__)
def test_a_regularised_cell_has_a_tangent_with_its_masks(regularised) -> None:  # type: ignore[no-untyped-def]
    cell = regularised(LSTM)
    made = tangent(cell)
    assert masks_of(made) == masks_of(cell)
    assert not any("mask" in name or "keep" in name for name in directions_of(made))
    derivatives_agree(cell, made)


def test_gradients_that_an_author_lists_come_with_those_of_directions() -> None:
    class Listed(Cell):
        x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, H)
        a = x @ w + h_prev @ u
        h = tanh(a)
        gradients = h_prev, a

    listed = tangent(Listed).definition.gradients
    assert listed is not None
    assert [str(v.name) for v in listed] == ["h_prev", "a", "dot_h_prev", "dot_a"]


def test_surrogate_slopes_are_followed() -> None:
    derivatives_agree(LIF, tangent(LIF))


WRONG: Mapping[str, tuple[object, str]] = {
    "unknown": (("x", "h"), "by lists h; the cell declares x, h_prev, w, u, b"),
    "number": ((3,), "an entry of by is 3, expected its name"),
    "no names": (5, "by is 5, expected names, in a tuple"),
    "empty": ((), "by is empty, expected names among x, h_prev, w, u, b"),
}


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_cannot_move_is_refused_by_name(wrong: str) -> None:
    by, message = WRONG[wrong]
    with pytest.raises(DeclarationError) as caught:
        tangent(Elman, by=by)  # type: ignore[arg-type]
    assert f"tangent(Elman): {message}" in str(caught.value)
    assert "test_tangent.py" in str(caught.value)


def test_a_value_without_derivative_is_refused_where_it_is_named() -> None:
    class Stopped(Cell):
        x, h_prev, w = Input(H), State(H), Weight(H, H)
        h = tanh(stop_gradient(x) @ w + h_prev)

    assert "x" not in directions_of(tangent(Stopped))
    with pytest.raises(DeclarationError, match=r"tangent\(Stopped\): no output has a derivative"):
        tangent(Stopped, by=("x", "w"))
    with pytest.raises(DeclarationError, match="Elman is no tangent of a cell"):
        directions_of(Elman)


def test_a_part_of_a_split_may_stand_still_where_the_whole_moves() -> None:
    class Gated(Cell):
        x, h_prev, w = Input(H), State(H), Weight(H, 2 * H)
        p, q = split(x @ w, 2)
        h = where(p > 0.25, h_prev, tanh(q))

    derivatives_agree(Gated, tangent(Gated))
    rows = [row for row in check(tangent(Gated)).rows if row.verdict != "skipped"]
    assert len(rows) > 5
    assert [row.name for row in rows if not row.ok] == []


# --- plans ---------------------------------------------------------------------------------------

PLANNED = (Elman, GRU, GRUResetBefore, LSTM, LayerNormGRU, LayerNormLSTM)
planned_cell = pytest.mark.parametrize("cell", PLANNED, ids=lambda cell: cell.__name__)


def passes(cell: type[Cell]) -> dict[str, tuple[int, int]]:
    """How many products each part over time has, and in how many passes they are formed."""
    schedule = sequence_of(cell)
    found = {}
    for name in ("forward", "reverse", "deferred"):
        part = getattr(schedule, name)
        products = sum(s.traits.is_product for s in part.function.program.statements)
        groups = [stage for stage in part.stages if isinstance(stage, Group)]
        outer = [run for run in products_together(part.stages) if isinstance(run[0], Product)]
        found[name] = (products, len(groups) + len(outer))
    return found


@planned_cell
def test_a_tangent_has_three_products_for_one_in_as_many_passes(cell: type[Cell]) -> None:
    own, both = passes(cell), passes(tangent(cell))
    own["deferred"] = (own["deferred"][0], own["deferred"][1] + 1)  # d_dot_x may be left out
    states = [str(state.name) for state in cell.definition.states]
    inputs = passes(tangent(cell, by=("x", *states)))
    for part, (products, together) in own.items():
        assert both[part] == (3 * products, together), part
        assert inputs[part] == (2 * products, together), part


@planned_cell
def test_a_tangent_saves_at_most_twice_what_its_cell_does(cell: type[Cell]) -> None:
    own, both = unroll(cell.definition), unroll(tangent(cell).definition)
    outputs = len(cell.definition.outputs)
    assert len(both.saved) <= 2 * len(own.saved) + outputs


def test_what_a_second_derivative_does_not_need_can_be_left_out() -> None:
    (backward,) = (p for p in time_plans(tangent(GRU)) if p.backward)
    stages = [stage for part in backward.parts for stage in part.stages]
    wants = [stage.wants for stage in stages if isinstance(stage, GroupPlan)]
    assert wants == [(), ("d_dot_x",), ("d_x",)]


def test_neighbouring_products_of_one_kind_read_operands_once() -> None:
    deferred = sequence_of(tangent(GRU)).deferred
    kinds = [
        s.traits.product and s.traits.product.form for s in deferred.function.program.statements
    ]
    assert kinds == sorted(kinds, key=(None, Form.TN, Form.NT).index)


class LongNames(Cell):
    """Names of more than forty letters."""

    x, w, h_prev = Input(I), Weight(I, H), State(H)
    a_state_whose_name_goes_on_and_on_and_on_and_on_prev = State(H)

    a_state_whose_name_goes_on_and_on_and_on_and_on = (
        0.5 * a_state_whose_name_goes_on_and_on_and_on_and_on_prev + x @ w
    )
    h = tanh(a_state_whose_name_goes_on_and_on_and_on_and_on + h_prev)


def test_names_of_states_stay_whole():
    states = tangent(LongNames).definition.states
    assert "dot_a_state_whose_name_goes_on_and_on_and_on_and_on_prev" in map(str, states)
    gradients = generate(LongNames)
    assert "d_a_state_whose_name_goes_on_and_on_and_on_and_on_prev" in str(gradients)


class PassedOn(Cell):
    """Outputs that move as an input and a static do: their derivative is stated as 1."""

    x, s, h_prev = Input(H), Static(H, gradient=True), State(H)

    y = clip(x, -0.5, 0.75, gradient="straight_through")
    z = clip(s, -0.5, 0.75, gradient="straight_through")
    h = tanh(h_prev + x)
    outputs = h, y, z


def test_an_output_that_moves_as_a_direction_does_is_a_value_of_its_own() -> None:
    moving = cellgen.tangent(PassedOn)
    forward_of_it, _ = programs_of(moving).mathematics
    sizes = {"B": 2, "H": 3}
    drawn = np.random.default_rng(0).normal(size=(len(forward_of_it.arguments), 2, 3))
    arguments = dict(zip((str(v.name) for v in forward_of_it.arguments), drawn, strict=True))
    found = interpret(forward_of_it, arguments, sizes)
    np.testing.assert_array_equal(found["dot_y"], arguments["dot_x"])
    np.testing.assert_array_equal(found["dot_z"], arguments["dot_s"])
