"""A Loop over one sequence is a cell, as tf2onnx writes one; any other is not taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import cellgen.onnx
from cellgen.errors import UsageError
from tests.onnx.sessions import difference, run

BAR = 2e-6
RNG = np.random.default_rng(5)
T, B, U = 4, 2, 3
W = RNG.standard_normal((U, U)).astype("f")
STEP = [
    ("MatMul", ["x", "w"], ["p"]),
    ("Add", ["p", "s"], ["q"]),
    ("Tanh", ["q"], ["s_new"]),
    ("Identity", ["s_new"], ["y"]),
]
"""What a step computes of a state and an entry of the sequence."""
COUNTS = [
    ("Gather", ["xs", "t"], ["x"]),
    ("Add", ["t", "one"], ["t_new"]),
    ("Less", ["t_new", "limit"], ["go"]),
]
"""How it counts, and when it ends."""
BACK = [
    ("Sub", ["limit", "t_new"], ["k"]),
    ("Gather", ["xs", "k"], ["x"]),
]


def typed(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def loop(nodes, *, trips="", limit="limit", outputs=("y",), steps="T", start=0):
    """A model of one Loop: ``t`` counts, ``s`` is a state, ``w`` stays the same."""
    whole, truth, real = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
    body = helper.make_graph(
        [helper.make_node(op, takes, gives, f"n{k}") for k, (op, takes, gives) in enumerate(nodes)],
        "body",
        [typed("i", whole, []), typed("c", truth, []), typed("t", whole, []),
         typed("s", real, ["B", U]), typed("w", real, [U, U])],
        [typed("go", truth, []), typed("t_new", whole, []), typed("s_new", real, ["B", U]),
         typed("w", real, [U, U]), *(typed(n, real, ["B", U]) for n in outputs)],
    )  # fmt: skip
    node = helper.make_node(
        "Loop", [trips, "begin", "t_0", "s_0", "w_0"],
        ["t_end", "s_end", "w_end", *(f"{n}_all" for n in outputs)], "the_loop", body=body,
    )  # fmt: skip
    around = [
        helper.make_node("Shape", ["xs"], ["axes"]),
        helper.make_node("Gather", ["axes", "first"], ["limit"], axis=0),
        helper.make_node("Mul", ["limit", "two"], ["twice"]),
        helper.make_node("Sub", ["limit", "one"], ["less"]),
    ]
    numbers = {"first": 0, "one": 1, "two": 2, "five": 5, "far": 5000, "t_0": start}
    numbers["int_max"] = 2**31 - 1
    arrays = {n: np.array(v) for n, v in numbers.items()} | {"begin": np.array(True), "w_0": W}
    graph = helper.make_graph(
        [*around, node],
        "by_hand",
        [typed("xs", real, [steps, "B", U]), typed("s_0", real, ["B", U])],
        [helper.make_empty_tensor_value_info(n) for n in ("s_end", *(f"{n}_all" for n in outputs))],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


GOOD = {
    "a condition": {"nodes": [*COUNTS, *STEP]},
    "a number of steps": {
        "nodes": [COUNTS[0], COUNTS[1], ("Identity", ["c"], ["go"]), *STEP],
        "trips": "limit",
    },
    "both": {"nodes": [*COUNTS, *STEP], "trips": "twice"},
    "a limit beyond every sequence": {"nodes": [*COUNTS, *STEP], "trips": "int_max"},
    "the loop's own number": {
        "nodes": [("Gather", ["xs", "i"], ["x"]), *COUNTS[1:], *STEP],
    },
    "a known length": {"nodes": [*COUNTS, *STEP], "steps": T},
    "back": {"nodes": [*COUNTS[1:], *BACK, *STEP[:3]], "outputs": ()},
    "counting from another number": {
        "nodes": [("Sub", ["t", "two"], ["k"]), ("Gather", ["xs", "k"], ["x"]), COUNTS[1],
                  ("Sub", ["t_new", "two"], ["n"]), ("Less", ["n", "limit"], ["go"]), *STEP],
        "start": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("how", GOOD)
def test_a_loop_over_a_sequence_is_a_cell(how):
    model = loop(**GOOD[how])
    xs, s = RNG.standard_normal((T, B, U)).astype("f"), RNG.standard_normal((B, U)).astype("f")
    (layer,) = cellgen.onnx.read(model)
    assert layer.body.reverse is (how == "back")
    found = layer.run(s, xs, interpreted=True)
    expected = run(model, {"xs": xs, "s_0": s}).values()
    for array, other in zip(found, expected, strict=True):
        assert difference(array, other) < BAR
    (one,) = layer.directions
    assert one.from_inputs == {"s_prev": "s_0"}
    assert str(one.cell.definition.doc) == "The node 'the_loop' (Loop) of by_hand."


BAD = {
    "every other entry": (
        [("Mul", ["t", "two"], ["k"]), ("Gather", ["xs", "k"], ["x"]), *COUNTS[1:], *STEP],
        {}, "it takes entries of its sequences in another order",
    ),
    "one entry": (
        [("Gather", ["xs", "first"], ["x"]), *COUNTS[1:], *STEP], {},
        "it takes entries of its sequences in another order",
    ),
    "one step less": ([*COUNTS[:2], ("Less", ["t_new", "less"], ["go"]), *STEP], {},
                      "it does not end with its sequences"),
    "one step more": ([*COUNTS[:2], ("LessOrEqual", ["t_new", "limit"], ["go"]), *STEP], {},
                      "it does not end with its sequences"),
    "fewer steps": ([*COUNTS, *STEP], {"trips": "less"}, "it ends before its sequences do"),
    "at most so many steps": (
        [*COUNTS, *STEP], {"trips": "five"},
        "it ends before its sequences do, after 5 steps of 1000000",
    ),
    "at most so many steps of a known number": (
        [*COUNTS, *STEP], {"trips": "five", "steps": 6},
        "it ends before its sequences do, after 5 steps of 6",
    ),
    "an entry that stays from some step on": (
        [("Min", ["t", "two"], ["k"]), ("Gather", ["xs", "k"], ["x"]), *COUNTS[1:], *STEP], {},
        "it takes entries of its sequences in another order",
    ),
    "an entry that stays from a late step on": (
        [("Min", ["t", "far"], ["k"]), ("Gather", ["xs", "k"], ["x"]), *COUNTS[1:], *STEP], {},
        "it takes entries of its sequences in another order",
    ),
    "an end at a late step": (
        [*COUNTS[:2], ("Min", ["limit", "far"], ["n"]), ("Less", ["t_new", "n"], ["go"]), *STEP],
        {}, "it does not end with its sequences",
    ),
    "its end computed": (
        [*COUNTS[:2], *STEP, ("ReduceSum", ["s_new"], ["n"]), ("Less", ["n", "n"], ["go"])],
        {}, "how many steps it has depends on what it computes",
    ),
    "the number of the step": (
        [*COUNTS, STEP[0], ("Cast", ["t"], ["r"]), ("Mul", ["p", "r"], ["p2"]),
         ("Add", ["p2", "s"], ["q"]), *STEP[2:]],
        {}, "what it computes depends on the number of the step",
    ),
    "no count": (
        [COUNTS[0], ("Mul", ["t", "two"], ["t_new"]), COUNTS[2], *STEP], {"start": 1},
        "what it counts with is no count",
    ),
    "no sequence": (
        [*COUNTS[1:], ("Add", ["s", "s"], ["s_new"]), ("Identity", ["s_new"], ["y"])], {},
        "it reads no entries of a sequence",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_another_loop_is_named_and_why(what):
    nodes, options, said = BAD[what]
    model = loop(nodes, **options)
    for node in model.graph.node[-1].attribute[0].g.node:
        if node.op_type == "Cast":
            node.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
        if node.op_type == "ReduceSum":
            node.attribute.append(helper.make_attribute("keepdims", 0))
    with pytest.raises(UsageError, match=rf"; node 'the_loop' \(Loop\) .*: {said}"):
        cellgen.onnx.read(model)


def test_what_a_loop_does_not_count_with_may_have_any_length():
    model = loop([*COUNTS, *STEP])
    node = model.graph.node.pop()
    body = node.attribute[0].g
    large = typed("large", TensorProto.FLOAT, ["T", "B", U])
    body.input.append(large)
    body.output.insert(len(body.input) - 2, large)
    node.input.append("large_0")
    node.output.insert(len(body.input) - 3, "large_end")
    zeros = helper.make_node("ConstantOfShape", ["axes"], ["large_0"])
    model.graph.node.extend([zeros, node])
    xs, s = np.ones((T, B, U), "f"), np.zeros((B, U), "f")
    (layer,) = cellgen.onnx.read(model)
    found = layer.run(s, xs, interpreted=True)
    for array, other in zip(found, run(model, {"xs": xs, "s_0": s}).values(), strict=True):
        assert difference(array, other) < BAR


def test_a_node_within_a_loop_is_read_itself():
    nodes = [*COUNTS, *STEP]
    model = loop(nodes)
    weights = {"W": np.ones((1, U, U), "f"), "R": np.ones((1, U, U), "f")}
    body = model.graph.node[-1].attribute[0].g
    body.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    body.node.append(helper.make_node("RNN", ["xs", "W", "R"], ["Y"], "inner", hidden_size=U))
    (layer,) = cellgen.onnx.read(model)
    assert layer.directions[0].node == "inner"
