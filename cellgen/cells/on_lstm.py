"""The LSTM with ordered neurons."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import cumsum, sigmoid, softmax, tanh
from cellgen.language.value import H, I


class ONLSTM(Cell, name="on_lstm"):
    """LSTM with ordered neurons: master gates, running sums of a softmax, say up to which unit it
    forgets and from which it writes (Shen et al. 2019, arXiv:1810.09536, equations 9 to 14)."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_i, u_i, b_i = Weight(I, H), Weight(H, H), Bias(H)
    w_o, u_o, b_o = Weight(I, H), Weight(H, H), Bias(H)
    w_c, u_c, b_c = Weight(I, H), Weight(H, H), Bias(H)
    w_mf, u_mf, b_mf = Weight(I, H), Weight(H, H), Bias(H)
    w_mi, u_mi, b_mi = Weight(I, H), Weight(H, H), Bias(H)

    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    i = sigmoid(x @ w_i + h_prev @ u_i + b_i)
    o = sigmoid(x @ w_o + h_prev @ u_o + b_o)
    c_hat = tanh(x @ w_c + h_prev @ u_c + b_c)
    f_master = cumsum(softmax(x @ w_mf + h_prev @ u_mf + b_mf))
    i_master = 1 - cumsum(softmax(x @ w_mi + h_prev @ u_mi + b_mi))
    both = f_master * i_master
    f_hat = f * both + (f_master - both)
    i_hat = i * both + (i_master - both)
    c = f_hat * c_prev + i_hat * c_hat
    h = o * tanh(c)
