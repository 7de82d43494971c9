"""Cells with layer normalisation."""

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, split, sqrt, tanh, units_mean
from cellgen.language.value import H, I


def layer_norm(v: Expr, gain: Expr, bias: Expr) -> Expr:
    """Normalise over units: ``gain (v - mean) / sqrt(variance + 1e-5) + bias``, biased variance."""
    centred = v - units_mean(v)
    return gain * centred / sqrt(units_mean(centred**2) + 1e-5) + bias


class LayerNormLSTM(Cell):
    """Long short-term memory with layer normalisation of both products and of the memory that the
    output looks at (Ba, Kiros & Hinton 2016, arXiv:1607.06450, supplement, equations 20 to 22); the
    products are normalised over the columns [f | i | o | g] of all gates."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w, u, b = Weight(I, 4 * H), Weight(H, 4 * H), Bias(4 * H)
    alpha1, alpha2, alpha3 = Weight(4 * H), Weight(4 * H), Weight(H)
    beta1, beta2, beta3 = Bias(4 * H), Bias(4 * H), Bias(H)

    hu, xw = h_prev @ u, x @ w
    hu_norm, xw_norm = layer_norm(hu, alpha1, beta1), layer_norm(xw, alpha2, beta2)
    f_bar, i_bar, o_bar, g_bar = split(hu_norm + xw_norm + b, 4)
    c = sigmoid(f_bar) * c_prev + sigmoid(i_bar) * tanh(g_bar)
    h = sigmoid(o_bar) * tanh(layer_norm(c, alpha3, beta3))

    outputs = h, c


class LayerNormGRU(Cell):
    """Gated recurrent unit with layer normalisation of every product (Ba, Kiros & Hinton 2016,
    arXiv:1607.06450, supplement); the gates' over the columns [z | r] of both, reset gate after the
    recurrent product, z chooses the new state."""

    x, h_prev = Input(I), State(H)
    w, u, w_n, u_n = Weight(I, 2 * H), Weight(H, 2 * H), Weight(I, H), Weight(H, H)
    alpha1, alpha2, alpha3, alpha4 = Weight(2 * H), Weight(2 * H), Weight(H), Weight(H)
    beta1, beta2, beta3, beta4 = Bias(2 * H), Bias(2 * H), Bias(H), Bias(H)

    hu, xw, hu_n, xw_n = h_prev @ u, x @ w, h_prev @ u_n, x @ w_n
    gates = layer_norm(hu, alpha1, beta1) + layer_norm(xw, alpha2, beta2)
    z, r = map(sigmoid, split(gates, 2))
    n = tanh(layer_norm(xw_n, alpha3, beta3) + r * layer_norm(hu_n, alpha4, beta4))
    h = (1 - z) * h_prev + z * n
