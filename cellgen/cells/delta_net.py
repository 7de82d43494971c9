"""Memories that the delta rule corrects along a key."""

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import (
    exp,
    expand_dims,
    l2_normalise,
    outer,
    sigmoid,
    silu,
    softplus,
)
from cellgen.language.value import Dim, I

N, D, K = Dim("N"), Dim("D"), Dim("K")


def _feature(a: Expr) -> Expr:
    return l2_normalise(silu(a), epsilon=1e-6)


class DeltaNet(Cell):
    """Linear attention with the delta rule, N heads: what a key holds is moved towards its value by
    beta (Schlag et al. 2021, arXiv:2102.11174, section 4; keys and queries as in Yang et
    al. 2024, arXiv:2406.06484)."""

    x, s_prev = Input(I), State(N, D, K)
    w_q, w_k = Weight(I, N, K), Weight(I, N, K)
    w_v, w_b = Weight(I, N, D), Weight(I, N, 1)

    q, k = _feature(x @ w_q), _feature(x @ w_k)
    v, beta = silu(x @ w_v), sigmoid(x @ w_b)
    s = s_prev + outer(beta * (v - s_prev @ k), k)
    h = s @ q

    outputs = h, s


class GatedDeltaNet(Cell):
    """Delta rule on a memory that decays by alpha, one number a head (Yang, Kautz and Hatamizadeh
    2025, arXiv:2412.06464, equation 10)."""

    x, s_prev = Input(I), State(N, D, K)
    w_q, w_k = Weight(I, N, K), Weight(I, N, K)
    w_v, w_b, w_a = Weight(I, N, D), Weight(I, N, 1), Weight(I, N, 1)
    a_log, b_a = Weight(N, 1), Bias(N, 1)

    q, k = _feature(x @ w_q), _feature(x @ w_k)
    v, beta = silu(x @ w_v), sigmoid(x @ w_b)
    alpha = exp(-exp(a_log) * softplus(x @ w_a + b_a))
    r = expand_dims(alpha, -1) * s_prev
    s = r + outer(beta * (v - r @ k), k)
    h = s @ q

    outputs = h, s


class KimiDeltaAttention(Cell, name="kda"):
    """Delta rule on a memory that decays by a gate for each key (KDA), N heads (Kimi Team 2025,
    arXiv:2510.26692, equation 1; the gate's weight w_a of full rank, where the paper's is a product
    of two)."""

    x, s_prev = Input(I), State(N, D, K)
    w_q, w_k, w_a = Weight(I, N, K), Weight(I, N, K), Weight(I, N, K)
    w_v, w_b = Weight(I, N, D), Weight(I, N, 1)
    a_log, b_a = Weight(N, 1), Bias(N, K)

    q, k = _feature(x @ w_q), _feature(x @ w_k)
    v, beta = silu(x @ w_v), sigmoid(x @ w_b)
    alpha = exp(-exp(a_log) * softplus(x @ w_a + b_a))
    r = expand_dims(alpha, -2) * s_prev
    s = r + outer(beta * (v - r @ k), k)
    h = s @ q

    outputs = h, s


class GatedDeltaNet2(Cell, name="gated_delta_net_2"):
    """Delta rule on a memory that decays by key, which erases by a gate for each key and writes by
    a gate for each value, N heads (Hatamizadeh, Choi and Kautz 2026, arXiv:2605.22791,
    equations 10 to 12; the decay's weight w_a of full rank)."""

    x, s_prev = Input(I), State(N, D, K)
    w_q, w_k, w_a, w_b = Weight(I, N, K), Weight(I, N, K), Weight(I, N, K), Weight(I, N, K)
    w_v, w_w = Weight(I, N, D), Weight(I, N, D)
    a_log, b_a = Weight(N, 1), Bias(N, K)

    q, k = _feature(x @ w_q), _feature(x @ w_k)
    v, b, w = silu(x @ w_v), sigmoid(x @ w_b), sigmoid(x @ w_w)
    alpha = exp(-exp(a_log) * softplus(x @ w_a + b_a))
    r = expand_dims(alpha, -2) * s_prev
    s = r + outer(w * v - r @ (b * k), k)
    h = s @ q

    outputs = h, s


class DeltaProduct(Cell):
    """Two steps of the delta rule for each input, N heads: beta reaches 2, so that a step can
    reflect (Siems et al. 2025, arXiv:2502.10297, the product of two Householder factors)."""

    x, s_prev = Input(I), State(N, D, K)
    w_q, w_k_1, w_k_2 = Weight(I, N, K), Weight(I, N, K), Weight(I, N, K)
    w_v_1, w_v_2 = Weight(I, N, D), Weight(I, N, D)
    w_b_1, w_b_2 = Weight(I, N, 1), Weight(I, N, 1)

    q, k_1, k_2 = _feature(x @ w_q), _feature(x @ w_k_1), _feature(x @ w_k_2)
    v_1, v_2 = silu(x @ w_v_1), silu(x @ w_v_2)
    beta_1, beta_2 = 2 * sigmoid(x @ w_b_1), 2 * sigmoid(x @ w_b_2)
    r = s_prev + outer(beta_1 * (v_1 - s_prev @ k_1), k_1)
    s = r + outer(beta_2 * (v_2 - r @ k_2), k_2)
    h = s @ q

    outputs = h, s


class Comba(Cell):
    """Delta rule in a closed loop, N heads: what the memory held before its decay is fed back at a
    rate b of its own, and the query is corrected along the key by d (Hu et al. 2025,
    arXiv:2506.02475, the scalar-plus-low-rank transition with feedback of state and output; the
    decay as in Gated DeltaNet)."""

    x, s_prev = Input(I), State(N, D, K)
    w_q, w_k = Weight(I, N, K), Weight(I, N, K)
    w_v, w_b, w_a = Weight(I, N, D), Weight(I, N, 1), Weight(I, N, 1)
    a_log, b_a, b_bar, d = Weight(N, 1), Bias(N, 1), Weight(N, 1), Weight(N, 1)

    q, k = _feature(x @ w_q), _feature(x @ w_k)
    v, beta, b = silu(x @ w_v), sigmoid(x @ w_b), sigmoid(b_bar)
    alpha = exp(-exp(a_log) * softplus(x @ w_a + b_a))
    s = expand_dims(alpha, -1) * s_prev + outer(beta * (v - b * (s_prev @ k)), k)
    h = s @ (q - d * k)

    outputs = h, s
