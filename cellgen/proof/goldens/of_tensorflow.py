"""Run TensorFlow's cases: one step of its block cells."""

from __future__ import annotations

import numpy as np

from cellgen.proof.goldens.case import Array, Arrays, Attributes, forward, step_gradients
from cellgen.runtime.kernel import Kernel


def run_tf_gru(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """TensorFlow's GRUBlockCell and its gradient: the names are the cell's own."""
    names = ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c", "d_h")
    known = {name: z[name] for name in names}
    outputs = forward(kernel, known)
    return {**outputs, **step_gradients(kernel, {**known, **outputs})}


_TF_LSTM_GRADIENTS = {
    "cs_prev_grad": "d_cs_prev",
    "dicfo": "d_icfo",
    "wci_grad": "d_wci",
    "wcf_grad": "d_wcf",
    "wco_grad": "d_wco",
    "x_grad": "d_x",
    "h_prev_grad": "d_h_prev",
    "w_grad": "d_w",
    "b_grad": "d_b",
}


def run_tf_lstm(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """TensorFlow's LSTMBlockCell and its gradient; without peepholes theirs are zero."""
    names = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
    known: dict[str, Array | float] = {name: z[name] for name in names}
    known |= {name: float(attributes[name]) for name in ("forget_bias", "cell_clip")}
    outputs = forward(kernel, known)
    upstream = {"d_cs": z["cs_grad"], "d_h": z["h_grad"]}
    gradients = step_gradients(kernel, {**known, **outputs, **upstream})
    zero = np.zeros_like(z["wci"])
    return {**outputs, **{k: gradients.get(name, zero) for k, name in _TF_LSTM_GRADIENTS.items()}}
