"""Cells of this package."""

from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid, tanh


class Gated(Cell):
    """Recurrent unit with one gate, which forgets and admits."""

    x, h_prev = Input(I), State(H)
    w_f, w_n = Weight(I, H), Weight(I, H)
    u_f, u_n = Weight(H, H), Weight(H, H)
    b_f, b_n = Bias(H), Bias(H)

    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    n = tanh(x @ w_n + (f * h_prev) @ u_n + b_n)
    h = (1 - f) * h_prev + f * n
