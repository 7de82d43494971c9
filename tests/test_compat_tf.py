"""cellgen.compat.tf against TensorFlow's own raw ops, at the bar of decision 23."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import ROOT, Arrays, bars, check_float32, check_float64, expected, measured

from cellgen import goldens, load
from cellgen.compat import tf
from cellgen.errors import ArgumentError
from cellgen.goldens import Measurement

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
BEYOND: Mapping[tuple[str, str], str] = {}


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


@pytest.mark.parametrize(("group", "figure"), bars(GROUPS, BEYOND))
def test_float32_is_within_tensorflows_bar(group: str, figure: str) -> None:
    check_float32(every("float32"), group, figure)


def test_every_group_is_compared() -> None:
    assert {item.group for item in every("float32")} == set(GROUPS)
    assert {item.case for item in every("float32")} == {path.stem for path in FILES}


@pytest.mark.parametrize("clip_gradient", ["straight_through", "exact"])
def test_float64_agrees_to_1e_13_of_the_largest_entry(clip_gradient: str) -> None:
    check_float64(every("float64", clip_gradient))
