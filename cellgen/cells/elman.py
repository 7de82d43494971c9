"""Elman's simple recurrent network."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import relu, tanh
from cellgen.language.value import H, I


class Elman(Cell):
    """Simple recurrent network (J. L. Elman, "Finding structure in time", 1990); PyTorch's RNNCell
    with its two biases added."""

    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)

    h_bar = x @ w + h_prev @ u + b
    h = tanh(h_bar)


class ElmanRelu(Elman):
    """Simple recurrent network with rectified units (Le, Jaitly & Hinton, arXiv:1504.00941)."""

    h = relu(Elman.h_bar)
