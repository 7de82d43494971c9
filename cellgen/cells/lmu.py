"""The Legendre memory unit."""

from cellgen.language.cell import Cell, Input, State, Weight
from cellgen.language.ops import tanh
from cellgen.language.value import Dim, H, I

M = Dim("M")


class LMU(Cell, name="lmu"):
    """Legendre memory unit: a window of one signal u in M coefficients, m, whose matrices do not
    learn, and a state that reads it (Voelker, Kajic and Eliasmith 2019, equations 4, 6 and 7)."""

    x, h_prev, m_prev = Input(I), State(H), State(M)
    e_x, e_h, e_m = Weight(I, 1), Weight(H, 1), Weight(M, 1)
    a, b = Weight(M, M, gradient=False), Weight(M, gradient=False)
    w_x, w_h, w_m = Weight(I, H), Weight(H, H), Weight(M, H)

    u = x @ e_x + h_prev @ e_h + m_prev @ e_m
    m = m_prev @ a + u * b
    h = tanh(x @ w_x + h_prev @ w_h + m @ w_m)

    outputs = h, m
