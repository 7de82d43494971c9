"""Selective state spaces."""

from collections.abc import Sequence

from sympy import Expr, pi

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import (
    cos,
    exp,
    expand_dims,
    keep,
    outer,
    sigmoid,
    sin,
    softplus,
    sqrt,
    tanh,
    units_mean,
)
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


def _turned(
    pair: Sequence[Expr], gain: Sequence[Expr], bias: Sequence[Expr], angle: Expr
) -> tuple[Expr, Expr]:
    """Scale a complex vector to a root mean square of 1, map it, and turn each entry by an angle;
    real and imaginary parts."""
    scale = 1 / sqrt(units_mean(pair[0] ** 2 + pair[1] ** 2, axis=K) / 2 + 1e-5)
    re, im = (scale * a * g + b for a, g, b in zip(pair, gain, bias, strict=True))
    return re * cos(angle) - im * sin(angle), im * cos(angle) + re * sin(angle)


class Mamba3(Cell, name="mamba3"):
    """Selective state space of N heads, whose K complex states turn at rates that the input says
    and whose inputs enter by the trapezoidal rule (Lahoti et al. 2026, arXiv:2603.15569, the
    exponential-trapezoidal recurrence). Instead of states, inputs b and outputs c are turned, by
    the sum phi of all angles, as pairs of real numbers; one input and output a head, before gate
    and projection."""

    x, phi_prev, u_prev, s_re_prev = Input(I), State(N, K), State(N, D), State(N, D, K)
    b_re_prev, b_im_prev, s_im_prev = State(N, K), State(N, K), State(N, D, K)
    w_u, w_phi, w_a, w_l = Weight(I, N, D), Weight(I, 1, K), Weight(I, N, 1), Weight(I, N, 1)
    w_t, b_t, d = Weight(I, N, 1), Bias(N, 1), Weight(N, 1)
    w_b_re, w_b_im, g_b_re, g_b_im = Weight(I, 1, K), Weight(I, 1, K), Weight(1, K), Weight(1, K)
    w_c_re, w_c_im, g_c_re, g_c_im = Weight(I, 1, K), Weight(I, 1, K), Weight(1, K), Weight(1, K)
    o_b_re, o_b_im, o_c_re, o_c_im = Bias(N, K), Bias(N, K), Bias(N, K), Bias(N, K)

    u, dt, lam = keep(x @ w_u), softplus(x @ w_t + b_t), sigmoid(x @ w_l)
    a, phi = expand_dims(exp(-softplus(x @ w_a) * dt), -1), phi_prev + dt * (pi * tanh(x @ w_phi))
    b_re, b_im = _turned((x @ w_b_re, x @ w_b_im), (g_b_re, g_b_im), (o_b_re, o_b_im), phi)
    c_re, c_im = _turned((x @ w_c_re, x @ w_c_im), (g_c_re, g_c_im), (o_c_re, o_c_im), phi)
    s_re = a * (s_re_prev + outer((1 - lam) * dt * u_prev, b_re_prev)) + outer(lam * dt * u, b_re)
    s_im = a * (s_im_prev + outer((1 - lam) * dt * u_prev, b_im_prev)) + outer(lam * dt * u, b_im)
    y = s_re @ c_re + s_im @ c_im + d * u

    outputs = y, s_re, s_im, b_re, b_im, u, phi
