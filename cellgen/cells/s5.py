"""A state space with a complex diagonal."""

from cellgen.language.cell import Cell, Input, State, Weight
from cellgen.language.ops import cos, exp, expm1, sin
from cellgen.language.value import Dim, I

P = Dim("P")


class S5(Cell):
    """State space of P complex states on a diagonal, discretised by zero-order hold, a step for
    each (Smith, Warrington and Linderman 2023, arXiv:2208.04933, sections 2 and 3), as pairs of
    real ones; the output takes twice the real part."""

    x, s_re_prev, s_im_prev = Input(I), State(P), State(P)
    l_re, l_im, log_step = Weight(P), Weight(P), Weight(P)
    b_re, b_im = Weight(I, P), Weight(I, P)
    c_re, c_im, d = Weight(P, I), Weight(P, I), Weight(I)

    step, rate = exp(log_step), -exp(l_re)
    size, angle = exp(rate * step), l_im * step
    a_re, a_im = size * cos(angle), size * sin(angle)
    below = expm1(rate * step) * cos(angle) - 2 * sin(angle / 2) ** 2  # a_re - 1, not cancelled
    square = rate * rate + l_im * l_im
    g_re = (below * rate + a_im * l_im) / square
    g_im = (a_im * rate - below * l_im) / square
    u_re, u_im = x @ b_re, x @ b_im
    s_re = a_re * s_re_prev - a_im * s_im_prev + g_re * u_re - g_im * u_im
    s_im = a_re * s_im_prev + a_im * s_re_prev + g_re * u_im + g_im * u_re
    y = 2 * (s_re @ c_re - s_im @ c_im) + d * x

    outputs = y, s_re, s_im
