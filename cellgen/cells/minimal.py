"""minGRU and minLSTM: gates that read the input alone, so that the recurrence is linear."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, where
from cellgen.language.value import H, I


class MinGRU(Cell):
    """minGRU (Feng et al. 2024, arXiv:2410.01201): no gate reads the state."""

    x, h_prev = Input(I), State(H)
    w_z, b_z, w_n, b_n = Weight(I, H), Bias(H), Weight(I, H), Bias(H)

    z = sigmoid(x @ w_z + b_z)
    n_bar = x @ w_n + b_n
    h = h_prev + z * (n_bar - h_prev)


class MinGRULog(MinGRU):
    """minGRU with a positive candidate, as its log-space form needs (Feng et al. 2024,
    arXiv:2410.01201): g(v) = v + 1/2 where v >= 0, else sigmoid(v)."""

    n = where(MinGRU.n_bar >= 0, MinGRU.n_bar + 0.5, sigmoid(MinGRU.n_bar))
    h = MinGRU.h_prev + MinGRU.z * (n - MinGRU.h_prev)


class MinLSTM(Cell):
    """minLSTM with gates that add up to one, a scale that time does not change (Feng et al. 2024,
    arXiv:2410.01201)."""

    x, h_prev = Input(I), State(H)
    w_f, b_f, w_i, b_i = Weight(I, H), Bias(H), Weight(I, H), Bias(H)
    w_n, b_n = Weight(I, H), Bias(H)

    f, i = sigmoid(x @ w_f + b_f), sigmoid(x @ w_i + b_i)
    n = x @ w_n + b_n
    h = f / (f + i) * h_prev + i / (f + i) * n
