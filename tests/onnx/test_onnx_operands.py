"""Initial states and lengths: inputs of the model, in the model, or made of shapes.

What a node starts at is never taken for absent: it is an argument, or it is carried.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import cellgen
import cellgen.onnx
from cellgen.cli.commands import app
from cellgen.errors import UsageError
from tests.documents import DOCUMENTS
from tests.onnx.models import arguments, of_body, of_operator
from tests.onnx.sessions import difference, run

BAR = 2e-6
RNG = np.random.default_rng(11)
OPERANDS = {"sequence_lens": 1, "initial_h": 2, "initial_c": 3}
"""Places among the arguments of ``run``."""


def held(model, given, *names):
    """Move inputs of a model into it."""
    for name in names:
        model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
        model.graph.initializer.append(numpy_helper.from_array(given[name], name))
    return model


def made(model, name, nodes, **arrays):
    """Let nodes make what was an input of a model."""
    model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    for place, (op, takes, gives, options) in enumerate(nodes):
        node = helper.make_node(op, takes, gives, **options)
        model.graph.node.insert(place, node)
    return model


def assert_equal(found, expected):
    for array, other in zip(found, expected, strict=True):
        assert difference(array, other) < BAR


def of_rows(model, rows):
    """A model whose rows are free, and an input of so many."""
    for name in ("X",):
        value = next(v for v in model.graph.input if v.name == name)
        for axis, free in enumerate(("T", "B")):
            value.type.tensor_type.shape.dim[axis].dim_param = free
    return RNG.standard_normal((4, rows, 3)).astype("f")


@pytest.mark.parametrize("name", OPERANDS)
def test_an_operand_that_is_an_input_has_to_be_passed(name):
    model, given = of_operator("LSTM", lengths=(5, 3))
    (layer,) = cellgen.onnx.read(model)
    values = list(arguments(given))
    assert_equal(layer.run(*values, interpreted=True), run(model, given).values())
    values[OPERANDS[name]] = None
    said = rf"'the_node' \(LSTM\): {name} is '{name}', which depends on .*; pass {name}=\.\.\., \("
    with pytest.raises(UsageError, match=said):
        layer.run(*values, interpreted=True)
    (one,) = layer.directions
    assert one.from_inputs == {
        "h_prev": "initial_h", "c_prev": "initial_c", "lengths": "sequence_lens",
    }  # fmt: skip
    assert len(tuple(one)) == 2  # they are arguments of the cell, so that nothing is dropped


def test_what_stands_in_the_model_is_carried(tmp_path):
    model, given = of_operator("LSTM", lengths=(5, 3), directions=2, direction="bidirectional")
    held(model, given, "sequence_lens", "initial_h", "initial_c")
    expected = run(model, {"X": given["X"]})
    (layer,) = cellgen.onnx.read(model)
    assert_equal(layer.run(given["X"], interpreted=True), expected.values())
    for place, one in enumerate(cellgen.onnx.load(model)):
        assert sorted(one.carried) == ["c_prev", "h_prev", "lengths"]
        kernel = cellgen.compile(one.cell)
        found = kernel.sequence_forward(
            x=given["X"], reverse=one.reverse, **one.carried, **one.weights
        )
        assert difference(found.h, expected["Y"][:, place]) < BAR
        with pytest.raises(UsageError, match=r"holds h_prev, c_prev, lengths beside its weights"):
            _, _ = one
    onnx.save(model, tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["import", f"{tmp_path}/m.onnx", f"{tmp_path}/cells.py"])
    names = [line.rpartition("/")[2] for line in done.stdout.split()]
    assert names[1:3] == ["cells.the_node.npz", "cells.the_node.arguments.npz"]
    with np.load(tmp_path / names[2]) as archive:
        np.testing.assert_array_equal(archive["h_prev"], given["initial_h"][0])
        np.testing.assert_array_equal(archive["lengths"], [5, 3])
    said = "arguments that stand in the model, in cells.the_node.arguments.npz: h_prev, c_prev, len"
    assert said in (tmp_path / "cells.py").read_text()


def test_what_the_inputs_make_is_named_in_the_declaration():
    text = cellgen.onnx.declared_text(of_operator("GRU", lengths=(5, 3))[0])
    assert "h_prev is 'initial_h' of the model, which its inputs make" in text
    assert "lengths is 'sequence_lens' of the model, which its inputs make" in text


BATCH = [
    ("Shape", ["X"], ["axes"], {}),
    ("Gather", ["axes", "one"], ["rows"], {"axis": 0}),
]
"""The number of rows of X, as exporters read it."""
LEARNED = [
    *BATCH,
    ("Concat", ["minus", "rows", "minus"], ["wanted"], {"axis": 0}),
    ("Equal", ["wanted", "minus"], ["keep"], {}),
    ("Where", ["keep", "ones", "wanted"], ["shape"], {}),
    ("Expand", ["learned", "shape"], ["initial_h"], {}),
]
"""``h0.expand(-1, B, -1)`` as torch exports it."""
NUMBERS = {
    "one": np.array([1]),
    "minus": np.array([-1]),
    "ones": np.ones(3, np.int64),
    "units": np.array([4]),
}


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_learned_state_that_is_expanded_starts_every_row(rows):
    learned = RNG.standard_normal((1, 1, 4)).astype("f")
    model, _ = of_operator("GRU")
    model = made(model, "initial_h", LEARNED, learned=learned, **NUMBERS)
    x = of_rows(model, rows)
    (layer,) = cellgen.onnx.read(model)
    assert_equal(layer.run(x, interpreted=True), run(model, {"X": x}).values())
    (one,) = layer.directions
    np.testing.assert_array_equal(one.starts["h_prev"], learned[0])
    assert not one.from_inputs


def test_zeros_of_the_inputs_shape_are_zeros_and_nothing_is_carried():
    nodes = [
        *BATCH,
        ("Concat", ["one", "rows", "units"], ["shape"], {"axis": 0}),
        ("ConstantOfShape", ["shape"], ["initial_h"], {}),
    ]
    model = made(of_operator("GRU")[0], "initial_h", nodes, **NUMBERS)
    x = of_rows(model, 5)
    (layer,) = cellgen.onnx.read(model)
    assert_equal(layer.run(x, interpreted=True), run(model, {"X": x}).values())
    (one,) = layer.directions
    assert len(tuple(one)) == 2
    assert not one.from_inputs
    assert not one.carried


@pytest.mark.parametrize(
    "nodes",
    [
        [("ReduceMean", ["X"], ["m"], {"axes": [0, 2]}), ("Mul", ["m", "h"], ["initial_h"], {})],
        [*BATCH, ("Cast", ["rows"], ["n"], {"to": 1}), ("Mul", ["h", "n"], ["initial_h"], {})],
    ],
    ids=["of values", "of the number of rows"],
)
def test_a_state_that_depends_on_inputs_otherwise_has_to_be_passed(nodes):
    h = RNG.standard_normal((1, 1, 4)).astype("f")
    model = made(of_operator("GRU")[0], "initial_h", nodes, h=h, **NUMBERS)
    x = of_rows(model, 1)
    (layer,) = cellgen.onnx.read(model)
    assert layer.directions[0].from_inputs == {"h_prev": "initial_h"}
    with pytest.raises(UsageError, match="pass initial_h="):
        layer.run(x, interpreted=True)


def test_a_state_of_another_shape_is_told():
    model, given = of_operator("GRU")
    held(model, {"initial_h": given["initial_h"][..., :3]}, "initial_h")
    with pytest.raises(UsageError, match=r"initial_h has shape \(1, 2, 3\), expected \(1, 2, 4\)"):
        cellgen.onnx.read(model)


def test_a_state_of_a_scan_that_stands_in_the_model_is_carried():
    start, x = (RNG.standard_normal(n).astype("f") for n in ((1, 3), (4, 1, 3)))
    model = of_body([helper.make_node("Add", ["x", "s"], ["s_new"])])
    (layer,) = cellgen.onnx.read(model)
    with pytest.raises(UsageError, match=r"s_prev starts at 's_0', which depends on"):
        layer.run(None, x, interpreted=True)
    held(model, {"s_0": start}, "s_0")
    (layer,) = cellgen.onnx.read(model)
    assert_equal(layer.run(None, x, interpreted=True), run(model, {"x_all": x}).values())
    np.testing.assert_array_equal(layer.directions[0].starts["s_prev"], start)


def test_the_page_names_attributes_that_there_are():
    text = (DOCUMENTS / "how-to/onnx.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`imported\.(\w+)", text))
    assert {"starts", "lengths", "from_inputs"} <= named
    assert named <= {*dir(cellgen.onnx.Imported), *cellgen.onnx.Imported.__dataclass_fields__}
