"""The independently recurrent network: every unit reads its own past only."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import relu, tanh
from cellgen.language.value import H, I


class IndRNN(Cell):
    """Independently recurrent network with tanh units (Li et al. 2018, arXiv:1803.04831)."""

    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H), Bias(H)

    h_bar = x @ w + u * h_prev + b
    h = tanh(h_bar)


class IndRNNRelu(IndRNN):
    """Independently recurrent network with rectified units (Li et al. 2018, arXiv:1803.04831)."""

    h = relu(IndRNN.h_bar)
