"""The minimal gated unit."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class MGU(Cell):
    """Minimal gated unit: one gate resets and updates (Zhou et al. 2016, arXiv:1603.09420)."""

    x, h_prev = Input(I), State(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_n, u_n, b_n = Weight(I, H), Weight(H, H), Bias(H)

    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    n = tanh(x @ w_n + (f * h_prev) @ u_n + b_n)
    h = (1 - f) * h_prev + f * n
