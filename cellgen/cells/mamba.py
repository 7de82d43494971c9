"""Selective state spaces."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, expand_dims, outer, softplus
from cellgen.language.value import Dim, H, I

N, D, K, R = Dim("N"), Dim("D"), Dim("K"), Dim("R")


class Mamba(Cell):
    """Selective state space, S6: K states for each of H channels, whose steps, inputs and outputs
    the channels choose (Gu and Dao 2023, arXiv:2312.00752, equations 2 and 4, algorithm 2)."""

    x, s_prev = Input(H), State(H, K)
    w_b, w_c, w_r, w_t = Weight(H, K), Weight(H, K), Weight(H, R), Weight(R, H)
    a_log, b_t, d = Weight(H, K), Bias(H), Weight(H)

    b, c, dt = x @ w_b, x @ w_c, softplus(x @ w_r @ w_t + b_t)
    s = exp(-expand_dims(dt, -1) * exp(a_log)) * s_prev + outer(dt * x, b)
    y = s @ c + d * x

    outputs = y, s


class Mamba2(Cell, name="mamba2"):
    """Selective state space with one decay for each of N heads of D channels; heads share inputs
    and outputs of the K states (Dao and Gu 2024, arXiv:2405.21060, sections 2 and 7)."""

    x, s_prev = Input(I), State(N, D, K)
    w_x, w_t, w_b, w_c = Weight(I, N, D), Weight(I, N, 1), Weight(I, 1, K), Weight(I, 1, K)
    a_log, b_t, d = Weight(N, 1), Bias(N, 1), Weight(N, 1)

    u, b, c = x @ w_x, x @ w_b, x @ w_c
    dt = softplus(x @ w_t + b_t)
    s = expand_dims(exp(-dt * exp(a_log)), -1) * s_prev + outer(dt * u, b)
    y = s @ c + d * u

    outputs = y, s
