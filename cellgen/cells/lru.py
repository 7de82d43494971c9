"""The linear recurrent unit."""

from cellgen.language.cell import Cell, Input, State, Weight
from cellgen.language.ops import cos, exp, sin
from cellgen.language.value import H, I


class LRU(Cell):
    """Linear recurrent unit: complex states, as pairs of real ones, on a diagonal (Orvieto et al.
    2023, arXiv:2303.06349); the input's scale exp(gamma_log) is a weight of its own."""

    x, h_re_prev, h_im_prev = Input(I), State(H), State(H)
    nu_log, theta_log, gamma_log = Weight(H), Weight(H), Weight(H)
    b_re, b_im, c_re, c_im, d = Weight(I, H), Weight(I, H), Weight(H, I), Weight(H, I), Weight(I)

    size, angle, scale = exp(-exp(nu_log)), exp(theta_log), exp(gamma_log)
    lam_re, lam_im = size * cos(angle), size * sin(angle)
    h_re = lam_re * h_re_prev - lam_im * h_im_prev + scale * (x @ b_re)
    h_im = lam_re * h_im_prev + lam_im * h_re_prev + scale * (x @ b_im)
    y = h_re @ c_re - h_im @ c_im + d * x

    outputs = y, h_re, h_im
