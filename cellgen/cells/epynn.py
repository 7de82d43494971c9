"""EpyNN's recurrent layers: every intermediate is an output, every cached gradient an input's.

EpyNN keeps the gradient of each intermediate at each step. A sequence kernel returns gradients of
inputs, so an input ``p_<name>``, which is zero, is added to each of those intermediates: its
gradient is that of the intermediate. Activations are chosen by EpyNN's names.
"""

from collections.abc import Callable, Mapping

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import expm1, keep, maximum, relu, sigmoid, tanh, where
from cellgen.language.value import H, I

ACTIVATIONS: Mapping[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "identity": lambda x, lrelu_alpha, elu_alpha: keep(x),
    "relu": lambda x, lrelu_alpha, elu_alpha: relu(x),
    "lrelu": lambda x, lrelu_alpha, elu_alpha: maximum(lrelu_alpha * x, x),
    "elu": lambda x, lrelu_alpha, elu_alpha: where(x > 0, x, elu_alpha * expm1(x)),
    "sigmoid": lambda x, lrelu_alpha, elu_alpha: sigmoid(x),
    "tanh": lambda x, lrelu_alpha, elu_alpha: tanh(x),
}
"""EpyNN's activations by name, of (x, lrelu_alpha, elu_alpha)."""


def epynn_rnn(activate: str = "tanh") -> type[Cell]:
    """Return EpyNN's RNN with a choice of its activation."""
    act = ACTIVATIONS[activate]

    class EpynnRNN(Cell, name=f"epynn_rnn_{activate}"):
        """Simple recurrent network (J. L. Elman, "Finding structure in time", 1990), with the
        caches of EpyNN's RNN."""

        x, h_prev = Input(I), State(H)
        p_hp, p_h_bar = Input(H), Input(H)
        u, v, b = Weight(I, H), Weight(H, H), Bias(H)
        lrelu_alpha = Scalar(0.3) if activate == "lrelu" else 0.3
        elu_alpha = Scalar(1.0) if activate == "elu" else 1.0

        hp = h_prev + p_hp
        h_bar = x @ u + hp @ v + b + p_h_bar
        h = act(h_bar, lrelu_alpha, elu_alpha)

        outputs = h, h_bar

    return EpynnRNN


def epynn_gru(
    activate: str = "tanh", activate_update: str = "sigmoid", activate_reset: str = "sigmoid"
) -> type[Cell]:
    """Return EpyNN's GRU with a choice of its activations."""
    names = activate, activate_update, activate_reset
    act, act_update, act_reset = (ACTIVATIONS[name] for name in names)

    class EpynnGRU(Cell, name="epynn_gru_" + "_".join(names)):
        """Gated recurrent unit, reset gate before the candidate product (Cho et al. 2014,
        arXiv:1406.1078), with the caches of EpyNN's GRU."""

        x, h_prev = Input(I), State(H)
        p_hp, p_h, p_z, p_r, p_hh = Input(H), Input(H), Input(H), Input(H), Input(H)
        u_z, v_z, b_z = Weight(I, H), Weight(H, H), Bias(H)
        u_r, v_r, b_r = Weight(I, H), Weight(H, H), Bias(H)
        u_hh, v_hh, b_hh = Weight(I, H), Weight(H, H), Bias(H)
        lrelu_alpha = Scalar(0.3) if "lrelu" in names else 0.3
        elu_alpha = Scalar(1.0) if "elu" in names else 1.0

        hp = h_prev + p_hp
        r_bar = x @ u_r + hp @ v_r + b_r + p_r
        r = act_reset(r_bar, lrelu_alpha, elu_alpha)
        z_bar = x @ u_z + hp @ v_z + b_z + p_z
        z = act_update(z_bar, lrelu_alpha, elu_alpha)
        hh_bar = x @ u_hh + (r * hp) @ v_hh + b_hh + p_hh
        hh = act(hh_bar, lrelu_alpha, elu_alpha)
        h = z * hp + (1 - z) * hh + p_h

        outputs = h, hh_bar, hh, z, z_bar, r, r_bar

    return EpynnGRU


def epynn_lstm(
    activate: str = "tanh",
    activate_output: str = "sigmoid",
    activate_candidate: str = "tanh",
    activate_input: str = "sigmoid",
    activate_forget: str = "sigmoid",
) -> type[Cell]:
    """Return EpyNN's LSTM with a choice of its activations."""
    names = activate, activate_output, activate_candidate, activate_input, activate_forget
    act, act_output, act_candidate, act_input, act_forget = (ACTIVATIONS[name] for name in names)

    class EpynnLSTM(Cell, name="epynn_lstm_" + "_".join(names)):
        """Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate: Gers, Schmidhuber &
        Cummins 2000), with the caches of EpyNN's LSTM; c is EpyNN's C_, c_act its C."""

        x, h_prev, c_prev = Input(I), State(H), State(H)
        p_hp, p_h, p_cp, p_c = Input(H), Input(H), Input(H), Input(H)
        p_f, p_i, p_g, p_o = Input(H), Input(H), Input(H), Input(H)
        u_f, v_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
        u_i, v_i, b_i = Weight(I, H), Weight(H, H), Bias(H)
        u_g, v_g, b_g = Weight(I, H), Weight(H, H), Bias(H)
        u_o, v_o, b_o = Weight(I, H), Weight(H, H), Bias(H)
        lrelu_alpha = Scalar(0.3) if "lrelu" in names else 0.3
        elu_alpha = Scalar(1.0) if "elu" in names else 1.0

        hp, cp = h_prev + p_hp, c_prev + p_cp
        f_bar = x @ u_f + hp @ v_f + b_f + p_f
        f = act_forget(f_bar, lrelu_alpha, elu_alpha)
        i_bar = x @ u_i + hp @ v_i + b_i + p_i
        i = act_input(i_bar, lrelu_alpha, elu_alpha)
        g_bar = x @ u_g + hp @ v_g + b_g + p_g
        g = act_candidate(g_bar, lrelu_alpha, elu_alpha)
        o_bar = x @ u_o + hp @ v_o + b_o + p_o
        o = act_output(o_bar, lrelu_alpha, elu_alpha)
        c = cp * f + i * g + p_c
        c_act = act(c, lrelu_alpha, elu_alpha)
        h = o * c_act + p_h

        outputs = h, o_bar, o, i_bar, i, f_bar, f, g_bar, g, c, c_act

    return EpynnLSTM
