"""The gated recurrent unit for values that are missing."""

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import exp, relu, sigmoid, tanh
from cellgen.language.value import H, I


class GRUD(Cell, name="gru_d"):
    """Gated recurrent unit with trainable decays: a value that is missing (m = 0) fades from the
    last one that was seen to the mean, and the state with it, by the time delta since it was seen
    (Che et al. 2018, arXiv:1606.01865, the section on GRU-D)."""

    x, m, delta = Input(I), Input(I, gradient=False), Input(I, gradient=False)
    h_prev, x_seen_prev = State(H), State(I)
    x_mean, w_gx, b_gx = Weight(I, gradient=False), Weight(I), Bias(I)
    w_gh, b_gh = Weight(I, H), Bias(H)
    w_z, u_z, v_z, b_z = Weight(I, H), Weight(H, H), Weight(I, H), Bias(H)
    w_r, u_r, v_r, b_r = Weight(I, H), Weight(H, H), Weight(I, H), Bias(H)
    w, u, v, b = Weight(I, H), Weight(H, H), Weight(I, H), Bias(H)

    gamma_x = exp(-relu(w_gx * delta + b_gx))
    gamma_h = exp(-relu(delta @ w_gh + b_gh))
    x_seen = m * x + (1 - m) * x_seen_prev
    x_hat = m * x + (1 - m) * (gamma_x * x_seen_prev + (1 - gamma_x) * x_mean)
    h_hat = gamma_h * h_prev
    z = sigmoid(x_hat @ w_z + h_hat @ u_z + m @ v_z + b_z)
    r = sigmoid(x_hat @ w_r + h_hat @ u_r + m @ v_r + b_r)
    h_tilde = tanh(x_hat @ w + (r * h_hat) @ u + m @ v + b)
    h = (1 - z) * h_hat + z * h_tilde

    outputs = h, x_seen
