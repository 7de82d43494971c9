"""The multiplicative LSTM."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, split, tanh
from cellgen.language.value import H, I


class MultiplicativeLSTM(Cell):
    """Multiplicative long short-term memory: the input chooses the recurrent transition (Krause et
    al. 2016, arXiv:1609.07959); columns [i | f | g | o]. With biases, and with the output o tanh(c)
    of the plain LSTM."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_m, u_m = Weight(I, H), Weight(H, H)
    w, u, b = Weight(I, 4 * H), Weight(H, 4 * H), Bias(4 * H)

    m = (x @ w_m) * (h_prev @ u_m)
    i_bar, f_bar, g_bar, o_bar = split(x @ w + m @ u + b, 4)
    c = sigmoid(f_bar) * c_prev + sigmoid(i_bar) * tanh(g_bar)
    h = sigmoid(o_bar) * tanh(c)

    outputs = h, c
