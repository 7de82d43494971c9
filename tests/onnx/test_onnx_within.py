"""Cells where real files have them: in branches, in local functions, quantised, sparse."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import cellgen.onnx
from cellgen.errors import UsageError
from tests.onnx.models import arguments, of_operator
from tests.onnx.sessions import difference, run

BAR = 2e-6
QUANTISED_BAR = 0.05
"""onnxruntime rounds inputs and states to eight bits as well."""


def branch(inner, name, result):
    """A graph whose one result is of some nodes, and their initializers."""
    nodes, arrays = inner
    value = helper.make_empty_tensor_value_info(result)
    return helper.make_graph(nodes, name, [], [value], arrays)


def renamed(suffix, seed):
    """A GRU's node and weights with names of their own; it reads X of the graph around."""
    model, _ = of_operator("GRU", initial=False, seed=seed)
    (node,) = model.graph.node
    node.name = f"gru_{suffix}"
    node.input[:] = [n if n == "X" else f"{n}_{suffix}" for n in node.input]
    node.output[:] = [f"{n}_{suffix}" for n in node.output]
    for tensor in model.graph.initializer:
        tensor.name = f"{tensor.name}_{suffix}"
    return [node], list(model.graph.initializer)


def choice(name, then_branch, else_branch, result):
    return helper.make_node(
        "If", [name], [result], f"if_{name}", then_branch=then_branch, else_branch=else_branch
    )


def of_graph(nodes, extra, arrays=(), functions=(), domains=()):
    inputs = [helper.make_tensor_value_info("X", 1, [5, 2, 3])]
    inputs += [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in extra]
    graph = helper.make_graph(
        nodes, "by_hand", inputs, [helper.make_empty_tensor_value_info("Z")], list(arrays)
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), *domains], ir_version=8,
        functions=list(functions),
    )  # fmt: skip


def test_nodes_in_branches_at_any_depth_are_read():
    a, b, c = (renamed(suffix, seed) for seed, suffix in enumerate("abc"))
    inner = choice("q", branch(a, "a", "Y_a"), branch(b, "b", "Y_b"), "Z_in")
    outer = choice("p", branch(([inner], []), "t", "Z_in"), branch(c, "e", "Y_c"), "Z")
    model = of_graph([outer], ["p", "q"])
    layers = {layer.directions[0].node: layer for layer in cellgen.onnx.read(model)}
    assert sorted(layers) == ["gru_a", "gru_b", "gru_c"]
    x = np.random.default_rng(1).standard_normal((5, 2, 3)).astype("f")
    for chosen, p, q in (("gru_a", 1, 1), ("gru_b", 1, 0), ("gru_c", 0, 1)):
        expected = run(model, {"X": x, "p": np.array(bool(p)), "q": np.array(bool(q))})["Z"]
        assert difference(layers[chosen].run(x, interpreted=True)[0], expected) < BAR


def test_weights_of_a_branch_may_stand_around_it():
    (node,), arrays = renamed("a", 0)
    one, other = (branch(([node], []), name, "Y_a") for name in "te")
    other.node[0].CopyFrom(helper.make_node("Neg", ["X"], ["Y_a"]))
    model = of_graph([choice("p", one, other, "Z")], ["p"], arrays)
    x = np.ones((5, 2, 3), "f")
    (layer,) = cellgen.onnx.read(model)
    expected = run(model, {"X": x, "p": np.array(True)})["Z"]
    assert difference(layer.run(x, interpreted=True)[0], expected) < BAR


def test_a_layer_in_a_local_function_is_read_where_it_is_called():
    (node,), arrays = renamed("a", 0)
    takes = [n for n in node.input if n]
    opsets = [helper.make_opsetid("", 17)]
    within = helper.make_function("mine", "within", takes, ["Y_a"], [node], opsets)
    called = helper.make_node("within", takes, ["Z"], domain="mine")
    own = helper.make_opsetid("mine", 1)
    around = helper.make_function("mine", "around", takes, ["Z"], [called], [*opsets, own])
    calls = helper.make_node("around", takes, ["Z"], domain="mine")
    model = of_graph([calls], [], arrays, [within, around], [own])
    x = np.ones((5, 2, 3), "f")
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(x, interpreted=True)[0]
    assert difference(found, run(model, {"X": x})["Z"]) < BAR


