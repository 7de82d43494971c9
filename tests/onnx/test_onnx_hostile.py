"""Models and cells that few would write: names that are code, old opsets, arrays that do not fit.

What is read or written of them is what onnxruntime says, or one clear message.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cellgen
import cellgen.onnx
from cellgen import Bias, Cell, Dim, H, I, Input, State, Weight, tanh
from cellgen.cells import GRU, LSTM
from cellgen.errors import ArgumentError, UsageError
from tests.onnx.models import arguments, of_operator
from tests.onnx.sessions import difference, draw, operators, run

RNG = np.random.default_rng(3)
SQUARE, OTHER = (RNG.standard_normal((3, 3)).astype("f") for _ in range(2))
BARS = {TensorProto.FLOAT: 3e-6, TensorProto.DOUBLE: 1e-14}
FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}


def scan(*nodes, units=(3,), opset=17, kind=TensorProto.FLOAT, arrays=None, state="s"):
    """A model of one Scan: a state and a sequence of so many units, an output ``y``."""
    shape = ["B", *units]

    def typed(name, axes=shape):
        return helper.make_tensor_value_info(name, kind, axes)

    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in (arrays or {}).items()]
    rows = [helper.make_node(op, takes, gives, f"n{k}", **how)
            for k, (op, takes, gives, how) in enumerate(nodes)]  # fmt: skip
    body = helper.make_graph(
        rows, "body", [typed(state), typed("x")], [typed("n"), typed("y", None)], constants
    )
    node = helper.make_node(
        "Scan", ["s0", "xs"], ["s_end", "ys"], "it", body=body, num_scan_inputs=1
    )
    graph = helper.make_graph(
        [node], "by_hand", [typed("s0"), typed("xs", ["T", *shape])],
        [typed("s_end", None), typed("ys", None)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def formed(op, *operands, add="s", **how):
    """Nodes of a body that give ``y``, and its sum with the state."""
    return (op, ["x", *operands], ["y"], how), ("Add", [add, "y"], ["n"], {})


def agrees(model, units=(3,), kind=TensorProto.FLOAT):
    """Compare an import with onnxruntime; returns the layer."""
    s, xs = (RNG.standard_normal(n).astype(FLOATS[kind]) for n in ((2, *units), (4, 2, *units)))
    (layer,) = cellgen.onnx.read(model)
    expected = run(model, {"s0": s, "xs": xs}).values()
    for array, other in zip(layer.run(s, xs, interpreted=True), expected, strict=True):
        assert difference(array, other) < BARS[kind]
    return layer


# --- names ---------------------------------------------------------------------------------------

NAMES = ['x"""\nraise SystemExit\n"""', "a\\", "double", "None", "Cell", "d_d_x", "", "日本"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_a_node_is_a_name_and_no_code(name, tmp_path):
    model, given = of_operator("GRU")
    model.graph.node[0].name = name
    model.graph.name = name
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(*arguments(given), interpreted=True)
    for array, other in zip(found, run(model, given).values(), strict=True):
        assert difference(array, other) < BARS[TensorProto.FLOAT]
    onnx.save(model, tmp_path / 'of """.onnx')
    cellgen.onnx.declare(tmp_path / 'of """.onnx', tmp_path / "cells.py")
    namespace: dict = {}
    exec((tmp_path / "cells.py").read_text(encoding="utf-8"), namespace)
    assert layer.directions[0].text.class_name in namespace


def test_two_cells_have_two_classes():
    models = [of_operator(op)[0] for op in ("GRU", "LSTM")]
    for model, name in zip(models, ("cell_1", "cell1"), strict=True):
        model.graph.node[0].name = name
        for node in model.graph.node:
            node.input[:] = [f"{name}{i}" if i in "WRB" and i else i for i in node.input]
            node.output[:] = [f"{name}{o}" for o in node.output]
        for tensor in model.graph.initializer:
            tensor.name = f"{name}{tensor.name}"
    models[0].graph.node.extend(models[1].graph.node)
    models[0].graph.initializer.extend(models[1].graph.initializer)
    models[0].graph.input.extend(v for v in models[1].graph.input if v.name == "initial_c")
    classes = [one.text.class_name for one in cellgen.onnx.load(models[0])]
    assert len(set(classes)) == 2, classes


