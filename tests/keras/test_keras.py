"""Cells as layers of Keras 3, on its torch or JAX backend (``KERAS_BACKEND``)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _backend in ("torch", "jax"):
    if importlib.util.find_spec(_backend):
        os.environ.setdefault("KERAS_BACKEND", _backend)
if os.environ.get("KERAS_BACKEND") not in ("torch", "jax"):
    pytest.skip("Keras' torch or JAX backend is not installed", allow_module_level=True)
pytest.importorskip("keras")

import keras  # noqa: E402

import cellgen  # noqa: E402
from cellgen import Bias, Cell, H, I, Input, State, Weight, tanh  # noqa: E402
from cellgen.cells import MGU  # noqa: E402
from cellgen.errors import ArgumentError, BuildError  # noqa: E402
from cellgen.keras import OWN, RNN  # noqa: E402
from tests.packages import metadata  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
B, T, FEATURES, UNITS = 3, 6, 4, 5
HOLES = np.array([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 0, 1]], bool)


class Own(Cell):
    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    h = tanh(x @ w + h_prev @ u + b)


ON_JAX = os.environ["KERAS_BACKEND"] == "jax"
of_keras_alone = [pytest.mark.slow] if ON_JAX else []
"""What no backend has a part in runs each time on torch's alone: JAX compiles each operator."""


def in_one_backend(test: Any) -> Any:
    """Mark a test as one ``of_keras_alone``."""
    return of_keras_alone[0](test) if of_keras_alone else test


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Numbers from one seed; in JAX of single precision, whatever other tests have asked for."""
    with contextlib.ExitStack() as stack:
        if ON_JAX:
            stack.enter_context(importlib.import_module("jax").enable_x64(False))
        keras.utils.set_random_seed(0)
        yield


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def pair(**options: Any) -> tuple[RNN, keras.layers.LSTM]:
    """A layer of ours and Keras' own, of the same numbers."""
    own, theirs = RNN("lstm", UNITS, **options), keras.layers.LSTM(UNITS, **options)
    own.build((B, T, FEATURES))
    theirs.build((B, T, FEATURES))
    gates = {"i": 0, "f": 1, "g": 2, "c": 2, "o": 3}
    kernel, recurrent, bias = theirs.get_weights()
    for variable in own.weights[: len(own.parameter_items)]:
        kind, gate = variable.name[0], variable.name[-1]
        whole = {"w": kernel, "u": recurrent, "b": bias}[kind]
        columns = slice(gates[gate] * UNITS, (gates[gate] + 1) * UNITS)
        variable.assign(whole[..., columns])
    return own, theirs


def same(own: Any, theirs: Any) -> None:
    own, theirs = (a if isinstance(a, list | tuple) else [a] for a in (own, theirs))
    for mine, other in zip(own, theirs, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(other), atol=2e-6
        )


OPTIONS: dict[str, dict[str, Any]] = {
    "last": {},
    "all": {"return_sequences": True},
    "states": {"return_sequences": True, "return_state": True},
    "backwards": {"return_sequences": True, "return_state": True, "go_backwards": True},
    "zeros": {"return_sequences": True, "zero_output_for_mask": True},
}


BOTH = ("states-True", "zeros-True")
"""What a backend computes: all steps, the state behind them, and steps that are left out."""


@pytest.mark.parametrize(
    ("name", "masked"),
    [
        pytest.param(name, masked, id=case, marks=() if case in BOTH else of_keras_alone)
        for name in OPTIONS
        for masked in (False, True)
        for case in [f"{name}-{masked}"]
    ],
)
def test_a_layer_does_what_keras_own_does(name: str, masked: bool) -> None:
    zeros = OPTIONS[name].get("zero_output_for_mask", False)
    options = {n: v for n, v in OPTIONS[name].items() if n != "zero_output_for_mask"}
    own, theirs = pair(**options)
    own.zero_output_for_mask = theirs.zero_output_for_mask = zeros
    call: dict[str, Any] = {"mask": HOLES} if masked else {}
    x = numbers(B, T, FEATURES)
    same(own(x, **call), theirs(x, **call))
    first = [numbers(B, UNITS), -numbers(B, UNITS)]
    if masked:  # before the first valid step Keras' backends differ: zeros, or the first state
        call["mask"] = HOLES | (np.arange(T) == (T - 1 if own.go_backwards else 0))
    same(own(x, initial_state=first, **call), theirs(x, initial_state=first, **call))


