"""TensorFlow's GRUBlockCell."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import concat, sigmoid, split, tanh
from cellgen.language.value import H, I


class GRUBlockCell(Cell):
    """Gated recurrent unit, reset gate before the candidate product (Cho et al. 2014,
    arXiv:1406.1078), with the names and fused layouts of TensorFlow's GRUBlockCell."""

    x, h_prev = Input(I), State(H)
    w_ru, w_c = Weight(I + H, 2 * H), Weight(I + H, H)
    b_ru, b_c = Bias(2 * H), Bias(H)

    r_bar_u_bar = concat(x, h_prev) @ w_ru + b_ru
    r, u = map(sigmoid, split(r_bar_u_bar, 2))
    c_bar = concat(x, r * h_prev) @ w_c + b_c
    c = tanh(c_bar)
    h = u * h_prev + (1 - u) * c

    outputs = r, u, c, h
    gradients = x, h_prev, c_bar, r_bar_u_bar
