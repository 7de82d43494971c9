"""The cells of ``torch.nn`` in torch's own layout: parameters need no conversion, nor do gradients.

Rows of ``weight_ih`` and ``weight_hh`` are gate after gate, as in ``torch.nn``: r, z, n of the GRU,
i, f, g, o of the LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import relu, sigmoid, split, tanh, transpose
from cellgen.language.value import Dim, H, I


class TorchGRU(Cell, name="torch_gru"):
    """Gated recurrent unit of ``torch.nn.GRU``: reset gate after the recurrent product."""

    x, h_prev = Input(I), State(H)
    weight_ih, weight_hh = Weight(3 * H, I), Weight(3 * H, H)
    bias_ih, bias_hh = Bias(3 * H), Bias(3 * H)

    r_x, z_x, n_x = split(x @ transpose(weight_ih) + bias_ih, 3)
    r_h, z_h, n_h = split(h_prev @ transpose(weight_hh) + bias_hh, 3)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    n = tanh(n_x + r * n_h)
    h = (1 - z) * n + z * h_prev


class TorchLSTM(Cell, name="torch_lstm"):
    """Long short-term memory of ``torch.nn.LSTM``."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    weight_ih, weight_hh = Weight(4 * H, I), Weight(4 * H, H)
    bias_ih, bias_hh = Bias(4 * H), Bias(4 * H)

    gates = x @ transpose(weight_ih) + bias_ih + h_prev @ transpose(weight_hh) + bias_hh
    i_bar, f_bar, g_bar, o_bar = split(gates, 4)
    c = sigmoid(f_bar) * c_prev + sigmoid(i_bar) * tanh(g_bar)
    h = sigmoid(o_bar) * tanh(c)

    outputs = h, c


class TorchLSTMProjection(Cell, name="torch_lstm_projection"):
    """Long short-term memory of ``torch.nn.LSTM`` with ``proj_size``: P is the width of h."""

    P = Dim("P")
    x, h_prev, c_prev = Input(I), State(P), State(H)
    weight_ih, weight_hh = Weight(4 * H, I), Weight(4 * H, P)
    bias_ih, bias_hh, weight_hr = Bias(4 * H), Bias(4 * H), Weight(P, H)

    gates = x @ transpose(weight_ih) + bias_ih + h_prev @ transpose(weight_hh) + bias_hh
    i_bar, f_bar, g_bar, o_bar = split(gates, 4)
    c = sigmoid(f_bar) * c_prev + sigmoid(i_bar) * tanh(g_bar)
    h = (sigmoid(o_bar) * tanh(c)) @ transpose(weight_hr)

    outputs = h, c


def _rnn(function: Callable[[Expr], Expr], spelled: str) -> type[Cell]:
    class TorchRNN(Cell, name=f"torch_rnn_{spelled}"):
        __doc__ = f"""Elman's network of ``torch.nn.RNN`` with {spelled}."""

        x, h_prev = Input(I), State(H)
        weight_ih, weight_hh = Weight(H, I), Weight(H, H)
        bias_ih, bias_hh = Bias(H), Bias(H)

        h = function(x @ transpose(weight_ih) + bias_ih + h_prev @ transpose(weight_hh) + bias_hh)

    return TorchRNN


TorchRNN = _rnn(tanh, "tanh")
TorchRNNRelu = _rnn(relu, "relu")

BY_MODE: Mapping[str, type[Cell]] = {
    "GRU": TorchGRU,
    "LSTM": TorchLSTM,
    "LSTM with proj_size": TorchLSTMProjection,
    "RNN_TANH": TorchRNN,
    "RNN_RELU": TorchRNNRelu,
}
"""Cells by what ``torch.nn`` calls the mode of a layer."""