@in_one_backend
def test_both_directions_are_a_wrapper_around_it() -> None:
    own, theirs = pair(return_sequences=True)
    both = keras.layers.Bidirectional(own)
    others = keras.layers.Bidirectional(theirs)
    x = numbers(B, T, FEATURES)
    both(x), others(x)
    for mine, other in zip((own, theirs), (both, others), strict=True):
        assert type(other.forward_layer) is type(mine)
    back, reference = pair(return_sequences=True, go_backwards=True)
    both.backward_layer.set_weights(back.get_weights())
    others.backward_layer.set_weights(reference.get_weights())
    forth, reference = pair(return_sequences=True)
    both.forward_layer.set_weights(forth.get_weights())
    others.forward_layer.set_weights(reference.get_weights())
    same(both(x), others(x))
    same(both(x, mask=HOLES), others(x, mask=HOLES))


def test_masks_reach_the_layers_behind() -> None:
    model = keras.Sequential(
        [
            keras.Input((T, FEATURES)),
            keras.layers.Masking(0.0),
            RNN("gru", UNITS, return_sequences=True),
            RNN(MGU, 3),
        ]
    )
    x = numbers(B, T, FEATURES)
    x[:, 4:] = 0
    same(model(x), model(x[:, :4]))
    assert model.output_shape == (None, 3)


def test_a_stateful_layer_goes_on_where_it_ended() -> None:
    layer = RNN("gru", UNITS, stateful=True, return_sequences=True)
    x = numbers(B, T, FEATURES)
    parts = [layer(x[:, :2]), layer(x[:, 2:])]
    layer.reset_state()
    same(layer(x), keras.ops.concatenate(parts, axis=1))
    with pytest.raises(ArgumentError, match="stateful, and the batch is None"):
        RNN("gru", UNITS, stateful=True)(keras.Input((T, FEATURES)))


@pytest.mark.parametrize("cell", ["gru", pytest.param(Own, marks=of_keras_alone)])
def test_a_model_trains_and_is_saved(cell: Any, tmp_path: Path) -> None:
    model = keras.Sequential(
        [
            keras.Input((T, FEATURES)),
            keras.layers.Bidirectional(RNN(cell, UNITS)),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    x = numbers(16, T, FEATURES)
    losses = model.fit(x, x.sum((1, 2))[:, None], epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    OWN.clear()  # as in another process
    again = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"Own": Own})
    same(again(x), model(x))


def test_several_states_and_other_dimensions() -> None:
    layer = RNN("gated_delta_net", 6, return_state=True, dims={"N": 2, "K": 3})
    output, state = layer(numbers(B, T, FEATURES))
    assert output.shape == (B, 2, 6)
    assert state.shape == (B, 2, 6, 3)
    symbolic = RNN("gated_delta_net", 6, return_state=True, dims={"N": 2, "K": 3})(
        keras.Input((T, FEATURES))
    )
    assert [tuple(s.shape[1:]) for s in symbolic] == [(2, 6), (2, 6, 3)]


def test_weights_that_do_not_learn_are_arrays() -> None:
    gamma = np.array([0.5, 0.25], "float32").reshape(2, 1, 1)
    options = {"dims": {"N": 2, "K": 3}, "return_sequences": True}
    layer = RNN("retnet", 4, initial={"gamma": gamma}, **options)
    x = numbers(B, T, FEATURES)
    output = layer(x)
    assert [w.name for w in layer.trainable_weights] == ["w_q", "w_k", "w_v"]
    assert [w.name for w in layer.non_trainable_weights] == ["gamma"]
    weights = {w.name: keras.ops.convert_to_numpy(w) for w in layer.weights}
    np.testing.assert_array_equal(weights["gamma"], gamma)
    state = np.zeros((B, 2, 3, 4), "float32")
    expected = cellgen.load("retnet").sequence_forward(x=x.swapaxes(0, 1), s_prev=state, **weights)
    same(output, expected[0].swapaxes(0, 1))
    again = RNN.from_config(json.loads(json.dumps(layer.get_config())))
    again.build((B, T, FEATURES))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again.weight_gamma), gamma)
    again.set_weights(layer.get_weights())
    same(again(x), output)


