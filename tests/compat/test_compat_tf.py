"""cellgen.compat.tf against TensorFlow's own raw ops, at the bar of the decision "Bars"."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellgen import load
from cellgen.compat import tf
from cellgen.errors import ArgumentError
from cellgen.proof import goldens
from cellgen.proof.goldens import Measurement
from tests.peers import ROOT, Arrays, Beyond, bars, check_float32, check_float64, expected, measured

FILES = sorted(ROOT.glob("tf/*.npz"))
PARAMETERS = ("wci", "wcf", "wco")
LSTM_INPUTS = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
GROUPS = tuple(
    f"{op}{kind} {direction}"
    for forward, backward, kinds in (
        ("GRUBlockCell", "GRUBlockCellGrad", ("", " (sat)")),
        ("LSTMBlockCell", "LSTMBlockCellGrad", ("", " (sat)", " float16")),
        ("BlockLSTM", "BlockLSTMGrad", ("",)),
        ("BlockLSTMV2", "BlockLSTMV2Grad", ("", " (sat)")),
    )
    for kind in kinds
    for op, direction in ((forward, "fwd"), (backward, "bwd"))
)
BEYOND: Beyond = {
    ("GRUBlockCell (sat) fwd", "worst elt"): (
        1.6e-6,
        "1.2e-6, bar 1.0e-6, where tanh is within 2.5 ulp, as without fma: one entry left of two "
        "terms that cancel (0.082 - 0.140), off by 5 ulp of those",
    ),
    ("BlockLSTMV2 (sat) fwd", "worst elt"): (
        8.5e-5,
        "one entry of cs, co and h that is left of two terms "
        "which cancel (0.90291 - 0.90354), off by 1.3 ulp of those terms; sigmoid(16.35) is 1, not "
        "1 - 6e-8; the peer's figure is of 7 arrays",
    ),
}
"""Figures above the bar: what they may be, and why; see ``peers.Beyond``."""


# --- how a file is run ---------------------------------------------------------------------------


def run_gru(z: Arrays, attributes: Mapping[str, Any]) -> Arrays:
    """GRUBlockCell, its gradient, and the weight gradients of the same cell."""
    given = [z[name] for name in ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c")]
    forward = tf.gru_block_cell(*given)
    backward = tf.gru_block_cell_grad(*given, forward.r, forward.u, forward.c, z["d_h"])
    kernel = load("gru_block_cell")
    weights = kernel.weight_gradients(
        x=z["x"], h_prev=z["h_prev"], r=forward.r,
        d_c_bar=backward.d_c_bar, d_r_bar_u_bar=backward.d_r_bar_u_bar,
    )  # fmt: skip
    return {**forward._asdict(), **backward._asdict(), **weights._asdict()}


def run_lstm(z: Arrays, attributes: Mapping[str, Any], clip_gradient: str) -> Arrays:
    """LSTMBlockCell and LSTMBlockCellGrad; the rest as TensorFlow's wrapper forms it from dicfo."""
    given = [z[name] for name in LSTM_INPUTS]
    peephole, clip = attributes["use_peephole"], attributes["cell_clip"]
    forward = tf.lstm_block_cell(*given, attributes["forget_bias"], clip, peephole)
    backward = tf.lstm_block_cell_grad(
        *given, *forward[:-1], z["cs_grad"], z["h_grad"], peephole,
        clip_gradient=clip_gradient, cell_clip=clip,
    )  # fmt: skip
    return {**forward._asdict(), **backward._asdict(), **lstm_rest(z, backward.dicfo)}


def lstm_rest(z: Arrays, dicfo: np.ndarray) -> Arrays:
    kernel = load("lstm_block_cell_no_peephole")
    wide = np.float32 if dicfo.dtype == np.float16 else dicfo.dtype
    x, h_prev, w, d_icfo = (a.astype(wide) for a in (z["x"], z["h_prev"], z["w"], dicfo))
    inputs = kernel.input_gradients(w=w, d_icfo=d_icfo, x=x)
    weights = kernel.weight_gradients(x=x, h_prev=h_prev, d_icfo=d_icfo)
    found = {"x_grad": inputs.d_x, "h_prev_grad": inputs.d_h_prev}
    found |= {"w_grad": weights.d_w, "b_grad": weights.d_b}
    return {name: array.astype(dicfo.dtype) for name, array in found.items()}


def run_block(z: Arrays, attributes: Mapping[str, Any], clip_gradient: str, v2: bool) -> Arrays:
    """BlockLSTM or BlockLSTMV2, and its gradient."""
    given = [z[name] for name in LSTM_INPUTS]
    peephole, clip = attributes["use_peephole"], attributes["cell_clip"]
    steps = attributes["seq_len_max"]
    bias = () if v2 else (attributes["forget_bias"],)
    forward = (tf.block_lstm_v2 if v2 else tf.block_lstm)(steps, *given, *bias, clip, peephole)
    backward = (tf.block_lstm_grad_v2 if v2 else tf.block_lstm_grad)(
        steps, *given, *forward, z["cs_grad"], z["h_grad"], peephole,
        clip_gradient=clip_gradient, cell_clip=clip,
    )  # fmt: skip
    return {**forward._asdict(), **backward._asdict()}


