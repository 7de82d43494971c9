"""ParaGRU and ParaLSTM: nonlinear cells, each unit of which reads its own past alone."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class ParaGRU(Cell, name="para_gru"):
    """Gated recurrent unit with diagonal recurrent weights (ParaGRU): its Jacobian is diagonal
    (Danieli et al. 2025, arXiv:2510.21450, equations 3.1a and 3.3)."""

    x, h_prev = Input(I), State(H)
    w_z, a_z, b_z = Weight(I, H), Weight(H), Bias(H)
    w_r, a_r, b_r = Weight(I, H), Weight(H), Bias(H)
    w_n, a_n, b_n = Weight(I, H), Weight(H), Bias(H)

    z = sigmoid(x @ w_z + a_z * h_prev + b_z)
    r = sigmoid(x @ w_r + a_r * h_prev + b_r)
    n = tanh(x @ w_n + a_n * (r * h_prev) + b_n)
    h = (1 - z) * h_prev + z * n


class ParaLSTM(Cell, name="para_lstm"):
    """Long short-term memory with diagonal recurrent weights, peepholes and i = 1 - f (ParaLSTM):
    its Jacobian has a block of 2 x 2 for each unit (Danieli et al. 2025, arXiv:2510.21450,
    equations 3.1b and 3.3)."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_f, a_f, p_f, b_f = Weight(I, H), Weight(H), Weight(H), Bias(H)
    w_g, a_g, b_g = Weight(I, H), Weight(H), Bias(H)
    w_o, a_o, p_o, b_o = Weight(I, H), Weight(H), Weight(H), Bias(H)

    f = sigmoid(x @ w_f + a_f * h_prev + p_f * c_prev + b_f)
    g = tanh(x @ w_g + a_g * h_prev + b_g)
    c = f * c_prev + (1 - f) * g
    o = sigmoid(x @ w_o + a_o * h_prev + p_o * c + b_o)
    h = o * tanh(c)

    outputs = h, c
