"""The gated recurrent unit as first published: reset gate before the candidate product."""

from collections.abc import Callable

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


def gru_reset_before(
    activate: Callable[[Expr], Expr] = tanh,
    activate_update: Callable[[Expr], Expr] = sigmoid,
    activate_reset: Callable[[Expr], Expr] = sigmoid,
    name: str = "gru_reset_before",
) -> type[Cell]:
    """Return a GRU with one matrix per gate and a choice of the three activations."""

    class GRUResetBefore(Cell, name=name):
        """Gated recurrent unit, reset gate before the candidate product, one matrix per gate
        (Cho et al. 2014, arXiv:1406.1078); the equations of mygrad's and EpyNN's GRU."""

        x, h_prev = Input(I), State(H)
        w_z, u_z, b_z = Weight(I, H), Weight(H, H), Bias(H)
        w_r, u_r, b_r = Weight(I, H), Weight(H, H), Bias(H)
        w_n, u_n, b_n = Weight(I, H), Weight(H, H), Bias(H)

        z_bar = x @ w_z + h_prev @ u_z + b_z
        r_bar = x @ w_r + h_prev @ u_r + b_r
        z, r = activate_update(z_bar), activate_reset(r_bar)
        n_bar = x @ w_n + (r * h_prev) @ u_n + b_n
        n = activate(n_bar)
        h = (1 - z) * n + z * h_prev

    return GRUResetBefore


GRUResetBefore = gru_reset_before()