@pytest.mark.parametrize("name", ["T", "B"])
def test_values_may_be_called_as_dimensions_are(name):
    agrees(scan(("MatMul", ["x", name], ["y"], {}), ("Add", ["s", "y"], ["n"], {}),
                arrays={name: SQUARE}))  # fmt: skip
    agrees(scan(*formed("Tanh", add=name), state=name))


def test_a_weight_and_the_transpose_of_another_one_are_two_weights():
    nodes = [
        ("Gemm", ["x", "w"], ["p"], {"transB": 1}),
        ("MatMul", ["p", "w_transposed"], ["y"], {}),
        ("Add", ["s", "y"], ["n"], {}),
    ]
    agrees(scan(*nodes, arrays={"w": SQUARE, "w_transposed": OTHER}))


# --- what an opset, a type and a model's own inputs say -------------------------------------------


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("how", [{}, {"axis": 1}, {"axis": -1}])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_goes_over_all_axes_from_one_on_before_opset_13(op, how, opset):
    agrees(scan(*formed(op, **how), units=(2, 3), opset=opset), (2, 3))


@pytest.mark.parametrize(
    ("op", "operands", "how"),
    [
        ("Gemm", ["w"], {"alpha": 0.1}),
        ("LayerNormalization", ["one", "one"], {"epsilon": 0.1}),
        ("LeakyRelu", [], {"alpha": 0.1}),
    ],
)
def test_numbers_of_nodes_are_float32_in_a_body_of_float64_too(op, operands, how):
    arrays = {"w": SQUARE.astype(float), "one": np.ones(3)}
    kind = TensorProto.DOUBLE
    agrees(scan(*formed(op, *operands, **how), kind=kind, arrays=arrays), kind=kind)


def test_lengths_that_stand_in_the_model_count():
    model, given = of_operator("LSTM", lengths=[2, 5])
    lengths = given.pop("sequence_lens")
    model.graph.input.remove(next(v for v in model.graph.input if v.name == "sequence_lens"))
    model.graph.initializer.append(numpy_helper.from_array(lengths, "sequence_lens"))
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(*arguments(given), interpreted=True)
    for array, other in zip(found, run(model, given).values(), strict=True):
        assert difference(array, other) < BARS[TensorProto.FLOAT]


def test_no_steps_are_no_outputs():
    model, given = of_operator("GRU")
    (layer,) = cellgen.onnx.read(model)
    y, y_h = layer.run(given["X"][:0], initial_h=given["initial_h"], interpreted=True)
    assert y.shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(y_h, given["initial_h"])


# --- what is refused -----------------------------------------------------------------------------


def of_weights(name, shape):
    model, _ = of_operator("LSTM")
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(shape, "f"), name))
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: scan(*formed("Div", "three"), kind=TensorProto.INT64,
                      arrays={"three": np.array([3, 4, 5])}), "quotient of integers"),
        (lambda: scan(("Unsqueeze", ["x", "k"], ["y"], {}), ("Tanh", ["s"], ["n"], {}),
                      arrays={"k": np.array([0])}), "an axis before that of rows"),
        (lambda: scan(("Squeeze", ["x", "k"], ["y"], {}), ("Tanh", ["s"], ["n"], {}),
                      arrays={"k": np.array([0])}), "takes the axis of rows"),
        (lambda: scan(*formed("Dropout", "r", "on"),
                      arrays={"r": np.float32(0.5), "on": np.array(True)}), "in training mode"),
        (lambda: of_weights("W", ()), r"W has shape \(\), expected three axes"),
        (lambda: of_weights("R", ()), r"R has shape \(\), expected three axes"),
    ],
)  # fmt: skip
def test_what_a_cell_cannot_be_is_told(model, said):
    with pytest.raises(UsageError, match=said):
        cellgen.onnx.read(model())


@pytest.mark.parametrize("lengths", [[1, 2, 3], [6, 0], [-1, 0], [1.5, 2]])
@pytest.mark.parametrize("interpreted", [False, True])
def test_lengths_that_do_not_fit_are_told(lengths, interpreted):
    model, given = of_operator("GRU")
    (layer,) = cellgen.onnx.read(model)
    with pytest.raises(ArgumentError, match="sequence_lens"):
        layer.run(given["X"], lengths, interpreted=interpreted)


# --- export --------------------------------------------------------------------------------------


class ReadOut(Cell):
    """A state of ONNX's RNN, and an output that the operator does not give."""

    x, h_prev, w, u, b, v = (
        Input(I),
        State(H),
        Weight(I, H),
        Weight(H, H),
        Bias(H),
        Weight(H, Dim("K")),
    )

    h = tanh(x @ w + h_prev @ u + b)
    y = h @ v
    outputs = y, h


