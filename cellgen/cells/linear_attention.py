"""Linear attention as a recurrence: gated by key, or with a decay for each head."""

from sympy import sqrt

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, expand_dims, log_sigmoid, outer, sigmoid, silu
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


class HGRN2(Cell, name="hgrn2"):
    """Gated linear recurrence whose states are outer products, N heads: what a key does not keep it
    takes from the input (Qin et al. 2024, arXiv:2404.07904, section 3; a gate's lower bound is the
    sigmoid of b_l, where the paper adds up shares over layers)."""

    x, s_prev = Input(I), State(N, K, D)
    w_o, w_f, w_i, b_l = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D), Bias(N, K)

    o, i, low = silu(x @ w_o), x @ w_i, sigmoid(b_l)
    f = low + (1 - low) * sigmoid(x @ w_f)
    s = expand_dims(f, -1) * s_prev + outer(1 - f, i)
    h = o @ s

    outputs = h, s
