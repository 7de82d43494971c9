"""Memories that learn while they are read: test-time training."""

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import (
    expand_dims,
    l2_normalise,
    outer,
    sigmoid,
    silu,
    sqrt,
    units_mean,
)
from cellgen.language.value import Dim, I

N, D, K = Dim("N"), Dim("D"), Dim("K")


def _mean(a: Expr) -> Expr:
    return units_mean(a, axis=D)


class TTTLinear(Cell, name="ttt_linear"):
    """Linear model that learns while it is read, N heads (TTT-Linear): f(k) = k + norm(s k), whose
    matrix s takes a step down |f(k) - v|^2 / 2 at a learned rate and then maps the query (Sun et
    al. 2024, arXiv:2407.04620, sections 2.1, 2.3 and 2.7; steps one by one, before gate and
    projection)."""

    x, s_prev = Input(I), State(N, D, D)
    w_q, w_k, w_v = Weight(I, N, D), Weight(I, N, D), Weight(I, N, D)
    w_eta, b_eta, gamma, beta = Weight(I, N, 1), Bias(N, 1), Weight(N, D), Bias(N, D)

    q, k, v, eta = x @ w_q, x @ w_k, x @ w_v, sigmoid(x @ w_eta + b_eta)
    u = s_prev @ k
    r = 1 / sqrt(_mean((u - _mean(u)) ** 2) + 1e-6)
    n = r * (u - _mean(u))
    e = gamma * (k + gamma * n + beta - v)
    slope = r * (e - _mean(e) - n * _mean(e * n))
    s = s_prev - outer(eta * slope, k)
    o = s @ q
    centred = o - _mean(o)
    h = q + gamma * centred / sqrt(_mean(centred**2) + 1e-6) + beta

    outputs = h, s


class Titans(Cell):
    """Linear memory that learns with momentum and forgets, N heads: s is the surprise, a step down
    |m k - v|^2 that goes on (Behrouz, Zhong and Mirrokni 2025, arXiv:2501.00663, equations 11 to
    15, memory of one layer, steps one by one)."""

    x, m_prev, s_prev = Input(I), State(N, D, K), State(N, D, K)
    w_q, w_k, w_v = Weight(I, N, K), Weight(I, N, K), Weight(I, N, D)
    w_a, w_e, w_t = Weight(I, N, 1), Weight(I, N, 1), Weight(I, N, 1)
    b_a, b_e, b_t = Bias(N, 1), Bias(N, 1), Bias(N, 1)

    q, k = l2_normalise(silu(x @ w_q), epsilon=1e-6), l2_normalise(silu(x @ w_k), epsilon=1e-6)
    v, theta = silu(x @ w_v), sigmoid(x @ w_t + b_t)
    alpha, eta = sigmoid(x @ w_a + b_a), sigmoid(x @ w_e + b_e)
    s = expand_dims(eta, -1) * s_prev - outer(2 * theta * (m_prev @ k - v), k)
    m = expand_dims(1 - alpha, -1) * m_prev + s
    h = m @ q

    outputs = h, m, s
