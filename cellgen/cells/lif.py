"""The leaky integrate-and-fire neuron, with a surrogate for the derivative of its spikes."""

import numpy as np

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import absolute, activation
from cellgen.language.value import H, I

spike = activation(
    "spike",
    numpy=lambda v: np.where(np.real(v) > 0, 1.0, 0.0),
    derivative=lambda s, v: 1 / (1 + 10 * absolute(v)) ** 2,
    c="cg_gt({0}, 0)",
    stated=True,
    kinks=True,
)
"""1 above 0, else 0; its stated derivative is SuperSpike's, of a fast sigmoid of steepness 10."""


class LIF(Cell):
    """Recurrent layer of leaky integrate-and-fire neurons in discrete time (Neftci, Mostafa & Zenke
    2019, arXiv:1901.09948): membrane v, spikes s, surrogate derivative of SuperSpike (Zenke &
    Ganguli 2018, arXiv:1705.11146). A spike lowers the membrane by the threshold; gradients flow
    through that reset."""

    x, v_prev, s_prev = Input(I), State(H), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    decay, threshold = Scalar(0.9), Scalar(1.0)

    v = decay * v_prev + x @ w + s_prev @ u + b - threshold * s_prev
    s = spike(v - threshold)

    outputs = s, v
