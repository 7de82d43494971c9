"""A nonlinear recurrence of matrices."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, expand_dims, outer, silu, softplus, tanh
from cellgen.language.value import Dim, I

N, D, K = Dim("N"), Dim("D"), Dim("K")


class M2RNN(Cell, name="m2rnn"):
    """Matrix-to-matrix RNN (M2RNN) of N heads: a matrix of K x D, mapped by a weight and tanh with
    the outer product of a key and a value, kept by a forget gate (Mishra et al. 2026,
    arXiv:2603.14360, the recurrence of a head; before gate, norm and projection)."""

    x, s_prev = Input(I), State(N, K, D)
    w_q, w_k, w_v = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D)
    w_f, a_log, b_f = Weight(I, N, 1), Weight(N, 1), Bias(N, 1)
    u, d = Weight(N, D, D), Weight(N, D)

    q, k, v = silu(x @ w_q), silu(x @ w_k), silu(x @ w_v)
    f = expand_dims(exp(-exp(a_log) * softplus(x @ w_f + b_f)), -1)
    z = tanh(s_prev @ u + outer(k, v))
    s = f * s_prev + (1 - f) * z
    y = q @ s + d * v

    outputs = y, s
