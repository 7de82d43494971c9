"""The real-gated linear recurrent unit."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, expm1, sigmoid, softplus, sqrt, where
from cellgen.language.value import H


class RGLRU(Cell, name="rg_lru"):
    """Real-gated linear recurrent unit of Griffin: a decay to the power of a gate, c = 8 (De et al.
    2024, arXiv:2402.19427, equations 1 to 4)."""

    x, h_prev = Input(H), State(H)
    w_a, w_x, b_a, b_x = Weight(H, H), Weight(H, H), Bias(H), Bias(H)
    lam = Weight(H)

    r, i = sigmoid(x @ w_a + b_a), sigmoid(x @ w_x + b_x)
    log_a = -8 * r * softplus(lam)
    rest = -expm1(2 * log_a)  # 0 where the gate is, whose root has no derivative
    h = exp(log_a) * h_prev + where(rest > 0, sqrt(rest), 0) * (i * x)
