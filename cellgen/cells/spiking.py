"""Neurons that spike and adapt."""

import numpy as np

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import absolute, activation, relu, where
from cellgen.language.value import H, I

spike_of_excess = activation(
    "spike_of_excess",
    numpy=lambda v: np.where(np.real(v) > 0, 1.0, 0.0),
    derivative=lambda s, v: 0.3 * relu(1 - absolute(v)),
    c="cg_gt({0}, 0)",
    stated=True,
    kinks=True,
)
"""1 above 0, else 0; its stated derivative is a triangle of height 0.3 (Bellec et al. 2018)."""


class ALIF(Cell, name="alif"):
    """Recurrent layer of leaky integrate-and-fire neurons whose thresholds rise with every spike
    and fade (Bellec et al. 2018, arXiv:1803.09574; in discrete time as Bellec et al. 2020,
    doi:10.1038/s41467-020-17236-y, methods). Gradients flow through the reset."""

    x, v_prev, a_prev, s_prev = Input(I), State(H), State(H), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    decay, rho, beta, threshold = Scalar(0.9), Scalar(0.97), Scalar(0.2), Scalar(1.0)

    v = decay * v_prev + x @ w + s_prev @ u + b - threshold * s_prev
    a = rho * a_prev + s_prev
    s = spike_of_excess((v - (threshold + beta * a)) / threshold)

    outputs = s, v, a


spike_from_0 = activation(
    "spike_from_0",
    numpy=lambda v: np.where(np.real(v) >= 0, 1.0, 0.0),
    derivative=lambda s, v: 0.3 * relu(1 - absolute(v)),
    c="cg_ge({0}, 0)",
    stated=True,
    kinks=True,
)
"""The same, but 1 at 0 too."""


class Izhikevich(Cell):
    """Recurrent layer of Izhikevich's neurons, a step of dt ms by Euler's rule: from 30 mV on one
    spikes, and v starts again at c, its recovery r rises by d (Izhikevich 2003,
    doi:10.1109/TNN.2003.820440, equations 1 to 3)."""

    x, v_prev, r_prev, s_prev = Input(I), State(H, initial=-65.0), State(H, initial=-13.0), State(H)
    w, u, b_in = Weight(I, H), Weight(H, H), Bias(H)
    a, b, c, d, dt = Scalar(0.02), Scalar(0.2), Scalar(-65.0), Scalar(8.0), Scalar(0.5)

    current = x @ w + s_prev @ u + b_in
    v_new = v_prev + dt * (0.04 * v_prev * v_prev + 5 * v_prev + 140 - r_prev + current)
    r_new = r_prev + dt * a * (b * v_prev - r_prev)
    s = spike_from_0((v_new - 30) / 30)
    v = where(v_new >= 30, c, v_new)
    r = where(v_new >= 30, r_new + d, r_new)

    outputs = s, v, r
