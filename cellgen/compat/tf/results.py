"""What the ops return: named tuples with the names of ``tf.raw_ops``."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class GRUBlockCell(NamedTuple):
    """Gates, candidate and new state, each (N, H)."""

    r: Array
    u: Array
    c: Array
    h: Array


class GRUBlockCellGrad(NamedTuple):
    """Gradients: d_x (N, I), d_h_prev (N, H), d_c_bar (N, H), d_r_bar_u_bar (N, 2 H)."""

    d_x: Array
    d_h_prev: Array
    d_c_bar: Array
    d_r_bar_u_bar: Array


class LSTMBlockCell(NamedTuple):
    """Gates, cell state (clipped), its tanh and the output, each (N, H)."""

    i: Array
    cs: Array
    f: Array
    o: Array
    ci: Array
    co: Array
    h: Array


class LSTMBlockCellGrad(NamedTuple):
    """Gradients: cs_prev_grad (N, H), dicfo (N, 4 H) of the pre-activations, peepholes (H)."""

    cs_prev_grad: Array
    dicfo: Array
    wci_grad: Array
    wcf_grad: Array
    wco_grad: Array


class BlockLSTM(NamedTuple):
    """What ``LSTMBlockCell`` returns at every step, each (T, N, H)."""

    i: Array
    cs: Array
    f: Array
    o: Array
    ci: Array
    co: Array
    h: Array


class BlockLSTMGrad(NamedTuple):
    """Gradients by argument: x (T, N, I), cs_prev and h_prev (N, H), then the parameters."""

    x_grad: Array
    cs_prev_grad: Array
    h_prev_grad: Array
    w_grad: Array
    wci_grad: Array
    wcf_grad: Array
    wco_grad: Array
    b_grad: Array
