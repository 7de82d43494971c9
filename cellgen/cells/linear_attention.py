"""Linear attention as a recurrence: gated by key, or with a decay for each head."""

from sympy import sqrt

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, expand_dims, log_sigmoid, outer
from cellgen.language.value import Dim, I

N, D, K = Dim("N"), Dim("D"), Dim("K")


class GatedLinearAttention(Cell, name="gla"):
    """Linear attention whose memory decays by a gate for each key, N heads (Yang et al. 2024,
    arXiv:2312.06635, section 4; the gate to the power 1/16, its weight w_a of full rank, where the
    paper's is a product of two of rank 16)."""

    x, s_prev = Input(I), State(N, K, D)
    w_q, w_k, w_v = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D)
    w_a, b_a = Weight(I, N, K), Bias(N, K)

    q, k, v = x @ w_q / sqrt(K), x @ w_k, x @ w_v
    alpha = exp(log_sigmoid(x @ w_a + b_a) / 16)
    s = expand_dims(alpha, -1) * s_prev + outer(k, v)
    h = q @ s

    outputs = h, s


class RetNet(Cell, name="retnet"):
    """Retention in its recurrent form, N heads, each with a decay gamma of its own, which does not
    learn (Sun et al. 2023, arXiv:2307.08621, equation 6, without the rotation)."""

    x, s_prev = Input(I), State(N, K, D)
    w_q, w_k, w_v = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D)
    gamma = Weight(N, 1, 1, gradient=False)

    q, k, v = x @ w_q, x @ w_k / sqrt(K), x @ w_v
    s = gamma * s_prev + outer(k, v)
    h = q @ s

    outputs = h, s
