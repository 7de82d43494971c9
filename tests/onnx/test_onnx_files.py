"""Small files that exporters wrote: torch.onnx (script and dynamo) and tf2onnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import cellgen
import cellgen.onnx
from cellgen.onnx.finding import recurrent
from cellgen.onnx.reading import opened
from tests.onnx.sessions import difference, run

BAR = 2e-6
RNG = np.random.default_rng(5)
FILES = Path(__file__).parent / "files"


def with_values(model, names):
    """A model that gives some of its inner values too."""
    own = {value.name for value in (*model.graph.input, *model.graph.output)}
    more = [helper.make_empty_tensor_value_info(n) for n in dict.fromkeys(names) if n not in own]
    model.graph.output.extend(more)
    return model


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("name", "starts"),
    [("torch_gru_dynamo", []), ("torch_gru_learned", ["h_prev"]),
     ("torch_lstm_learned", ["h_prev", "c_prev"])],
)  # fmt: skip
def test_layers_that_torch_exported_are_read(name, starts, rows):
    model = onnx.load(FILES / f"{name}.onnx")
    nodes = [node for node in model.graph.node if node.op_type in ("LSTM", "GRU")]
    layers = cellgen.onnx.read(FILES / f"{name}.onnx")
    assert len(layers) == len(nodes) == (1 if "dynamo" in name else 2)
    (taken,) = (value.name for value in model.graph.input)
    x = {taken: RNG.standard_normal((rows, 6, 3)).astype("f")}
    shown = with_values(model, [n for node in nodes for n in (node.input[0], node.output[0])])
    every = {**x, **run(shown, x)}
    for layer, node in zip(layers, nodes, strict=True):
        found = layer.run(every[node.input[0]], interpreted=True)[0]
        assert difference(found, every[node.output[0]]) < BAR
        for one in layer.directions:
            assert list(one.starts) == starts
            assert all(start.shape == (1, 4) for start in one.starts.values())
            assert not one.from_inputs


@pytest.mark.parametrize("name", ["keras_gru", "keras_simple"])
def test_layers_of_keras_that_tf2onnx_wrote_are_read(name):
    path = FILES / f"{name}.onnx"
    x = RNG.standard_normal((3, 7, 3)).astype("f")
    (expected,) = run(onnx.load(path), {"x": x}).values()
    (layer,) = cellgen.onnx.read(path)
    steps = np.ascontiguousarray(x.swapaxes(0, 1))
    last, every = layer.run(None, steps, interpreted=True)
    assert difference(every.swapaxes(0, 1), expected) < BAR
    assert difference(last, expected[:, -1]) < BAR
    (one,) = layer.directions
    assert not one.from_inputs
    cell, weights = one
    (start,) = (str(state.name) for state in cell.definition.states)
    (read,) = (port.name for port in layer.body.inputs)
    kernel = cellgen.compile(cell)
    found = kernel.sequence_forward(**{read: steps, start: np.zeros((3, 4), "f")}, **weights)
    (output,) = (str(value.name) for value in cell.definition.outputs)
    assert difference(getattr(found, output), every) < BAR


def test_a_mask_of_keras_is_a_sequence_of_the_cell():
    path = FILES / "keras_gru_mask.onnx"
    model = onnx.load(path)
    x = RNG.standard_normal((3, 6, 3)).astype("f")
    x[0, 4:] = x[2, 1:] = 0
    (layer,) = cellgen.onnx.read(path)
    taken = recurrent(opened(path))
    names = next(taken).node.input[len(layer.body.states) :]
    every = run(with_values(model, names), {"x": x})
    result = layer.run(
        *[None] * len(layer.body.states), *(every[name] for name in names), interpreted=True
    )
    assert difference(result[-1].swapaxes(0, 1), next(iter(every.values()))) < BAR
