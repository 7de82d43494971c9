"""The simple recurrent unit, with both of its skip connections."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import sigmoid
from cellgen.language.value import H, I


class SRU(Cell):
    """Simple recurrent unit (Lei et al. 2018, arXiv:1709.02755, equations 1 to 4): input and output
    have equal width; ``alpha`` scales the skip connection, sqrt(3) as the paper derives for
    biases of zero."""

    x, c_prev = Input(H), State(H)
    w, w_f, w_r = Weight(H, H), Weight(H, H), Weight(H, H)
    v_f, v_r, b_f, b_r = Weight(H), Weight(H), Bias(H), Bias(H)
    alpha = Scalar(1.7320508075688772)

    f = sigmoid(x @ w_f + v_f * c_prev + b_f)
    r = sigmoid(x @ w_r + v_r * c_prev + b_r)
    c = f * c_prev + (1 - f) * (x @ w)
    h = r * c + (1 - r) * (alpha * x)

    outputs = h, c


class SRUProjection(Cell):
    """Simple recurrent unit with a projected skip connection, for an input of another width (Lei et
    al. 2018, arXiv:1709.02755); the skip is not scaled."""

    x, c_prev = Input(I), State(H)
    w, w_f, w_r, w_s = Weight(I, H), Weight(I, H), Weight(I, H), Weight(I, H)
    v_f, v_r, b_f, b_r = Weight(H), Weight(H), Bias(H), Bias(H)

    f = sigmoid(x @ w_f + v_f * c_prev + b_f)
    r = sigmoid(x @ w_r + v_r * c_prev + b_r)
    c = f * c_prev + (1 - f) * (x @ w)
    h = r * c + (1 - r) * (x @ w_s)

    outputs = h, c
