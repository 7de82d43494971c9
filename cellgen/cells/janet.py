"""JANET: a forget gate and nothing else."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


class JANET(Cell):
    """Just another network: a long short-term memory with the forget gate alone (van der Westhuizen
    & Lasenby 2018, arXiv:1804.04849); ``beta`` moves the gate of what is let in."""

    x, h_prev = Input(I), State(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_n, u_n, b_n = Weight(I, H), Weight(H, H), Bias(H)
    beta = Scalar(1.0)

    f_bar = x @ w_f + h_prev @ u_f + b_f
    n = tanh(x @ w_n + h_prev @ u_n + b_n)
    h = sigmoid(f_bar) * h_prev + (1 - sigmoid(f_bar - beta)) * n