def run(path: Path, dtype: str, clip_gradient: str = "straight_through") -> Iterator[Measurement]:
    """Compare one file in one precision; float16 files in float16 where that is asked for."""
    z, meta = goldens.read(path)
    keys = [*meta["roles"]["inputs"], *meta["roles"]["cotangents"].values()]
    given = {key: z[key].astype(dtype) for key in keys if key != "seq_len_max"}
    attributes = {**meta["attrs"], "seq_len_max": int(z.get("seq_len_max", 0))}
    first, second = meta["op"].split("+")
    if first == "GRUBlockCell":
        found = run_gru(given, attributes)
    elif first == "LSTMBlockCell":
        found = run_lstm(given, attributes, clip_gradient)
    else:
        found = run_block(given, attributes, clip_gradient, first == "BlockLSTMV2")
    assert expected(meta) <= set(found)
    assert all(array.dtype == dtype for array in found.values())
    reference = {k[6:]: v for k, v in z.items() if k.startswith("ref64.")}
    if clip_gradient == "exact":
        reference |= {k[7:]: v for k, v in z.items() if k.startswith("true64.")}
    half = " float16" if meta["dtype"] == "float16" else ""
    ops = (first + half, {"BlockLSTMGradV2": "BlockLSTMV2Grad"}.get(second, second) + half)
    return measured(ops, meta, found, reference)


@cache
def every(dtype: str, clip_gradient: str = "straight_through") -> list[Measurement]:
    """All files; in single precision each in its own: float32 or float16."""
    items = []
    for path in FILES:
        own = goldens.read(path)[1]["dtype"] if dtype == "float32" else dtype
        items += run(path, own, clip_gradient)
    return items


# --- at the bar ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "figure", "limit"), bars(GROUPS, BEYOND))
def test_float32_is_within_tensorflows_bar(group: str, figure: str, limit: float | None) -> None:
    check_float32(every("float32"), group, figure, limit)


def test_every_group_is_compared() -> None:
    assert {item.group for item in every("float32")} == set(GROUPS)
    assert {item.case for item in every("float32")} == {path.stem for path in FILES}


@pytest.mark.parametrize("clip_gradient", ["straight_through", "exact"])
def test_float64_agrees_to_1e_13_of_the_largest_entry(clip_gradient: str) -> None:
    check_float64(every("float64", clip_gradient))


# --- what differs from TensorFlow, and arguments -------------------------------------------------