def functions_of(*calls):
    """A model of functions ``f0``, ``f1``, ... that call the functions of these numbers."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    functions = []
    for place, numbers in enumerate(calls):
        names = ["a", *(f"v{k}" for k in range(len(numbers) - 1)), "o"]
        nodes = [
            helper.make_node(f"f{n}" if n >= 0 else "Neg", [names[k]], [names[k + 1]],
                             domain="mine" if n >= 0 else "")
            for k, n in enumerate(numbers)
        ]  # fmt: skip
        functions.append(helper.make_function("mine", f"f{place}", ["a"], ["o"], nodes, opsets))
    node = helper.make_node("f0", ["X"], ["Z"], domain="mine")
    return of_graph([node], [], (), functions, opsets[1:])


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([[0]], "the local function 'f0' calls itself"),
        ([[1], [2], [0]], "the local function 'f0' calls itself"),
        ([[k + 1] * 2 for k in range(40)] + [[-1]], "over 200000 nodes where called"),
        ([[k + 1] for k in range(80)] + [[-1]], "calls itself, or 64 others"),
    ],
    ids=["itself", "in a ring", "doubling", "deep"],
)
def test_local_functions_without_end_are_told(calls, said):
    with pytest.raises(UsageError, match=said):
        cellgen.onnx.read(functions_of(*calls))


@pytest.mark.parametrize("flat", [False, True])
def test_a_sparse_initializer_is_read(flat):
    model, given = of_operator("GRU")
    (dense,) = [t for t in model.graph.initializer if t.name == "R"]
    array = numpy_helper.to_array(dense).copy()
    array[0, :, 1] = 0
    places = np.flatnonzero(array) if flat else np.argwhere(array)
    values = array[array != 0]
    model.graph.initializer.remove(dense)
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(values, "R"),
            numpy_helper.from_array(np.asarray(places, np.int64), "R_places"),
            list(array.shape),
        )
    )
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(*arguments(given), interpreted=True)
    for one, other in zip(found, run(model, given).values(), strict=True):
        assert difference(one, other) < BAR


def quantised(array, axis, kind):
    """An array in eight bits: numbers, a scale, a zero; along an axis or of all of it."""
    others = tuple(k for k in range(array.ndim) if k != axis)
    most = np.abs(array).max(None if axis is None else others)
    scale = np.asarray(most / 127, np.float32)
    wide = scale if axis is None else np.expand_dims(scale, others)
    zero = 0 if kind == np.int8 else 128
    return (np.round(array / wide) + zero).astype(kind), scale, np.full(scale.shape, zero, kind)


@pytest.mark.parametrize("opset", [10, 12, 13, 17, 18, 19, 21])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_weights_by_dequantize_linear_are_read(opset, kind):
    model, given = of_operator("LSTM", opset=opset)
    axes = [None] if opset < 13 else [None, 1]
    for axis in axes:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for name in "WR":
            (tensor,) = [t for t in changed.graph.initializer if t.name == name]
            parts = quantised(numpy_helper.to_array(tensor), axis, kind)
            changed.graph.initializer.remove(tensor)
            names = [f"{name}{k}" for k in range(3)]
            changed.graph.initializer.extend(map(numpy_helper.from_array, parts, names))
            options = {} if axis is None else {"axis": axis}
            node = helper.make_node("DequantizeLinear", names, [name], **options)
            changed.graph.node.insert(0, node)
        (layer,) = cellgen.onnx.read(changed)
        found = layer.run(*arguments(given), interpreted=True)
        for one, other in zip(found, run(changed, given).values(), strict=True):
            assert difference(one, other) < BAR


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_dynamically_quantised_lstm_is_read(per_channel, direction, bits, tmp_path):
    """Weights of 7 bits beside onnxruntime, whose sums for weights of 8 bits overflow on processors
    without VNNI; these beside the model that was quantised."""
    two = 1 + (direction == "bidirectional")
    model, given = of_operator("LSTM", directions=two, direction=direction, peepholes=True)
    paths = [str(tmp_path / name) for name in ("whole.onnx", "eight.onnx")]
    onnx.save(model, paths[0])
    how = {"per_channel": per_channel, "reduce_range": bits == 7}
    quantize_dynamic(*paths, **how, op_types_to_quantize=["LSTM"])
    quantised = onnx.load(paths[1])
    assert [n.op_type for n in quantised.graph.node] == ["DynamicQuantizeLSTM"]
    (layer,) = cellgen.onnx.read(paths[1])
    found = layer.run(*arguments(given), interpreted=True)
    peer = run(quantised if bits == 7 else model, given)
    for one, other in zip(found, peer.values(), strict=True):
        assert difference(one, other) < QUANTISED_BAR
    exact = cellgen.onnx.read(model)[0].directions[-1].weights
    steps = 100 if bits == 8 else 50
    for name, array in layer.directions[-1].weights.items():
        assert np.abs(array - exact[name]).max() < np.abs(exact[name]).max() / steps, name


def test_scales_of_a_quantised_lstm_that_inputs_make_are_told(tmp_path):
    model, _ = of_operator("LSTM")
    paths = [str(tmp_path / name) for name in ("whole.onnx", "eight.onnx")]
    onnx.save(model, paths[0])
    quantize_dynamic(*paths, op_types_to_quantize=["LSTM"])
    broken = onnx.load(paths[1])
    broken.graph.node[0].input[8] = "X"
    with pytest.raises(UsageError, match=r"\(DynamicQuantizeLSTM\): W is u?int8 .* its scale of"):
        cellgen.onnx.read(broken)
