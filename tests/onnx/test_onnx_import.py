"""Imported cells give what ONNX's own tests say, and what onnxruntime computes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import cellgen
import cellgen.onnx
from cellgen.cells import GRU, MGU, SHIPPED, LSTMPeephole
from cellgen.cli.commands import app
from cellgen.errors import CellgenError, UsageError
from cellgen.language.value import Role
from cellgen.onnx.activations import ACTIVATIONS
from cellgen.onnx.reading import opened
from cellgen.onnx.rows import ROWS
from cellgen.views.find import load_file
from tests.onnx.models import (
    GATES,
    arguments,
    node_tests,
    of_body,
    of_nodes,
    of_operator,
    with_weights,
)
from tests.onnx.sessions import LENGTHS, difference, dims_of, draw, run

NODE_BAR = 1e-6
"""ONNX's tests are float32, a few steps of a few units."""
RUNTIME_BAR = 2e-6
"""Of the largest entry: onnxruntime rounds in float32 here, and its tanh is a rational."""
ROUND_TRIP = {"float32": 4e-6, "float64": 6e-15}
"""As in the tests of export: twice the same equations, in other orders."""
CASES = {case.name: case for case in node_tests()}
OLD = "test_scan_sum"
"""Of opset 8, whose Scan was another operator."""


def run_node(case, interpreted):
    model, given, expected = with_weights(case)
    (layer,) = cellgen.onnx.read(model)
    node = model.graph.node[0]
    takes = arguments(given) if node.op_type in GATES else [given[name] for name in node.input]
    found = dict(zip(node.output, layer.run(*takes, interpreted=interpreted), strict=False))
    for name, array in expected.items():
        assert difference(found[name], array) < NODE_BAR, name


@pytest.mark.parametrize("name", sorted(CASES.keys() - {OLD}))
def test_onnx_s_own_node_tests_hold(name):
    run_node(CASES[name], interpreted=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - {OLD}))
def test_onnx_s_own_node_tests_hold_through_kernels(name):
    run_node(CASES[name], interpreted=False)


def test_a_scan_of_an_old_opset_says_what_to_do():
    with pytest.raises(UsageError, match=r"opset 8, expected 9 .*convert_version"):
        cellgen.onnx.read(CASES[OLD].model)


def test_there_are_node_tests_of_every_operator():
    kinds = [case.model.graph.node[0].op_type for case in CASES.values()]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "GRU": 6, "LSTM": 6, "RNN": 6, "Scan": 4,
    }  # fmt: skip


# --- against onnxruntime -------------------------------------------------------------------------


def assert_as_onnxruntime(op, **options):
    model, given = of_operator(op, **options)
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(*arguments(given), interpreted=True)
    for array, expected in zip(found, run(model, given).values(), strict=True):
        assert difference(array, expected) < RUNTIME_BAR, options


def grid(op):
    """Attributes that change what a node computes, each with each."""
    own = {
        "LSTM": {"peepholes": (False, True), "input_forget": (0, 1)},
        "GRU": {"linear_before_reset": (0, 1)},
        "RNN": {},
    }[op]
    axes = {
        "direction": ("forward", "reverse", "bidirectional"),
        "bias": (True, False),
        "lengths": (None, (5, 3), (1, 5)),
        "initial": (True, False),
        "clip": (None, 0.5),
        **own,
    }
    for values in product(*axes.values()):
        options = dict(zip(axes, values, strict=True))
        options["directions"] = 1 + (options["direction"] == "bidirectional")
        yield {name: value for name, value in options.items() if value is not None}


@pytest.mark.slow
@pytest.mark.parametrize("op", GATES)
def test_every_combination_of_attributes_is_as_onnxruntime_has_it(op):
    count = 0
    for count, options in enumerate(grid(op), start=1):  # noqa: B007
        assert_as_onnxruntime(op, **options)
    assert count == {"LSTM": 288, "GRU": 144, "RNN": 72}[op]


@pytest.mark.parametrize("op", GATES)
def test_some_combinations_are_as_onnxruntime_has_them(op):
    for options in list(grid(op))[3::41]:
        assert_as_onnxruntime(op, **options)


