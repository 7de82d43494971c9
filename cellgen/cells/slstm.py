"""The scalar LSTM of xLSTM."""

import math
from collections.abc import Callable

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, identity, log_sigmoid, maximum, sigmoid, tanh
from cellgen.language.value import Dim, H, I


def slstm(forget: str = "sigmoid", heads: bool = False) -> type[Cell]:
    """Return the sLSTM with a forget gate of ``"sigmoid"`` or ``"exp"``, with one head or K."""
    log_gates: dict[str, Callable[[Expr], Expr]] = {"sigmoid": log_sigmoid, "exp": identity}
    log_gate, several = log_gates[forget], "K heads of D units" if heads else "one head"
    name = "slstm" + ("" if forget == "sigmoid" else f"_{forget}") + ("_heads" if heads else "")
    units = (Dim("K"), Dim("D")) if heads else (H,)
    recurrent = (*units, units[-1])

    class SLSTM(Cell, name=name):
        __doc__ = f"""Scalar LSTM of xLSTM with exponential input gate, {forget} forget gate and
        {several} (Beck et al. 2024, arXiv:2405.04517, equations 8 to 17); m keeps the exponentials
        finite, starts at the first gate, and gradients flow through its maximum."""

        x, h_prev, c_prev = Input(I), State(*units), State(*units)
        n_prev, m_prev = State(*units), State(*units, initial=-math.inf)
        w_z, r_z, b_z = Weight(I, *units), Weight(*recurrent), Bias(*units)
        w_i, r_i, b_i = Weight(I, *units), Weight(*recurrent), Bias(*units)
        w_f, r_f, b_f = Weight(I, *units), Weight(*recurrent), Bias(*units)
        w_o, r_o, b_o = Weight(I, *units), Weight(*recurrent), Bias(*units)

        z, i_bar = tanh(x @ w_z + h_prev @ r_z + b_z), x @ w_i + h_prev @ r_i + b_i
        f_bar, o = x @ w_f + h_prev @ r_f + b_f, sigmoid(x @ w_o + h_prev @ r_o + b_o)
        log_f = log_gate(f_bar) + m_prev
        m = maximum(log_f, i_bar)
        i, f = exp(i_bar - m), exp(log_f - m)
        c = f * c_prev + i * z
        n = f * n_prev + i
        h = o * c / n

    return SLSTM


SLSTM = slstm()
SLSTMExp = slstm("exp")
SLSTMHeads = slstm(heads=True)
SLSTMExpHeads = slstm("exp", heads=True)
