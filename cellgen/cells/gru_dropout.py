"""The gated recurrent unit with dropout of what it reads from its input."""

from cellgen.language.cell import Bias, Cell, Input, State, Static, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class GRUDropout(Cell, name="gru_dropout"):
    """Gated recurrent unit, reset gate before the candidate product, each input product times a
    mask that is the same at every step (Gal & Ghahramani, arXiv:1512.05287); mygrad's GRU."""

    x, h_prev = Input(I), State(H)
    m_z, m_r, m_n = Static(H), Static(H), Static(H)
    w_z, u_z, b_z = Weight(I, H), Weight(H, H), Bias(H)
    w_r, u_r, b_r = Weight(I, H), Weight(H, H), Bias(H)
    w_n, u_n, b_n = Weight(I, H), Weight(H, H), Bias(H)

    x_z, x_r, x_n = x @ w_z, x @ w_r, x @ w_n
    z_bar = m_z * x_z + h_prev @ u_z + b_z
    r_bar = m_r * x_r + h_prev @ u_r + b_r
    z, r = sigmoid(z_bar), sigmoid(r_bar)
    n_bar = m_n * x_n + (r * h_prev) @ u_n + b_n
    n = tanh(n_bar)
    h = (1 - z) * n + z * h_prev
