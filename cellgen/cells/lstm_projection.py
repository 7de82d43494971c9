"""Long short-term memory whose output is projected."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, split, tanh
from cellgen.language.value import Dim, H, I


class LSTMProjection(Cell):
    """Long short-term memory with a recurrent projection (Sak, Senior & Beaufays 2014,
    arXiv:1402.1128), without peepholes and without the second, non-recurrent projection; columns
    [i | f | g | o]. PyTorch's LSTM with proj_size."""

    P = Dim("P")
    x, r_prev, c_prev = Input(I), State(P), State(H)
    w, u, b, w_p = Weight(I, 4 * H), Weight(P, 4 * H), Bias(4 * H), Weight(H, P)

    i_bar, f_bar, g_bar, o_bar = split(x @ w + r_prev @ u + b, 4)
    i, f, g, o = sigmoid(i_bar), sigmoid(f_bar), tanh(g_bar), sigmoid(o_bar)
    c = f * c_prev + i * g
    r = (o * tanh(c)) @ w_p

    outputs = r, c
