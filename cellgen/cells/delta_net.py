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
