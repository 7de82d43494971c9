"""The real-gated linear recurrent unit, alone and in its block."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, expm1, gelu, keep, sigmoid, softplus, sqrt, where
from cellgen.language.value import Dim, H, I

R = Dim("R")


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


class Hawk(Cell):
    """Recurrent block of Hawk and Griffin: a convolution over four steps and an RG-LRU of R units,
    beside a branch of GeLU (De et al. 2024, arXiv:2402.19427, section 2.2, equations 1 to 4)."""

    x, h_prev = Input(I), State(R)
    u_1_prev, u_2_prev, u_3_prev = State(R), State(R), State(R)
    w_u, w_g, w_y, lam = Weight(I, R), Weight(I, R), Weight(R, H), Weight(R)
    k_0, k_1, k_2, k_3, b = Weight(R), Weight(R), Weight(R), Weight(R), Bias(R)
    w_a, w_x, b_a, b_x = Weight(R, R), Weight(R, R), Bias(R), Bias(R)

    u_1, u_2, u_3 = keep(x @ w_u), keep(u_1_prev), keep(u_2_prev)
    c = k_0 * u_1 + k_1 * u_1_prev + k_2 * u_2_prev + k_3 * u_3_prev + b
    r, i = sigmoid(c @ w_a + b_a), sigmoid(c @ w_x + b_x)
    log_a = -8 * r * softplus(lam)
    rest = -expm1(2 * log_a)  # 0 where the gate is, whose root has no derivative
    h = exp(log_a) * h_prev + where(rest > 0, sqrt(rest), 0) * (i * c)
    y = (gelu(x @ w_g) * h) @ w_y

    outputs = y, h, u_1, u_2, u_3
