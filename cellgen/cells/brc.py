"""The bistable recurrent cell."""

from cellgen.language.cell import Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class BRC(Cell):
    """Bistable recurrent cell: every unit reads its own past only, and may hold one of two values
    (Vecoven, Ernst & Drion 2021, arXiv:2006.05252); without biases."""

    x, h_prev = Input(I), State(H)
    w_c, w_a, w = Weight(I, H), Weight(I, H), Weight(I, H)
    u_c, u_a = Weight(H), Weight(H)

    c = sigmoid(x @ w_c + u_c * h_prev)
    a = 1 + tanh(x @ w_a + u_a * h_prev)
    h = c * h_prev + (1 - c) * tanh(x @ w + a * h_prev)