def test_arrays_of_weights_are_checked() -> None:
    shape = (B, T, FEATURES)
    tensor = keras.ops.ones((FEATURES, UNITS))
    layer = RNN(Own, UNITS, initial={"w": tensor, "b": 0.5})
    layer.build(shape)
    same(layer.weight_w, tensor)
    same(layer.weight_b, np.full(UNITS, 0.5))
    with pytest.raises(ArgumentError, match=r"RNN\(own\): initial\['w'\] .*\(4, 4\), .*\(4, 5\)"):
        RNN(Own, UNITS, initial={"w": np.ones((4, 4))}).build(shape)
    with pytest.raises(ArgumentError, match=r"initial\['w'\]"):
        RNN(Own, UNITS, initial={"w": "ones"})
    with pytest.raises(ArgumentError, match="initial has 'gama'; did you mean 'gamma'"):
        RNN("retnet", 4, dims={"N": 2, "K": 3}, initial={"gama": 0.5})
    with pytest.raises(ArgumentError, match="initial has 'x'; expected w, u, b"):
        RNN(Own, UNITS, initial={"x": 0.5})


@pytest.mark.parametrize("axis", ["M", "T", "B", "TB"])
def test_a_dimension_that_a_cell_does_not_have_is_refused(axis: str) -> None:
    with pytest.raises(ArgumentError, match=f"dims has '{axis}'; .*expected .*K"):
        RNN("gated_delta_net", 6, dims={"N": 2, "K": 3, axis: 3})
    with pytest.raises(ArgumentError, match=r"dims\['K'\] is 0"):
        RNN("gated_delta_net", 6, dims={"N": 2, "K": 0})


def of_factor(factor: int) -> type[Cell]:
    """A class of one's own; all that are made here have one name."""

    class Scaled(Cell):
        x, h_prev = Input(I), State(H)
        w = Weight(I, H)
        h = tanh(factor * x @ w + h_prev)

    return Scaled


@in_one_backend
def test_classes_of_one_name_are_told_apart() -> None:
    layers = [RNN(of_factor(factor), UNITS, return_sequences=True) for factor in (1, 2)]
    x = numbers(B, T, FEATURES)
    outputs = [layer(x) for layer in layers]
    for layer, output in zip(layers, outputs, strict=True):
        both = keras.layers.Bidirectional(layer)
        both(x)
        copies = [both.forward_layer, RNN.from_config(layer.get_config())]
        model = keras.Sequential([keras.Input((T, FEATURES)), layer])
        copies.append(keras.models.clone_model(model).layers[0])
        for copy in copies:
            assert copy.cell is layer.cell
            copy(x)
            copy.set_weights(layer.get_weights())
            same(copy(x), output)
    np.testing.assert_array_less(1e-3, np.abs(keras.ops.convert_to_numpy(outputs[0] - outputs[1])))


