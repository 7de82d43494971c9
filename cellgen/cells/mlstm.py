"""The matrix LSTM of xLSTM."""

import math

from sympy import sqrt

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import (
    absolute,
    exp,
    expand_dims,
    log_sigmoid,
    maximum,
    outer,
    sigmoid,
    units_sum,
)
from cellgen.language.value import Dim, I

N, D, K = Dim("N"), Dim("D"), Dim("K")


class MLSTM(Cell, name="mlstm"):
    """Matrix LSTM of xLSTM with exponential input gates and N heads: a covariance of values (D) and
    keys (K), its normaliser n, and m, which keeps the exponentials finite and starts at the first
    gate (Beck et al. 2024, arXiv:2405.04517, equations 19 to 27)."""

    x, c_prev, n_prev = Input(I), State(N, D, K), State(N, K)
    m_prev = State(N, 1, initial=-math.inf)
    w_q, w_k, w_v, w_o = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D), Weight(I, N, D)
    b_q, b_k, b_v, b_o = Bias(N, K), Bias(N, K), Bias(N, D), Bias(N, D)
    w_i, w_f, b_i, b_f = Weight(I, N, 1), Weight(I, N, 1), Bias(N, 1), Bias(N, 1)

    q, k, v = x @ w_q + b_q, x @ w_k / sqrt(K) + b_k, x @ w_v + b_v
    i_bar, f_bar, o = x @ w_i + b_i, x @ w_f + b_f, sigmoid(x @ w_o + b_o)
    log_f = log_sigmoid(f_bar) + m_prev
    m = maximum(log_f, i_bar)
    i, f = exp(i_bar - m), exp(log_f - m)
    c = expand_dims(f, -1) * c_prev + expand_dims(i, -1) * outer(v, k)
    n = f * n_prev + i * k
    h = o * (c @ q) / maximum(absolute(units_sum(n * q)), exp(-m))

    outputs = h, c, n, m


class MLSTMSigmoid(Cell, name="mlstm_sigmoid"):
    """Matrix LSTM with sigmoid input gates and N heads, which needs no exponent to be kept finite
    (Beck et al. 2025, arXiv:2503.14376, the variant mLSTMsig; with the normaliser, which the
    authors' kernels have too and can leave out)."""

    x, c_prev, n_prev = Input(I), State(N, D, K), State(N, K)
    w_q, w_k, w_v, w_o = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D), Weight(I, N, D)
    b_q, b_k, b_v, b_o = Bias(N, K), Bias(N, K), Bias(N, D), Bias(N, D)
    w_i, w_f, b_i, b_f = Weight(I, N, 1), Weight(I, N, 1), Bias(N, 1), Bias(N, 1)

    q, k, v = x @ w_q + b_q, x @ w_k / sqrt(K) + b_k, x @ w_v + b_v
    i, f, o = sigmoid(x @ w_i + b_i), sigmoid(x @ w_f + b_f), sigmoid(x @ w_o + b_o)
    c = expand_dims(f, -1) * c_prev + expand_dims(i, -1) * outer(v, k)
    n = f * n_prev + i * k
    h = o * (c @ q) / maximum(absolute(units_sum(n * q)), 1)

    outputs = h, c, n
