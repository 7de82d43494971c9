"""The fast gated recurrent network."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class FastGRNN(Cell):
    """Fast gated recurrent network: gate and candidate share their matrices (Kusupati et al. 2018,
    arXiv:1901.02358); full matrices, zeta and nu are one number each before their sigmoid."""

    x, h_prev = Input(I), State(H)
    w, u, b_z, b_h = Weight(I, H), Weight(H, H), Bias(H), Bias(H)
    zeta, nu = Weight(1), Weight(1)

    s = x @ w + h_prev @ u
    z, h_bar = sigmoid(s + b_z), tanh(s + b_h)
    h = (sigmoid(zeta) * (1 - z) + sigmoid(nu)) * h_bar + z * h_prev
