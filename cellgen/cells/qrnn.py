"""The recurrence of quasi-recurrent networks."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class QRNN(Cell):
    """Quasi-recurrent network, fo-pooling (Bradbury et al. 2016, arXiv:1611.01576): for a filter
    over k steps, x holds the last k inputs side by side; with biases, which the paper omits."""

    x, c_prev = Input(I), State(H)
    w_z, w_f, w_o = Weight(I, H), Weight(I, H), Weight(I, H)
    b_z, b_f, b_o = Bias(H), Bias(H), Bias(H)

    z, f, o = tanh(x @ w_z + b_z), sigmoid(x @ w_f + b_f), sigmoid(x @ w_o + b_o)
    c = f * c_prev + (1 - f) * z
    h = o * c

    outputs = h, c