NUMBERS = {"activation_alpha": 0.3, "activation_beta": 0.4}


@pytest.mark.parametrize("name", [row.name for row in ACTIVATIONS.values()])
def test_every_activation_is_as_onnxruntime_has_it(name):
    row = ACTIVATIONS[name.lower()]
    given = {"activation_alpha": row.alpha, "activation_beta": row.beta}
    for op, count in (("LSTM", 3), ("GRU", 2), ("RNN", 1)):
        own = {n: [NUMBERS[n]] * count for n, default in given.items() if default is not None}
        assert_as_onnxruntime(op, activations=[name] * count, scale=0.15, **own)
        if not row.is_open:
            assert_as_onnxruntime(op, activations=[name] * count, scale=0.15)
        if row.beta == 0:  # which onnxruntime takes as well where it is left out
            alone = {"activation_alpha": own["activation_alpha"]}
            assert_as_onnxruntime(op, activations=[name] * count, scale=0.15, **alone)


def test_each_activation_takes_the_next_number_if_it_has_any():
    assert_as_onnxruntime(
        "LSTM",
        directions=2,
        direction="bidirectional",
        activations=["HardSigmoid", "Tanh", "Affine", "Sigmoid", "LeakyRelu", "Elu"],
        activation_alpha=[0.3, 1.2, 0.1, 0.8],
        activation_beta=[0.4, 0.2],
    )


@pytest.mark.parametrize("name", ["Affine", "ScaledTanh", "ThresholdedRelu"])
def test_numbers_that_are_read_in_different_ways_have_to_be_given(name):
    model, _ = of_operator("RNN", activations=[name])
    with pytest.raises(UsageError, match=f"the activation {name} has no activation_alpha"):
        cellgen.onnx.read(model)


def test_batchwise_layout_gives_what_the_other_layout_gives():
    model, given = of_operator("LSTM", directions=2, direction="bidirectional", lengths=(5, 3))
    turned, _ = of_operator(
        "LSTM", directions=2, direction="bidirectional", lengths=(5, 3), layout=1
    )
    takes = [a if name == "sequence_lens" else np.swapaxes(a, 0, 1) for name, a in given.items()]
    names = dict(zip(given, takes, strict=True))
    y, *last = cellgen.onnx.read(model)[0].run(*arguments(given), interpreted=True)
    y_turned, *last_turned = cellgen.onnx.read(turned)[0].run(*arguments(names), interpreted=True)
    assert np.array_equal(y_turned, np.moveaxis(y, 2, 0))  # (T, D, B, H), (B, T, D, H)
    for one, other in zip(last, last_turned, strict=True):
        assert np.array_equal(other, np.swapaxes(one, 0, 1))


# --- what is found -------------------------------------------------------------------------------


def test_cells_and_weights_come_apart_and_run_as_kernels():
    model, given = of_operator("GRU", linear_before_reset=1, initial=False)
    ((cell, weights),) = cellgen.onnx.load(model)
    kernel = cellgen.compile(cell)
    h_prev = np.zeros((2, 4), np.float32)
    found = kernel.sequence_forward(x=given["X"], h_prev=h_prev, **weights)
    assert difference(found.h, run(model, given)["Y"][:, 0]) < RUNTIME_BAR
    assert str(cell.definition.doc) == "The node 'the_node' (GRU) of by_hand."


