"""The LSTM whose cell is an LSTM."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class NestedLSTM(Cell, name="nested_lstm"):
    """LSTM whose memory is the state of an inner LSTM, which takes what the outer one would write
    and keep as its input and state (Moniz and Krueger 2017, arXiv:1801.10308, section 3)."""

    x, h_prev, c_prev, c_inner_prev = Input(I), State(H), State(H), State(H)
    w_i, u_i, b_i = Weight(I, H), Weight(H, H), Bias(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_c, u_c, b_c = Weight(I, H), Weight(H, H), Bias(H)
    w_o, u_o, b_o = Weight(I, H), Weight(H, H), Bias(H)
    v_i, r_i, a_i = Weight(H, H), Weight(H, H), Bias(H)
    v_f, r_f, a_f = Weight(H, H), Weight(H, H), Bias(H)
    v_c, r_c, a_c = Weight(H, H), Weight(H, H), Bias(H)
    v_o, r_o, a_o = Weight(H, H), Weight(H, H), Bias(H)

    i = sigmoid(x @ w_i + h_prev @ u_i + b_i)
    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    o = sigmoid(x @ w_o + h_prev @ u_o + b_o)
    x_inner = i * tanh(x @ w_c + h_prev @ u_c + b_c)
    h_inner = f * c_prev
    i_inner = sigmoid(x_inner @ v_i + h_inner @ r_i + a_i)
    f_inner = sigmoid(x_inner @ v_f + h_inner @ r_f + a_f)
    o_inner = sigmoid(x_inner @ v_o + h_inner @ r_o + a_o)
    c_inner = f_inner * c_inner_prev + i_inner * tanh(x_inner @ v_c + h_inner @ r_c + a_c)
    c = o_inner * tanh(c_inner)
    h = o * tanh(c)
