"""Long short-term memory: plain, with peephole connections, with coupled gates."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class LSTM(Cell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate: Gers, Schmidhuber &
    Cummins 2000); PyTorch's LSTMCell with its two biases added."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_i, u_i, b_i = Weight(I, H), Weight(H, H), Bias(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_g, u_g, b_g = Weight(I, H), Weight(H, H), Bias(H)
    w_o, u_o, b_o = Weight(I, H), Weight(H, H), Bias(H)

    i_bar = x @ w_i + h_prev @ u_i + b_i
    f_bar = x @ w_f + h_prev @ u_f + b_f
    g_bar = x @ w_g + h_prev @ u_g + b_g
    o_bar = x @ w_o + h_prev @ u_o + b_o
    i, f, g, o = sigmoid(i_bar), sigmoid(f_bar), tanh(g_bar), sigmoid(o_bar)
    c = f * c_prev + i * g
    h = o * tanh(c)

    outputs = h, c


class LSTMPeephole(LSTM):
    """Long short-term memory with peephole connections (Gers & Schmidhuber 2000; Gers, Schraudolph
    & Schmidhuber 2002): the output gate looks at the new memory."""

    p_i, p_f, p_o = Weight(H), Weight(H), Weight(H)

    i = sigmoid(LSTM.i_bar + p_i * LSTM.c_prev)
    f = sigmoid(LSTM.f_bar + p_f * LSTM.c_prev)
    o = sigmoid(LSTM.o_bar + p_o * LSTM.c)


class CIFG(Cell):
    """Long short-term memory with coupled input and forget gate, i = 1 - f (Greff et al. 2017,
    arXiv:1503.04069)."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_g, u_g, b_g = Weight(I, H), Weight(H, H), Bias(H)
    w_o, u_o, b_o = Weight(I, H), Weight(H, H), Bias(H)

    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    g = tanh(x @ w_g + h_prev @ u_g + b_g)
    o = sigmoid(x @ w_o + h_prev @ u_o + b_o)
    c = f * c_prev + (1 - f) * g
    h = o * tanh(c)

    outputs = h, c