def test_a_saved_class_made_in_a_function_is_found_and_others_are_refused() -> None:
    one = of_factor(1)
    config = RNN(one, UNITS).get_config()
    OWN.clear()  # as in another process
    for custom, message in (
        ({}, "not known here; pass custom_objects={'Scaled': ...}"),
        ({"Scaled": 3}, "which is 3; pass"),
        ({"Scaled": of_factor(2)}, "was saved with other equations"),
    ):
        with (
            keras.saving.custom_object_scope(custom),
            pytest.raises(TypeError, match=re.escape(message)),  # Keras wraps ours
        ):
            RNN.from_config(config)
    with keras.saving.custom_object_scope({"Scaled": one}):
        assert RNN.from_config(config).cell is one


def test_custom_objects_do_not_stand_for_cells_that_ship() -> None:
    with keras.saving.custom_object_scope({"gru": Own}):
        assert RNN("gru", UNITS).cell == "gru"
        assert keras.layers.Bidirectional(RNN("gru", UNITS)).forward_layer.cell == "gru"


def test_a_cell_of_a_package_goes_by_its_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata(tmp_path, "keras-extras", "[cellgen.cells]\nOwn = keras_extras_module:Own\n")
    (tmp_path / "keras_extras_module.py").write_text(
        "from cellgen import Cell, H, I, Input, State, Weight, tanh\n"
        "class Own(Cell, name='keras_extras_own'):\n"
        "    x, h_prev, w = Input(I), State(H), Weight(I, H)\n"
        "    h = tanh(x @ w - h_prev)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    layer = RNN("keras-extras:Own", UNITS)
    assert layer.get_config()["cell"] == "keras-extras:Own"
    with keras.saving.custom_object_scope({"Own": Own}):
        both = keras.layers.Bidirectional(layer)
    both(numbers(B, T, FEATURES))
    assert both.backward_layer.function.layout.cell == "keras_extras_own"


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=of_keras_alone)])
def test_a_stateful_layer_trains(both: bool) -> None:
    layer = RNN("lstm", UNITS, stateful=True)
    layer = keras.layers.Bidirectional(layer) if both else layer
    model = keras.Sequential([keras.Input(batch_shape=(B, T, FEATURES)), layer])
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse")
    x = numbers(4 * B, T, FEATURES)
    losses = model.fit(x, x.sum((1, 2))[:, None], B, epochs=6, shuffle=False, verbose=0)
    assert losses.history["loss"][-1] < losses.history["loss"][0]
    assert all(np.abs(keras.ops.convert_to_numpy(s)).min() > 0 for s in layer.states)


@in_one_backend
def test_states_are_those_of_keras() -> None:
    own, theirs = pair(stateful=True)
    x = numbers(B, T, FEATURES)
    own(x), theirs(x)
    same(own.states, theirs.states)
    same(own(x, initial_state=own.states), theirs(x, initial_state=theirs.states))
    assert len(own.weights) == len(own.parameter_items) + 2
    assert RNN("lstm", UNITS).states is keras.layers.LSTM(UNITS).states is None


def test_an_input_of_no_steps_has_no_last_one() -> None:
    x = numbers(B, 0, FEATURES)
    with pytest.raises(ArgumentError, match=r"RNN\(gru\): the input has shape \(3, 0, 4\)"):
        RNN("gru", UNITS)(x)
    first = numbers(B, UNITS)
    layer = RNN("gru", UNITS, return_sequences=True, return_state=True)
    output, state = layer(x, initial_state=first)
    assert output.shape == (B, 0, UNITS)
    same(state, first)


def test_what_no_layer_can_be_is_refused() -> None:
    with pytest.raises(ArgumentError, match="initial_state has 2 tensors, expected 1"):
        RNN("gru", UNITS)(numbers(B, T, FEATURES), initial_state=[numbers(B, UNITS)] * 2)
    with pytest.raises(ArgumentError, match="units is 0"):
        RNN("gru", 0)
    with pytest.raises(BuildError, match="expected one input"):
        RNN("gru_d", UNITS)
    with pytest.raises(ArgumentError, match="K is missing"):
        RNN("gated_delta_net", 6, dims={"N": 2})(numbers(B, T, FEATURES))
