"""The closed-form continuous-time network."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import concat, sigmoid, tanh
from cellgen.language.value import Dim, H, I


class CfC(Cell, name="cfc"):
    """Closed-form continuous-time network (Hasani et al. 2022, arXiv:2106.13898) in its
    default form: one backbone layer of M units with LeCun's scaled tanh; ts is the time that has
    passed since the step before, and scales f alone."""

    M = Dim("M")
    x, ts, h_prev = Input(I), Input(1), State(H)
    w_bb, b_bb = Weight(I + H, M), Bias(M)
    w_f, b_f, w_g, b_g, w_k, b_k = (
        Weight(M, H),
        Bias(H),
        Weight(M, H),
        Bias(H),
        Weight(M, H),
        Bias(H),
    )

    q = 1.7159 * tanh(2 * (concat(x, h_prev) @ w_bb + b_bb) / 3)
    f, g, k = q @ w_f + b_f, tanh(q @ w_g + b_g), tanh(q @ w_k + b_k)
    s = sigmoid(-f * ts)
    h = s * g + (1 - s) * k
