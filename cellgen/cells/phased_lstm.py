"""The LSTM whose units are open at times of their own."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import mod, sigmoid, tanh, where
from cellgen.language.value import H, I


class PhasedLSTM(Cell, name="phased_lstm"):
    """LSTM with a time gate for each unit: open for a share r_on of a period tau that begins at a
    shift s, and leaking by alpha elsewhere; t is the time of the step (Neil, Pfeiffer and Liu 2016,
    arXiv:1610.09513, equations 6 to 10)."""

    x, t, h_prev, c_prev = Input(I), Input(1, gradient=False), State(H), State(H)
    w_i, u_i, p_i, b_i = Weight(I, H), Weight(H, H), Weight(H), Bias(H)
    w_f, u_f, p_f, b_f = Weight(I, H), Weight(H, H), Weight(H), Bias(H)
    w_c, u_c, b_c = Weight(I, H), Weight(H, H), Bias(H)
    w_o, u_o, p_o, b_o = Weight(I, H), Weight(H, H), Weight(H), Bias(H)
    tau, s = Weight(H), Weight(H)
    r_on, alpha = Scalar(0.05), Scalar(0.001)

    i = sigmoid(x @ w_i + h_prev @ u_i + p_i * c_prev + b_i)
    f = sigmoid(x @ w_f + h_prev @ u_f + p_f * c_prev + b_f)
    c_new = f * c_prev + i * tanh(x @ w_c + h_prev @ u_c + b_c)
    o = sigmoid(x @ w_o + h_prev @ u_o + p_o * c_new + b_o)
    h_new = o * tanh(c_new)
    phi = mod(t - s, tau) / tau
    rising, falling = 2 * phi / r_on, 2 - 2 * phi / r_on
    k = where(phi < r_on / 2, rising, where(phi < r_on, falling, alpha * phi))
    c = k * c_new + (1 - k) * c_prev
    h = k * h_new + (1 - k) * h_prev