def sequence(T: int = 4, N: int = 2, I: int = 3, H: int = 5) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {"x": (T, N, I), "cs_prev": (N, H), "h_prev": (N, H), "w": (I + H, 4 * H)}
    shapes |= {"wci": (H,), "wcf": (H,), "wco": (H,), "b": (4 * H,)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def gradients(
    given: Arrays, steps: int, forward: tf.BlockLSTM, d: np.ndarray, peephole: bool, **options: Any
) -> tf.BlockLSTMGrad:
    return tf.block_lstm_grad(steps, *given.values(), *forward, d, d, peephole, **options)


def test_arguments_and_results_are_those_of_raw_ops() -> None:
    weights = "x cs_prev h_prev w wci wcf wco b"
    gates = "i cs f o ci co"
    expected_arguments = {
        tf.gru_block_cell: "x h_prev w_ru w_c b_ru b_c name",
        tf.gru_block_cell_grad: "x h_prev w_ru w_c b_ru b_c r u c d_h name",
        tf.lstm_block_cell: f"{weights} forget_bias cell_clip use_peephole name",
        tf.lstm_block_cell_grad: f"{weights} {gates} cs_grad h_grad use_peephole name",
        tf.block_lstm: f"seq_len_max {weights} forget_bias cell_clip use_peephole name",
        tf.block_lstm_v2: f"seq_len_max {weights} cell_clip use_peephole name",
        tf.block_lstm_grad: f"seq_len_max {weights} {gates} h cs_grad h_grad use_peephole name",
        tf.block_lstm_grad_v2: f"seq_len_max {weights} {gates} h cs_grad h_grad use_peephole name",
    }
    for function, names in expected_arguments.items():
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == names.split(), function
    defaults = {p.name: p.default for p in inspect.signature(tf.block_lstm).parameters.values()}
    assert (defaults["forget_bias"], defaults["cell_clip"]) == (1, 3)
    assert inspect.signature(tf.block_lstm_v2).parameters["cell_clip"].default == 0
    assert tf.BlockLSTMGrad._fields == (
        "x_grad", "cs_prev_grad", "h_prev_grad", "w_grad", "wci_grad", "wcf_grad", "wco_grad",
        "b_grad",
    )  # fmt: skip


@pytest.mark.parametrize("steps", [0, 2, 4])
def test_steps_beyond_seq_len_max_are_zero_and_never_read(steps: int) -> None:
    given = sequence()
    forward = tf.block_lstm(steps, *given.values(), use_peephole=True)
    assert all((array[steps:] == 0).all() for array in forward)
    short = given | {"x": given["x"][:steps].copy()}
    for whole, part in zip(forward, tf.block_lstm(steps, *short.values(), 1, 3, True), strict=True):
        np.testing.assert_array_equal(whole[:steps], part)
    given["x"][steps:] = np.nan
    d = np.ones_like(forward.h)
    d[steps:] = np.nan
    found = gradients(given, steps, forward, d, True)
    assert all(np.isfinite(array).all() for array in found)
    assert (found.x_grad[steps:] == 0).all()
    assert steps or not any(array.any() for array in found)


@pytest.mark.parametrize("steps", [-1, 5])
def test_a_seq_len_max_out_of_range_is_an_error(steps: int) -> None:
    given = sequence()
    with pytest.raises(ArgumentError, match=f"seq_len_max is {steps} .* pass seq_len_max=4"):
        tf.block_lstm(steps, *given.values())
    with pytest.raises(ArgumentError, match=f"seq_len_max is {steps}"):
        tf.block_lstm_v2(steps, *given.values())


def test_seq_len_max_may_be_an_int64_array_and_the_sequence_empty() -> None:
    given = sequence(T=0)
    forward = tf.block_lstm(np.array(0, np.int64), *given.values())
    assert forward.h.shape == (0, 2, 5)
    found = gradients(given, 0, forward, forward.h, False)
    assert not any(array.any() for array in found)


def test_without_peepholes_their_weights_are_ignored_and_their_gradients_zero() -> None:
    given = sequence()
    forward = tf.block_lstm(4, *given.values())
    nan = {name: np.full_like(given[name], np.nan) for name in PARAMETERS}
    np.testing.assert_array_equal(forward.h, tf.block_lstm(4, *(given | nan).values()).h)
    found = gradients(given | nan, 4, forward, np.ones_like(forward.h), False)
    for name in PARAMETERS:
        assert (getattr(found, f"{name}_grad") == 0).all()
        assert getattr(found, f"{name}_grad").shape == (5,)


def test_version_2_is_version_1_with_two_gates_exchanged() -> None:
    given = sequence()
    order = np.concatenate([np.arange(5) + 5 * gate for gate in (0, 2, 1, 3)])
    swapped = given | {"w": given["w"][:, order], "b": given["b"][order]}
    one = tf.block_lstm(3, *given.values(), 0, 0.5, True)
    two = tf.block_lstm_v2(3, *swapped.values(), 0.5, True)
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("peephole", [False, True])
def test_the_exact_clip_is_the_derivative_and_the_default_is_tensorflows(peephole: bool) -> None:
    given = sequence()
    forward = tf.block_lstm(4, *given.values(), 1, 0.2, peephole)
    d = np.random.default_rng(1).normal(size=forward.h.shape)
    exact = gradients(given, 4, forward, d, peephole, clip_gradient="exact", cell_clip=0.2)
    plain = gradients(given, 4, forward, d, peephole)
    step = 1e-6
    along = np.random.default_rng(2).normal(size=given["w"].shape)

    def loss(shift: float) -> float:
        moved = given | {"w": given["w"] + shift * along}
        result = tf.block_lstm(4, *moved.values(), 1, 0.2, peephole)
        return float(((result.cs + result.h) * d).sum())

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert (exact.w_grad * along).sum() == pytest.approx(slope, rel=1e-6)  # differences: 1e-8
    assert abs((plain.w_grad * along).sum() - slope) > 1e-3 * abs(slope)


def test_an_exact_clip_needs_its_bound() -> None:
    given = sequence()
    forward = tf.block_lstm(4, *given.values())
    with pytest.raises(ArgumentError, match="needs the cell_clip of the forward call"):
        gradients(given, 4, forward, forward.h, False, clip_gradient="exact")
    with pytest.raises(ArgumentError, match="clip_gradient is 'none', expected"):
        gradients(given, 4, forward, forward.h, False, clip_gradient="none")


def test_no_argument_is_written_and_lists_and_slices_pass() -> None:
    given = sequence()
    wide = np.repeat(given["w"], 2, axis=1)
    for array in given.values():
        array.flags.writeable = False
    forward = tf.block_lstm(4, *given.values(), use_peephole=True)
    gradients(given, 4, forward, forward.h, True)
    other = given | {"w": wide[:, ::2], "b": given["b"].tolist()}
    again = tf.block_lstm(4, *other.values(), use_peephole=True)
    np.testing.assert_array_equal(forward.h, again.h)


def test_a_wrong_shape_or_dtype_is_named() -> None:
    given = sequence()
    with pytest.raises(ArgumentError, match="w has shape"):
        tf.block_lstm(4, *(given | {"w": given["w"][:, 1:]}).values())
    with pytest.raises(ArgumentError, match=r"w has shape .* last axis of length 4 H"):
        tf.block_lstm_v2(4, *(given | {"w": given["w"][:, 1:]}).values())
    with pytest.raises(ArgumentError, match="b is float32"):
        tf.block_lstm(4, *(given | {"b": given["b"].astype(np.float32)}).values())
    with pytest.raises(ArgumentError, match="x has dtype int64"):
        tf.gru_block_cell(*(np.ones((2, 2), np.int64),) * 6)
