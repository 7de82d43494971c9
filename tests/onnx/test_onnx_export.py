"""Exported models give what the kernel gives, as onnxruntime runs them."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
import cellgen.onnx
from cellgen import Cell, H, I, Input, State, Static, Weight, activation, tanh
from cellgen.cells import (
    CIFG,
    GRU,
    LSTM,
    MGU,
    SHIPPED,
    SLSTM,
    Elman,
    GRUBlockCell,
    Hawk,
    LSTMPeephole,
)
from cellgen.cells.keras import keras_gru, keras_lstm, keras_simple_rnn
from cellgen.errors import ArgumentError, UsageError
from cellgen.proof.over_time import run_steps
from tests.conftest import RunningHeads, RunningUnits
from tests.onnx.sessions import LENGTHS, SIZES, Drawn, difference, dims_of, draw, operators, run

BARS = {"float32": 4e-6, "float64": 6e-15}
"""Of the largest entry, over five steps: both sides round each step, in other orders. The memory of
the LMU, a sum of large terms, is the worst: 1.4e-6 and 2.7e-15, else 4.5e-7 and 7.3e-16."""


def kernel_results(cell, drawn, lengths=None, reverse=False):
    options = {"lengths": lengths} if lengths is not None else {}
    kernel = cellgen.load(cell.definition.name)
    found = kernel.sequence_forward(**drawn.every, **options, reverse=reverse, threads=1)
    finals = [f"{cell.definition.next_state(s).name}_last" for s in cell.definition.states]
    names = [*(str(v.name) for v in cell.definition.outputs), *finals]
    return {name: getattr(found, name) for name in names}


def worst(found, expected):
    return max(difference(array, expected[name]) for name, array in found.items())


@pytest.mark.parametrize("cell", [GRU, MGU], ids=lambda cell: cell.definition.name)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_model_gives_what_the_kernel_gives_for_any_number_of_steps_and_rows(cell, direction):
    weights = draw(cell).of("float32").weights
    model = cellgen.onnx.export(cell, weights, direction=direction, lengths=True)
    for steps, rows in ((5, 3), (1, 1), (7, 2)):
        drawn = Drawn(weights, draw(cell, T=steps, B=rows).of("float32").rest)
        lengths = np.minimum(np.resize(LENGTHS, rows), steps)
        found = run(model, {**drawn.rest, "sequence_lens": lengths.astype(np.int32)})
        expected = kernel_results(cell, drawn, lengths, direction == "reverse")
        assert worst(found, expected) < BARS["float32"]
        assert found["h"].shape == (steps, rows, SIZES["H"])


@pytest.mark.slow
@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
@pytest.mark.parametrize("dtype", BARS)
@pytest.mark.parametrize("form", ["auto", "scan"])
def test_every_cell_that_ships_gives_what_its_kernel_gives(cell, dtype, form, record_property):
    drawn, largest = draw(cell).of(dtype), 0.0
    if cell is Hawk and dtype == "float64":  # docs/how-to/onnx.md says so
        model = cellgen.onnx.export(cell, drawn.weights, dims=dims_of(cell), dtype=dtype, form=form)
        with pytest.raises(Exception, match="Could not find an implementation for Erf"):
            run(model, drawn.rest)
        return
    for direction in ("forward", "reverse"):
        for lengths in (None, LENGTHS):
            has = lengths is not None
            model = cellgen.onnx.export(
                cell, drawn.weights, dims=dims_of(cell), dtype=dtype, direction=direction,
                lengths=has, form=form,
            )  # fmt: skip
            given = {"sequence_lens": LENGTHS.astype(np.int32)} if has else {}
            expected = kernel_results(cell, drawn, lengths, direction == "reverse")
            largest = max(largest, worst(run(model, {**drawn.rest, **given}), expected))
    record_property("largest", largest)
    print(f"largest difference {cell.definition.name} {dtype} {form} {largest:.1e}")
    assert largest < BARS[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
def test_both_directions_with_weights_as_inputs_from_where_states_start(cell):
    forward, back = draw(cell).of("float32"), draw(cell, seed=1).of("float32")
    model = cellgen.onnx.export(cell, direction="bidirectional", dims=dims_of(cell), initial=False)
    states = {str(state.name): state for state in cell.definition.states}
    steps = {n: a for n, a in forward.rest.items() if n not in states}
    weights = {**forward.weights, **{f"{n}_reverse": a for n, a in back.weights.items()}}
    scalars = {n: np.asarray(a, np.float32) for n, a in cell.definition.defaults.items()}
    scalars |= {f"{n}_reverse": a for n, a in scalars.items()}
    found = run(model, {**steps, **weights, **scalars})
    start = {
        name: np.full_like(forward.rest[name], cell.definition.initial_of(state))
        for name, state in states.items()
    }
    for place, drawn in enumerate((forward, back)):
        own = type(drawn)(drawn.weights, {**steps, **start})
        expected = kernel_results(cell, own, reverse=bool(place))
        for name, array in found.items():
            mine = array[place] if name.endswith("_last") else array[:, place]
            assert difference(mine, expected[name]) < BARS["float32"], name


@pytest.mark.parametrize(
    ("cell", "operator"),
    [
        (Elman, "RNN"),
        (GRU, "GRU"),
        (GRUBlockCell, "GRU"),
        (LSTM, "LSTM"),
        (LSTMPeephole, "LSTM"),
        (keras_lstm("softsign", "hard_sigmoid"), "LSTM"),
        (keras_gru("linear", "softplus"), "GRU"),
        (keras_simple_rnn("relu"), "RNN"),
        (CIFG, "Scan"),
        (MGU, "Scan"),
        (SLSTM, "Scan"),
    ],
    ids=lambda item: item if isinstance(item, str) else item.definition.name,
)
def test_a_cell_is_an_operator_of_onnx_where_it_is_exactly_that(cell, operator):
    model = cellgen.onnx.export(cell, draw(cell).weights)
    assert operators(model) == [operator]
    assert operators(cellgen.onnx.export(cell, dims=dims_of(cell))) == ["Scan"]


def test_the_reset_of_a_gru_stands_where_the_cell_has_it():
    for cell, after in ((GRU, 1), (GRUBlockCell, 0)):
        model = cellgen.onnx.export(cell, draw(cell).weights)
        (node,) = [node for node in model.graph.node if node.op_type == "GRU"]
        found = {a.name: a.i for a in node.attribute}
        assert found["linear_before_reset"] == after


def test_operator_and_scan_of_one_cell_agree_in_both_directions():
    weights = [draw(LSTMPeephole, seed).of("float32").weights for seed in (0, 1)]
    drawn = draw(LSTMPeephole).of("float32")
    given = {**drawn.rest, **{n: np.stack([drawn.rest[n]] * 2) for n in ("h_prev", "c_prev")}}
    found = [
        run(cellgen.onnx.export(LSTMPeephole, weights, direction="bidirectional", form=form), given)
        for form in ("standard", "scan")
    ]
    assert found[0].keys() == {"h", "h_last", "c_last"}
    assert worst(found[0], found[1]) < BARS["float32"]
    assert found[0]["h"].shape == (5, 2, 3, 6)


def test_a_state_over_time_that_the_operator_does_not_give_makes_a_scan():
    weights = draw(LSTM).weights
    model = cellgen.onnx.export(LSTM, weights, outputs=["h", "c"])
    assert operators(model) == ["Scan"]
    with pytest.raises(UsageError, match="ONNX's LSTM gives h alone over time"):
        cellgen.onnx.export(LSTM, weights, outputs=["c"], form="standard")


def test_a_static_and_an_activation_of_ones_own_are_exported():
    softsign = activation(
        "softsign_for_onnx",
        numpy=lambda x: x / (1 + np.abs(x)),
        derivative=lambda y, x: 1 / (1 + abs(x)) ** 2,
        c="{0} / (1.0 + cg_abs({0}))",
    )

    class Own(Cell):
        x, h_prev, kept = Input(I), State(H), Static(H)
        w, u = Weight(I, H), Weight(H, H)
        h = kept * softsign(x @ w + h_prev @ u)

    drawn = draw(Own).of("float32")
    found = run(cellgen.onnx.export(Own, drawn.weights), drawn.rest)
    h = drawn.rest["h_prev"]
    for step, x in enumerate(drawn.rest["x"]):
        bar = x @ drawn.weights["w"] + h @ drawn.weights["u"]
        h = drawn.rest["kept"] * bar / (1 + np.abs(bar))
        assert difference(found["h"][step], h) < BARS["float32"]


def test_an_activation_in_c_alone_says_what_to_write():
    cube = activation(
        "cube_for_onnx", numpy=lambda x: x**3, derivative=lambda y, x: 3 * x**2,
        c="{0} > 0 ? 1 : {0}",
    )  # fmt: skip

    class InC(Cell):
        x, h_prev = Input(H), State(H)
        h = tanh(x + cube(h_prev))

    with pytest.raises(UsageError, match=r"in_c: .* no form in ONNX; write .*cg_where"):
        cellgen.onnx.export(InC, dims={"H": 2})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "weights lack w_z"),
        ({"w_zz": 0}, "did you mean 'w_z'"),
        ({"u_z": np.zeros((5, 6))}, r"u_z has shape \(5, 6\), expected \(6, 6\)"),
    ],
)
def test_weights_that_do_not_fit_are_named(options, said):
    weights = draw(GRU).weights
    weights = {n: a for n, a in weights.items() if n != "w_z"} if not options else weights
    with pytest.raises(ArgumentError, match=said):
        cellgen.onnx.export(GRU, {**weights, **options})


def test_a_dimension_that_nothing_tells_is_named():
    with pytest.raises(ArgumentError, match="nothing tells the dimension I"):
        cellgen.onnx.export(GRU)


def test_an_output_that_the_cell_lacks_is_named():
    with pytest.raises(UsageError, match="outputs name 'z'; the cell has h"):
        cellgen.onnx.export(GRU, draw(GRU).weights, outputs=["z"])


@pytest.mark.parametrize("cell", [RunningUnits, RunningHeads])
@pytest.mark.parametrize("dtype", BARS)
def test_what_goes_along_units_is_combined_in_rounds(cell, dtype):
    drawn = draw(cell)
    model = cellgen.onnx.export(cell, drawn.of(dtype).weights, dtype=dtype)
    found = run(model, drawn.of(dtype).rest)
    expected = run_steps(cell.definition, drawn.every, SIZES).results
    for name, array in expected.items():
        assert difference(found[name], array) < BARS[dtype]


def test_what_only_derivatives_have_is_refused():
    moving = cellgen.tangent(RunningUnits)
    with pytest.raises(UsageError, match=r"the operator .* has no form in ONNX"):
        cellgen.onnx.export(moving, draw(moving).of("float32").weights)
