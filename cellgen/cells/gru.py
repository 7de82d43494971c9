"""The gated recurrent unit of cuDNN, PyTorch and Keras: reset gate after the recurrent product."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class GRU(Cell):
    """Gated recurrent unit, reset gate after the recurrent product (Appleyard, Kocisky & Blunsom
    2016, arXiv:1604.01946); PyTorch's GRUCell with the biases of z and r added."""

    x, h_prev = Input(I), State(H)
    w_z, u_z, b_z = Weight(I, H), Weight(H, H), Bias(H)
    w_r, u_r, b_r = Weight(I, H), Weight(H, H), Bias(H)
    w_n, u_n, b_n, c_n = Weight(I, H), Weight(H, H), Bias(H), Bias(H)

    z_bar = x @ w_z + h_prev @ u_z + b_z
    r_bar = x @ w_r + h_prev @ u_r + b_r
    z, r = sigmoid(z_bar), sigmoid(r_bar)
    s = h_prev @ u_n + c_n
    n_bar = x @ w_n + b_n + r * s
    n = tanh(n_bar)
    h = (1 - z) * n + z * h_prev
