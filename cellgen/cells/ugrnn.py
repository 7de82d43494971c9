"""The update gate network."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class UGRNN(Cell):
    """Update gate network: one gate between the old state and a candidate (Collins, Sohl-Dickstein
    & Sussillo 2017, arXiv:1611.09913)."""

    x, h_prev = Input(I), State(H)
    w_c, u_c, b_c = Weight(I, H), Weight(H, H), Bias(H)
    w_g, u_g, b_g = Weight(I, H), Weight(H, H), Bias(H)

    c = tanh(x @ w_c + h_prev @ u_c + b_c)
    g = sigmoid(x @ w_g + h_prev @ u_g + b_g)
    h = g * h_prev + (1 - g) * c
