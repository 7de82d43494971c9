"""cellgen.compat.keras against Keras' own layers, at the bar of the decision "Bars"."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellgen.compat import keras
from cellgen.errors import ArgumentError
from cellgen.proof import goldens
from cellgen.proof.goldens import Measurement
from tests.peers import ROOT, Arrays, Beyond, bars, check_float32, check_float64, expected, measured

FILES = sorted(ROOT.glob("keras/*.npz"))
GROUPS = tuple(f"keras.{n} {way}" for n in ("GRU", "LSTM", "SimpleRNN") for way in ("fwd", "bwd"))
FUNCTIONS = {"GRU": keras.gru_vjp, "LSTM": keras.lstm_vjp, "SimpleRNN": keras.simple_rnn_vjp}
BEYOND: Beyond = {}
"""Figures above the bar: what they may be, and why; see ``peers.Beyond``."""


def call(meta: Mapping[str, Any], z: Arrays) -> tuple[Any, Any]:
    """Run one case with the function that it is a case of."""
    attrs = {name: value for name, value in meta["attrs"].items() if name != "use_bias"}
    states = [z[name] for name in sorted(z) if name.startswith("initial_state")]
    weights = {name: z.get(name) for name in ("kernel", "recurrent_kernel", "bias")}
    function = FUNCTIONS[meta["op"].removeprefix("keras.layers.")]
    return function(z["input"], states or None, z.get("mask"), **weights, **attrs)


def run(path: Path) -> list[Measurement]:
    """Compare every result and gradient of one file; a float32 file with its float64 twin."""
    z, meta = goldens.read(path)
    (output, *states), backward = call(meta, z)
    found = {"output": output} | {f"state_{k}": state for k, state in enumerate(states)}
    gradients = backward(z["cot.output"], [z.get(f"cot.state_{k}") for k in range(len(states))])
    initial = gradients.pop("initial_state")
    gradients["input"] = gradients.pop("sequence")
    gradients |= {f"initial_state_{k}": array for k, array in enumerate(initial)}
    found |= {f"grad.{n}": a for n, a in gradients.items() if n in z}
    assert set(found) == expected(meta)
    assert all(array.dtype == meta["dtype"] for array in found.values())
    twin = path.with_name(path.name.replace("_f32.", "_f64."))
    op = meta["op"].replace("keras.layers.", "keras.")
    return measured((op,) * 2, meta, found, goldens.read(twin)[0])


@cache
def every(dtype: str) -> list[Measurement]:
    return [item for path in FILES if f"_f{dtype[5:]}." in path.name for item in run(path)]


@pytest.mark.parametrize(("group", "figure", "limit"), bars(GROUPS, BEYOND))
def test_float32_is_within_keras_bar(group: str, figure: str, limit: float | None) -> None:
    check_float32(every("float32"), group, figure, limit)


def test_float64_agrees_to_1e_13_of_the_largest_entry() -> None:
    check_float64(every("float64"))
    assert len({item.case for item in every("float32")}) == 22
    assert len({item.case for item in every("float64")}) == 22


# --- semantics -----------------------------------------------------------------------------------


def layer(path: str) -> tuple[Arrays, dict[str, np.ndarray]]:
    z, _ = goldens.read(ROOT / "keras" / path)
    return z, {name: z[name] for name in ("kernel", "recurrent_kernel", "bias")}


def test_without_return_sequences_the_output_is_the_last_one() -> None:
    z, weights = layer("lstm_holes_f64.npz")
    states = [z["initial_state_0"], z["initial_state_1"]]
    call = (z["input"], states, z["mask"])
    last, backward = keras.lstm_vjp(*call, **weights)
    every_step, *finals = keras.lstm(*call, **weights, return_sequences=True, return_state=True)
    np.testing.assert_array_equal(last, every_step[:, -1])
    np.testing.assert_array_equal(last, finals[0])
    _, of_states = keras.lstm_vjp(*call, **weights, return_state=True)
    one, other = backward(np.ones_like(last)), of_states(None, [np.ones_like(last), None])
    for name in ("sequence", *weights):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("go_backwards", [False, True])
def test_zeros_for_the_mask_stand_in_the_last_output_too(go_backwards: bool) -> None:
    """As Keras 3.15 does, whose text says that it needs ``return_sequences``."""
    z, weights = layer("lstm_holes_f64.npz")
    mask = np.ones(z["input"].shape[:2], bool)
    mask[0, 0 if go_backwards else -1] = False
    given = {**weights, "go_backwards": go_backwards, "return_state": True}
    (held, h, c), of_held = keras.lstm_vjp(z["input"], None, mask, **given)
    (output, *states), backward = keras.lstm_vjp(
        z["input"], None, mask, **given, zero_output_for_mask=True
    )
    np.testing.assert_array_equal(states, [h, c])
    assert np.all(output[0] == 0) and np.all(h[0] != 0)  # noqa: PT018
    np.testing.assert_array_equal(output[1:], held[1:])
    one, other = backward(np.ones_like(output)), of_held(np.ones_like(output))
    assert np.all(one["sequence"][0] == 0) and np.any(other["sequence"][0] != 0)  # noqa: PT018
    np.testing.assert_array_equal(one["sequence"][1:], other["sequence"][1:])


def test_going_backwards_reads_from_the_end() -> None:
    z, weights = layer("gru_reset_after_nomask_f64.npz")
    given = (z["input"], [z["initial_state_0"]])
    there = keras.gru(*given, **weights, go_backwards=True, return_sequences=True)
    flipped = keras.gru(z["input"][:, ::-1], given[1], **weights, return_sequences=True)
    np.testing.assert_array_equal(there, flipped)


def test_wrong_arguments_are_named() -> None:
    z, weights = layer("gru_reset_after_nomask_f64.npz")
    with pytest.raises(ArgumentError, match=r"bias has shape \(18,\), expected \(2, 18\)"):
        keras.gru(z["input"], **weights | {"bias": weights["bias"][0]})
    with pytest.raises(ArgumentError, match="initial_state holds 2 arrays, expected 1: h"):
        keras.gru(z["input"], [z["initial_state_0"]] * 2, **weights)
    with pytest.raises(ArgumentError, match=r"kernel has shape \(4, 17\) and recurrent_kernel"):
        keras.gru(z["input"], **weights | {"kernel": weights["kernel"][:, 1:]})
    with pytest.raises(ArgumentError, match="activation 'mish' is unknown, expected one of linear"):
        keras.gru(z["input"], **weights, activation="mish")
