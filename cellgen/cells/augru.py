"""The gated recurrent unit with an attentional update gate."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class AUGRU(Cell):
    """Gated recurrent unit whose update gate is scaled by an attention score a per step and row
    (Zhou et al. 2019, arXiv:1809.03672); reset gate after the
    recurrent product, u chooses the new state."""

    x, a, h_prev = Input(I), Input(1), State(H)
    w_u, u_u, b_u = Weight(I, H), Weight(H, H), Bias(H)
    w_r, u_r, b_r = Weight(I, H), Weight(H, H), Bias(H)
    w_n, u_n, b_n = Weight(I, H), Weight(H, H), Bias(H)

    u = a * sigmoid(x @ w_u + h_prev @ u_u + b_u)
    r = sigmoid(x @ w_r + h_prev @ u_r + b_r)
    n = tanh(x @ w_n + r * (h_prev @ u_n) + b_n)
    h = (1 - u) * h_prev + u * n
