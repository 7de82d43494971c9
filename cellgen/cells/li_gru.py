"""The light gated recurrent unit."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import relu, sigmoid
from cellgen.language.value import H, I


class LiGRU(Cell):
    """Light gated recurrent unit: no reset gate, rectified candidate (Ravanelli et al. 2018,
    arXiv:1803.10225), without the paper's batch normalisation."""

    x, h_prev = Input(I), State(H)
    w_z, u_z, b_z = Weight(I, H), Weight(H, H), Bias(H)
    w_n, u_n, b_n = Weight(I, H), Weight(H, H), Bias(H)

    z = sigmoid(x @ w_z + h_prev @ u_z + b_z)
    n = relu(x @ w_n + h_prev @ u_n + b_n)
    h = z * h_prev + (1 - z) * n