class RowBias(Cell):
    """A bias with an axis of length 1 before its units."""

    x, h_prev, w, u, b = Input(I), State(H), Weight(I, H), Weight(H, H), Weight(1, H)

    h = tanh(x @ w + h_prev @ u + b)


class NamedReverse(Cell):
    """A weight that is called as another one of the direction in reverse."""

    x, h_prev, w, w_reverse = Input(I), State(H), Weight(I, H), Bias(H)

    h = tanh(x @ w + h_prev * w_reverse)


class NamedLengths(Cell):
    """A weight that is called as an input of models is."""

    x, h_prev, sequence_lens = Input(H), State(H), Weight(H)

    h = tanh(x * sequence_lens + h_prev)


@pytest.mark.parametrize(("cell", "operator"), [(ReadOut, "Scan"), (RowBias, "RNN")])
def test_a_model_gives_every_output_of_its_cell(cell, operator):
    drawn = draw(cell).of("float32")
    model = cellgen.onnx.export(cell, drawn.weights)
    assert operators(model) == [operator]
    found, a = run(model, drawn.rest), {**drawn.weights, **drawn.rest}
    h = a["h_prev"]
    for step, x in enumerate(a["x"]):
        h = np.tanh(x @ a["w"] + h @ a["u"] + a["b"])
        assert difference(found["h"][step], h) < BARS[TensorProto.FLOAT]
        if "v" in a:
            assert difference(found["y"][step], h @ a["v"]) < BARS[TensorProto.FLOAT]


def test_weights_of_two_directions_have_names_of_their_own():
    drawn, back = (draw(NamedReverse, seed).of("float32") for seed in (0, 1))
    both = [drawn.weights, back.weights]
    model = cellgen.onnx.export(NamedReverse, both, direction="bidirectional", initial=False)
    found, x = run(model, {"x": drawn.rest["x"]}), drawn.rest["x"]
    for place, (a, order) in enumerate(zip(both, (x, x[::-1]), strict=True)):
        h = np.zeros_like(drawn.rest["h_prev"])
        for step in order:
            h = np.tanh(step @ a["w"] + h * a["w_reverse"])
        assert difference(found["h_last"][place], h) < BARS[TensorProto.FLOAT]


def test_a_name_that_lengths_need_is_told():
    weights = {"sequence_lens": np.ones(3)}
    assert cellgen.onnx.export(NamedLengths, weights)
    with pytest.raises(UsageError, match="a value named sequence_lens"):
        cellgen.onnx.export(NamedLengths, weights, lengths=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "junk"}, "dtype is 'junk'"),
        ({"dims": 3}, "dims is 3, expected a dict"),
        ({"outputs": "h"}, "outputs is 'h', expected names"),
        ({"outputs": 3}, "outputs is 3, expected names"),
    ],
)
def test_options_that_are_none_are_told(options, said):
    with pytest.raises(ArgumentError, match=said):
        cellgen.onnx.export(GRU, draw(GRU).weights, **options)


def test_an_output_that_is_named_twice_is_given_once():
    model = cellgen.onnx.export(LSTM, draw(LSTM).weights, outputs=["c", "c"])
    assert [v.name for v in model.graph.output] == ["c", "h_last", "c_last"]


def test_weights_that_the_precision_cannot_hold_are_told():
    weights = {**draw(GRU).weights, "b_z": np.full(6, 1e300)}
    with pytest.raises(ArgumentError, match=r"b_z has entries beyond float32, the largest 1e\+300"):
        cellgen.onnx.export(GRU, weights)
    with pytest.raises(ArgumentError, match=r"b_z has shape \(6, 1\), expected \(H,\)"):
        cellgen.onnx.export(GRU, {**weights, "b_z": np.zeros((6, 1))})


def test_a_weight_may_be_called_as_an_argument_of_numpy_s_savez(tmp_path):
    nodes = ("MatMul", ["x", "file"], ["y"], {}), ("Add", ["s", "y"], ["n"], {})
    model = scan(*nodes, arrays={"file": SQUARE})
    (_, path) = cellgen.onnx.declare(model, tmp_path / "cells.py")
    with np.load(path) as found:
        np.testing.assert_array_equal(found["file"], SQUARE)