def test_weights_that_constant_nodes_make_are_constants():
    model, given = of_operator("RNN", initial=False)
    (w,) = [tensor for tensor in model.graph.initializer if tensor.name == "W"]
    turned = numpy_helper.to_array(w)[0].T
    model.graph.initializer.remove(w)
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(turned), "turned"))
    made = [
        helper.make_node("Transpose", ["turned"], ["W_0"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["W_0", "axis"], ["W"]),
    ]
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    for place, node in enumerate(made):
        model.graph.node.insert(place, node)
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(given["X"], interpreted=True)[0]
    assert difference(found, run(model, given)["Y"]) < RUNTIME_BAR


def test_initial_states_that_stand_in_the_model_are_where_the_layer_starts():
    model, given = of_operator("RNN")
    model.graph.initializer.append(numpy_helper.from_array(given.pop("initial_h"), "initial_h"))
    found = cellgen.onnx.read(model)[0].run(given["X"], interpreted=True)[0]
    assert difference(found, run(model, given)["Y"]) < RUNTIME_BAR


def test_what_is_written_is_read_again_and_exported_again(tmp_path):
    weights = [draw(MGU, seed).of("float32").weights for seed in (0, 1)]
    model = cellgen.onnx.export(MGU, weights, direction="bidirectional")
    (tmp_path / "two.onnx").write_bytes(model.SerializeToString())
    done = CliRunner().invoke(app, ["import", f"{tmp_path}/two.onnx", f"{tmp_path}/two.py"])
    names = ["two.py", "two.mgu_cell.npz", "two.mgu_reverse.npz"]
    assert done.stdout.split() == [str(tmp_path / name) for name in names]
    (cell,) = load_file(tmp_path / "two.py")
    assert "h = h_prev * (1 - f) + f * tanh(" in (tmp_path / "two.py").read_text()
    again = tmp_path / "again.onnx"
    options = ["--onnx", str(again), "--weights", str(tmp_path / "two.mgu_reverse.npz")]
    done = CliRunner().invoke(app, ["export", f"{tmp_path}/two.py", *options])
    assert done.exit_code == 0, done.output
    drawn = draw(MGU).of("float32")
    found = run(opened(again).model, drawn.rest)
    expected = run(cellgen.onnx.export(MGU, weights[1]), drawn.rest)
    assert cell.definition.name == "mgu_cell"
    assert difference(found["h"], expected["h"]) < ROUND_TRIP["float32"]


def test_an_imported_operator_is_exported_as_that_operator_again():
    activations = ["HardSigmoid", "Softsign", "LeakyRelu"]
    model, given = of_operator("LSTM", peepholes=True, activations=activations)
    ((cell, weights),) = cellgen.onnx.load(model)
    again = cellgen.onnx.export(cell, weights)
    (node,) = [n for n in again.graph.node if n.op_type == "LSTM"]
    assert [a.strings for a in node.attribute if a.name == "activations"] == [
        [name.encode() for name in activations]
    ]
    rest = {"x": given["X"], "h_prev": given["initial_h"][0], "c_prev": given["initial_c"][0]}
    found, expected = run(again, rest), run(model, given)
    assert difference(found["h"], expected["Y"][:, 0]) < RUNTIME_BAR


def round_trip(cell, dtype, lengths, interpreted):
    drawn = draw(cell).of(dtype)
    model = cellgen.onnx.export(
        cell, drawn.weights, dims=dims_of(cell), dtype=dtype, form="scan", lengths=lengths,
        direction="reverse" if lengths else "forward",
    )  # fmt: skip
    given = {"sequence_lens": LENGTHS.astype(np.int32)} if lengths else {}
    expected = run(model, {**drawn.rest, **given})
    (layer,) = cellgen.onnx.read(model)
    definition = cell.definition
    takes = [drawn.rest[str(v.name)] for v in definition.states]
    takes += [drawn.rest[str(v.name)] for v in definition.with_role(Role.INPUT)]
    takes += [np.arange(len(takes[-1]))[:, None] < LENGTHS] if lengths else []
    found = layer.run(*takes, interpreted=interpreted)
    names = [f"{definition.next_state(state).name}_last" for state in definition.states]
    names += [str(v.name) for v in definition.outputs]
    return max(difference(a, expected[n]) for n, a in zip(names, found, strict=True))


@pytest.mark.parametrize("lengths", [False, True])
def test_an_exported_scan_imports_again(lengths):
    assert round_trip(LSTMPeephole, "float64", lengths, interpreted=True) < ROUND_TRIP["float64"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
def test_every_exported_scan_imports_again_and_gives_the_same_numbers(cell):
    for dtype, bar in ROUND_TRIP.items():
        for lengths in (False, True):
            found = round_trip(cell, dtype, lengths, interpreted=False)
            print(f"largest difference {cell.definition.name} {dtype} {lengths} {found:.1e}")
            assert found < bar, (dtype, lengths)


# --- bodies of Scan ------------------------------------------------------------------------------

RNG = np.random.default_rng(7)
WEIGHTS = {
    "w": RNG.standard_normal((3, 3)).astype("f"),
    "wide": RNG.standard_normal((3, 6)).astype("f"),
    "b": RNG.standard_normal(3).astype("f"),
    "two": np.array(2, np.float32),
    "axis": np.array([1]),
    "shape": np.array([0, 3]),
    "first": np.array([0]),
    "third": np.array([3]),
    "place": np.array(1),
}
"""Arrays around a body, by name."""

BODIES = {
    "Gemm": [("Gemm", "x wide", "p", {}), ("Slice", "p first third axis", "q", {}),
             ("Tanh", "q", "r", {}), ("Add", "r s", "s_new", {})],
    "Gemm turned": [("Gemm", "x w b", "p", {"transB": 1, "alpha": 0.5, "beta": 2.0}),
                    ("Add", "p s", "s_new", {})],
    "Split": [("MatMul", "x wide", "p", {}), ("Split", "p", "q r", {"axis": 1}),
              ("Sigmoid", "q", "t", {}), ("Mul", "t r", "u", {}), ("Add", "u s", "s_new", {})],
    "LayerNormalization": [("LayerNormalization", "x b b", "p", {"axis": -1}),
                           ("Add", "p s", "s_new", {})],
    "Softmax": [("Softmax", "x", "p", {"axis": -1}), ("Mul", "p s", "s_new", {})],
    "LogSoftmax": [("LogSoftmax", "x", "p", {"axis": 1}), ("Add", "p s", "s_new", {})],
    "ReduceMean": [("ReduceMean", "x", "p", {"axes": [1]}), ("Sub", "s p", "s_new", {})],
    "ReduceMax": [("ReduceMax", "x", "p", {"axes": [-1]}), ("Sub", "s p", "s_new", {})],
    "ReduceMin, kept apart": [("ReduceMin", "x", "p", {"axes": [-1], "keepdims": 0}),
                              ("Unsqueeze", "p axis", "q", {}), ("Add", "s q", "s_new", {})],
    "CumSum": [("CumSum", "x place", "p", {"exclusive": 1}), ("Add", "p s", "s_new", {})],
    "CumSum, reverse": [("CumSum", "x place", "p", {"reverse": 1}), ("Add", "p s", "s_new", {})],
    "Clip": [("Clip", "x two", "p", {}), ("Add", "p s", "s_new", {})],
    "Where": [("Greater", "x s", "p", {}), ("Not", "p", "q", {}), ("Less", "x two", "r", {}),
              ("Or", "q r", "t", {}), ("Where", "t x s", "s_new", {})],
    "Equal": [("Round", "x", "p", {}), ("Equal", "p two", "q", {}), ("Cast", "q", "r", {"to": 1}),
              ("Add", "r s", "s_new", {})],
    "Pow": [("Abs", "x", "a", {}), ("Pow", "a two", "p", {}), ("Pow", "a p", "q", {}),
            ("Add", "q s", "s_new", {})],
    "Max": [("Max", "x s two", "p", {}), ("Min", "p b", "q", {}), ("Sum", "q s x", "s_new", {})],
    "units": [("Elu", "x", "p", {"alpha": 0.7}), ("Selu", "p", "q", {}), ("Celu", "q", "r", {}),
              ("LeakyRelu", "r", "t", {"alpha": 0.2}), ("HardSigmoid", "t", "u", {}),
              ("ThresholdedRelu", "u", "v", {"alpha": 0.1}), ("Softplus", "v", "y", {}),
              ("Softsign", "y", "z", {}), ("Add", "z s", "s_new", {})],
    "functions": [("Exp", "x", "p", {}), ("Log", "p", "q", {}), ("Sin", "q", "r", {}),
                  ("Cos", "r", "t", {}), ("Tan", "t", "u", {}), ("Atan", "u", "v", {}),
                  ("Erf", "v", "y", {}), ("Sqrt", "p", "a", {}), ("Reciprocal", "a", "c", {}),
                  ("Neg", "c", "d", {}), ("Floor", "d", "e", {}), ("Ceil", "x", "f", {}),
                  ("Sign", "x", "g", {}), ("Sum", "y e f g s", "s_new", {})],
    "reshaped": [("Unsqueeze", "x axis", "p", {}), ("Reshape", "p shape", "q", {}),
                 ("Concat", "q s", "r", {"axis": -1}), ("Slice", "r first third axis", "t", {}),
                 ("Squeeze", "p axis", "u", {}), ("Sum", "t u s", "s_new", {})],
    "two of one": [("Add", "x s", "s_new", {})],
}  # fmt: skip
"""Bodies by what is particular: operator, operands, results, attributes."""


def body_of(rows, **options):
    nodes = [
        helper.make_node(op, takes.split(), gives.split(), name=f"n{k}", **attributes)
        for k, (op, takes, gives, attributes) in enumerate(rows)
    ]
    return of_body(nodes, WEIGHTS, **options)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_a_cell_that_gives_what_onnxruntime_gives(name):
    model = body_of(BODIES[name])
    s, x = RNG.standard_normal((2, 3)).astype("f"), RNG.standard_normal((4, 2, 3)).astype("f")
    (layer,) = cellgen.onnx.read(model)
    expected = list(run(model, {"s_0": s, "x_all": x}).values())
    found = layer.run(s, x, interpreted=True)
    for array, other in zip(found, expected, strict=True):
        assert difference(array, other) < 5e-6


def test_axes_of_steps_and_directions_of_a_scan_are_the_node_s():
    rows = [("Add", "x s", "s_new", {}), ("Mul", "s_new two", "y", {})]
    model = body_of(
        rows, outputs=("y",), scan_input_axes=[1], scan_output_axes=[2],
        scan_input_directions=[1], scan_output_directions=[1],
    )  # fmt: skip
    del model.graph.input[1].type.tensor_type.shape.dim[:]
    s, x = RNG.standard_normal((2, 3)).astype("f"), RNG.standard_normal((2, 4, 3)).astype("f")
    for name in ("B", "T"):
        model.graph.input[1].type.tensor_type.shape.dim.add().dim_param = name
    model.graph.input[1].type.tensor_type.shape.dim.add().dim_value = 3
    found = cellgen.onnx.read(model)[0].run(s, x, interpreted=True)
    expected = list(run(model, {"s_0": s, "x_all": x}).values())
    assert found[1].shape == (2, 3, 4)
    for array, other in zip(found, expected, strict=True):
        assert difference(array, other) < RUNTIME_BAR


def test_what_is_around_and_depends_on_inputs_is_a_static():
    node = helper.make_node("Mul", ["x", "kept"], ["p"])
    model = of_body([node, helper.make_node("Add", ["p", "s"], ["s_new"])])
    kept = helper.make_tensor_value_info("kept", 1, ["B", 3])
    model.graph.input.append(kept)
    (layer,) = cellgen.onnx.read(model)
    s, k = (RNG.standard_normal((2, 3)).astype("f") for _ in range(2))
    x = RNG.standard_normal((4, 2, 3)).astype("f")
    found = layer.run(s, x, around={"kept": k}, interpreted=True)
    assert difference(found[0], (x * k).sum(0) + s) < RUNTIME_BAR
    with pytest.raises(UsageError, match=r"pass around=\{'kept': \.\.\.\}"):
        layer.run(s, x, interpreted=True)


@pytest.mark.slow
def test_the_exported_forms_use_nothing_that_the_language_cannot_read():
    found = set()
    for cell in SHIPPED:
        model = cellgen.onnx.export(cell, dims=dims_of(cell), form="scan", lengths=True)
        for node in model.graph.node:
            bodies = [a.g for a in node.attribute if a.name == "body"]
            found |= {inner.op_type for body in bodies for inner in body.node}
    assert found <= {*ROWS}
    assert len(found) > 30


# --- bad models ----------------------------------------------------------------------------------


def broken(change):
    model, _ = of_operator("LSTM")
    change(model)
    return model


def without(name):
    def change(model):
        (tensor,) = [t for t in model.graph.initializer if t.name == name]
        model.graph.initializer.remove(tensor)

    return change


def as_input(name):
    def change(model):
        without(name)(model)
        model.graph.input.append(helper.make_tensor_value_info(name, 1, [1, 16, 3]))

    return change


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: body_of([("Tahn", "x", "p", {}), ("Add", "p s", "s_new", {})]),
         r"'the_scan' \(Scan\): node 'n0' \(Tahn\): the language has no Tahn; near .* Tan, Tanh"),
        (lambda: body_of([("Det", "x", "p", {}), ("Add", "p s", "s_new", {})]),
         r"node 'n0' \(Det\): the language has no Det; near it are "),
        (lambda: broken(without("W")), r"'the_node' \(LSTM\) reads 'W', which no initializer"),
        (lambda: broken(as_input("W")), r"the weight W \('W'\) is computed from inputs"),
        (lambda: of_operator("LSTM", opset=6)[0], r"opset 6, expected 7 or newer"),
        (lambda: of_operator("LSTM", opset=99)[0], r"opset 99, .* knows those up to \d+"),
        (lambda: of_operator("GRU", activations=["Sigmoid", "Tahn"])[0],
         "the activation 'Tahn' is none of ONNX's; did you mean 'Tanh'"),
        (lambda: of_operator("GRU", activations=["Sigmoid"])[0], "1 activations, expected 2"),
        (lambda: of_operator("RNN", direction="bidirectional")[0],
         r"W has shape \(1, 4, 3\), expected \(2, 4, 3\)"),
        (lambda: body_of([("MatMul", "x lost", "p", {}), ("Add", "p s", "s_new", {})]),
         r"'the_scan' \(Scan\) reads 'lost', which no initializer"),
        (lambda: body_of([("ReduceSum", "x first", "p", {}), ("Add", "p s", "s_new", {})]),
         r"'n0' \(ReduceSum\): it goes over rows of the batch"),
        (lambda: body_of([("Transpose", "x", "p", {}), ("Add", "p s", "s_new", {})]),
         r"'n0' \(Transpose\): "),
        (lambda: body_of([("Add", "x s", "s_new", {})], scan_input_directions=[1],
                         outputs=("s_new",)), "some of its sequences go in reverse"),
        (lambda: body_of([("Add", "x s", "s_new", {})], scan_input_axes=[99],
                         outputs=("s_new",)), r"scan_input_axes is 99 for .* expected -3 to 2"),
        (lambda: body_of([("Add", "x s", "s_new", {}), ("Tanh", "s_new", "y", {})],
                         scan_output_axes=[-4], outputs=("y",)),
         r"scan_output_axes is -4 for 'y', which has 3 axes with that of steps; expected -3 to 2"),
        (lambda: of_nodes([helper.make_node("Tanh", ["x"], ["y"])], {"x": [2]}, ["y"], {}),
         "by_hand has no node LSTM, GRU, RNN, Scan, DynamicQuantizeLSTM, or Loop over"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_clear_message(model, said):
    with pytest.raises(UsageError, match=said) as caught:
        cellgen.onnx.read(model())
    assert "\n" not in str(caught.value)


def test_a_weight_of_a_body_that_is_an_input_is_named():
    model = body_of([("MatMul", "x m", "p", {}), ("Add", "p s", "s_new", {})])
    model.graph.input.append(helper.make_tensor_value_info("m", 1, [3, 3]))
    with pytest.raises(UsageError, match=r"reads the weight 'm', \(3, 3\), which depends on"):
        cellgen.onnx.read(model)


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(CellgenError, match=r"cannot read .*text\.onnx as a model of ONNX"):
        cellgen.onnx.load(tmp_path / "text.onnx")


def test_export_of_the_command_line_says_what_it_takes(tmp_path):
    path = str(tmp_path / "gru.onnx")
    done = CliRunner().invoke(app, ["export", "gru", "--onnx", path, "--dims", "I=4,H=6"])
    assert done.stdout.strip() == path
    drawn = draw(GRU).of("float32")
    found = run(opened(path).model, drawn.every)
    expected = run(cellgen.onnx.export(GRU, drawn.weights), drawn.rest)
    assert difference(found["h"], expected["h"]) < ROUND_TRIP["float32"]
