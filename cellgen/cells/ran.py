"""The recurrent additive network."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class RAN(Cell):
    """Recurrent additive network: gated sums of linear inputs (Lee, Levy & Zettlemoyer 2017,
    arXiv:1705.07393); the output is tanh of the memory, one of the paper's two choices."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_c = Weight(I, H)
    w_i, u_i, b_i = Weight(I, H), Weight(H, H), Bias(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)

    i = sigmoid(x @ w_i + h_prev @ u_i + b_i)
    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    c = i * (x @ w_c) + f * c_prev
    h = tanh(c)

    outputs = h, c
