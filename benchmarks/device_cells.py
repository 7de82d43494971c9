"""Cells whose inputs are finished products: what is left of a layer without its input product.

A peer that takes the product as done (FlashRNN) is timed beside these, one that includes it beside
the cells that ship; of minGRU, what is left is the scan.
"""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, log_sigmoid, maximum, sigmoid, tanh
from cellgen.language.value import Dim, H

K, D = Dim("K"), Dim("D")


class LSTMFinished(Cell):
    """LSTM of finished input products."""

    a_i, a_f, a_g, a_o = Input(H), Input(H), Input(H), Input(H)
    h_prev, c_prev = State(H), State(H)
    u_i, u_f, u_g, u_o = Weight(H, H), Weight(H, H), Weight(H, H), Weight(H, H)
    b_i, b_f, b_g, b_o = Bias(H), Bias(H), Bias(H), Bias(H)

    i, f = sigmoid(a_i + h_prev @ u_i + b_i), sigmoid(a_f + h_prev @ u_f + b_f)
    g, o = tanh(a_g + h_prev @ u_g + b_g), sigmoid(a_o + h_prev @ u_o + b_o)
    c = f * c_prev + i * g
    h = o * tanh(c)

    outputs = h, c


class GRUFinished(Cell):
    """GRU of finished input products, reset gate after the recurrent one."""

    a_z, a_r, a_n, h_prev = Input(H), Input(H), Input(H), State(H)
    u_z, u_r, u_n = Weight(H, H), Weight(H, H), Weight(H, H)
    b_z, b_r, b_n, c_n = Bias(H), Bias(H), Bias(H), Bias(H)

    z, r = sigmoid(a_z + h_prev @ u_z + b_z), sigmoid(a_r + h_prev @ u_r + b_r)
    n = tanh(a_n + b_n + r * (h_prev @ u_n + c_n))
    h = (1 - z) * n + z * h_prev


class SLSTMFinished(Cell):
    """sLSTM of K heads of D units of finished input products."""

    a_z, a_i, a_f, a_o = Input(K, D), Input(K, D), Input(K, D), Input(K, D)
    h_prev, c_prev, n_prev, m_prev = State(K, D), State(K, D), State(K, D), State(K, D)
    r_z, r_i, r_f, r_o = Weight(K, D, D), Weight(K, D, D), Weight(K, D, D), Weight(K, D, D)
    b_z, b_i, b_f, b_o = Bias(K, D), Bias(K, D), Bias(K, D), Bias(K, D)

    z, i_bar = tanh(a_z + h_prev @ r_z + b_z), a_i + h_prev @ r_i + b_i
    f_bar, o = a_f + h_prev @ r_f + b_f, sigmoid(a_o + h_prev @ r_o + b_o)
    log_f = log_sigmoid(f_bar) + m_prev
    m = maximum(log_f, i_bar)
    i, f = exp(i_bar - m), exp(log_f - m)
    c = f * c_prev + i * z
    n = f * n_prev + i
    h = o * c / n


class MinGRUScan(Cell):
    """minGRU of finished input products: two arrays read, one written."""

    a_z, n, h_prev = Input(H), Input(H), State(H)

    h = h_prev + sigmoid(a_z) * (n - h_prev)
