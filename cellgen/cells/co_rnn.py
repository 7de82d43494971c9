"""The coupled oscillatory network."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import tanh
from cellgen.language.value import H, I


class CoRNN(Cell, name="co_rnn"):
    """Coupled oscillatory network: positions y, velocities z (Rusch & Mishra 2021,
    arXiv:2010.00951), its explicit form: the damping reads the old velocity."""

    x, y_prev, z_prev = Input(I), State(H), State(H)
    w, v, u, b = Weight(H, H), Weight(H, H), Weight(I, H), Bias(H)
    dt, gam, eps = Scalar(0.1), Scalar(1.0), Scalar(1.0)

    force = tanh(y_prev @ w + z_prev @ v + x @ u + b)
    z = z_prev + dt * (force - gam * y_prev - eps * z_prev)
    y = y_prev + dt * z
