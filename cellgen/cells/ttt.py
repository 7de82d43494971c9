"""Memories that learn while they are read: test-time training."""

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import outer, sigmoid, sqrt, units_mean
from cellgen.language.value import Dim, I

N, D = Dim("N"), Dim("D")


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
