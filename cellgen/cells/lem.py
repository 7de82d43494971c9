"""Long expressive memory."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class LEM(Cell):
    """Long expressive memory: two states, each with learned time steps of its own (Rusch et al.
    2022, arXiv:2110.04744)."""

    x, y_prev, z_prev = Input(I), State(H), State(H)
    w_1, v_1, b_1 = Weight(H, H), Weight(I, H), Bias(H)
    w_2, v_2, b_2 = Weight(H, H), Weight(I, H), Bias(H)
    w_z, v_z, b_z = Weight(H, H), Weight(I, H), Bias(H)
    w_y, v_y, b_y = Weight(H, H), Weight(I, H), Bias(H)
    dt = Scalar(1.0)

    dt_y = dt * sigmoid(y_prev @ w_1 + x @ v_1 + b_1)
    dt_z = dt * sigmoid(y_prev @ w_2 + x @ v_2 + b_2)
    z = (1 - dt_z) * z_prev + dt_z * tanh(y_prev @ w_z + x @ v_z + b_z)
    y = (1 - dt_y) * y_prev + dt_y * tanh(z @ w_y + x @ v_y + b_y)
