"""Models of ONNX made by hand: one recurrent node with drawn weights."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
I, H, T, B = 3, 4, 5, 2


def of_nodes(nodes, inputs, outputs, arrays, opset=17) -> ModelProto:
    """A model of some nodes; ``inputs`` are shapes, or arrays, by name."""
    kinds = {np.dtype(np.int32): TensorProto.INT32, np.dtype(np.float64): TensorProto.DOUBLE}
    graph = helper.make_graph(
        nodes,
        "by_hand",
        [
            helper.make_tensor_value_info(
                name, kinds.get(getattr(value, "dtype", None), TensorProto.FLOAT),
                getattr(value, "shape", value),
            )
            for name, value in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def of_operator(
    op, *, directions=1, bias=True, peepholes=False, lengths=None, initial=True, seed=0, opset=14,
    scale=0.4,
    **attributes,
) -> tuple[ModelProto, Arrays]:  # fmt: skip
    """A model of one LSTM, GRU or RNN, and what it takes."""
    rng, rows = np.random.default_rng(seed), GATES[op] * H
    shapes = {"W": (directions, rows, I), "R": (directions, rows, H)}
    if bias:
        shapes["B"] = (directions, 2 * rows)
    if peepholes:
        shapes["P"] = (directions, 3 * H)
    arrays = {n: (scale * rng.standard_normal(shape)).astype("f") for n, shape in shapes.items()}
    given = {"X": rng.standard_normal((T, B, I)).astype("f")}
    if lengths is not None:
        given["sequence_lens"] = np.array(lengths, np.int32)
    states = ["initial_h", "initial_c"] if op == "LSTM" else ["initial_h"]
    for name in states if initial else ():
        given[name] = rng.standard_normal((directions, B, H)).astype("f")
    order = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    names = [n if n in arrays or n in given else "" for n in order]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 1 + len(states)]
    node = helper.make_node(op, names, outputs, name="the_node", hidden_size=H, **attributes)
    return of_nodes([node], given, outputs, arrays, opset), given


def arguments(given: Arrays) -> tuple:
    """What ``run`` of an operator takes, in its order."""
    return tuple(given.get(n) for n in ("X", "sequence_lens", "initial_h", "initial_c"))


def of_body(nodes, arrays=None, *, states=("s",), inputs=("x",), units=3, outputs=(), **options):
    """A model of one Scan whose states and inputs are (B, units); a body by its nodes."""
    shape = ["B", units]
    takes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (*states, *inputs)]
    gives = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
        for n in (*(f"{s}_new" for s in states), *outputs)
    ]
    body = helper.make_graph(nodes, "body", takes, gives)
    node = helper.make_node(
        "Scan",
        [*(f"{s}_0" for s in states), *(f"{n}_all" for n in inputs)],
        [*(f"{s}_end" for s in states), *(f"{n}_all_out" for n in outputs)],
        name="the_scan",
        body=body,
        num_scan_inputs=len(inputs),
        **options,
    )
    given = {f"{s}_0": shape for s in states} | {f"{n}_all": ["T", *shape] for n in inputs}
    return of_nodes([node], given, list(node.output), arrays or {})


def node_tests() -> list:
    """ONNX's own tests of recurrent nodes, whose modules alone are imported.

    To collect all would run ONNX's reference of every operator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        for name in ("lstm", "gru", "rnn", "scan"):
            importlib.import_module(f"{node.__name__}.{name}")
        found = {case.name: case for case in node._NodeTestCases if case.kind == "node"}
    kinds = ("LSTM", "GRU", "RNN", "Scan")
    return [c for c in found.values() if c.model.graph.node[0].op_type in kinds]


def with_weights(case) -> tuple[ModelProto, Arrays, Arrays]:
    """A test's model with its weights as initializers, what it takes, and what it gives."""
    model = ModelProto()
    model.CopyFrom(case.model)
    inputs, outputs = case.data_sets[0]
    given = dict(zip([value.name for value in model.graph.input], inputs, strict=True))
    for name in ("W", "R", "B", "P"):
        if name in given:
            model.graph.initializer.append(numpy_helper.from_array(given[name], name))
    names = [value.name for value in model.graph.output]
    return model, given, dict(zip(names, outputs, strict=True))
