"""Cells with the activations that Keras' layers take, chosen by name; see ``compat.keras``."""

from collections.abc import Callable, Mapping

from sympy import Expr

from cellgen.cells.elman import Elman
from cellgen.cells.gru import GRU
from cellgen.cells.gru_reset_before import gru_reset_before
from cellgen.cells.lstm import LSTM
from cellgen.language.cell import Cell
from cellgen.language.ops import hard_sigmoid, keep, relu, sigmoid, softplus, tanh

ACTIVATIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "linear": keep,
    "relu": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "softplus": softplus,
    "softsign": lambda x: x / (1 + abs(x)),
}
"""Keras' activations by name; hard_sigmoid is that of Keras 3, x / 6 + 1 / 2 between 0 and 1."""


def keras_simple_rnn(activation: str) -> type[Cell]:
    """Return the cell of SimpleRNN."""
    act = ACTIVATIONS[activation]

    class KerasSimpleRNN(Elman, name=f"keras_simple_rnn_{activation}"):
        """Simple recurrent network (J. L. Elman, "Finding structure in time", 1990), as Keras'
        SimpleRNN."""

        h = act(Elman.h_bar)

    return KerasSimpleRNN


def keras_gru(activation: str, recurrent_activation: str) -> type[Cell]:
    """Return the cell of GRU with reset_after=False."""
    act, recurrent = ACTIVATIONS[activation], ACTIVATIONS[recurrent_activation]
    name = f"keras_gru_{activation}_{recurrent_activation}"
    return gru_reset_before(act, recurrent, recurrent, name)


def keras_gru_reset_after(activation: str, recurrent_activation: str) -> type[Cell]:
    """Return the cell of GRU with reset_after=True."""
    act, recurrent = ACTIVATIONS[activation], ACTIVATIONS[recurrent_activation]

    class KerasGRU(GRU, name=f"keras_gru_reset_after_{activation}_{recurrent_activation}"):
        """Gated recurrent unit, reset gate after the recurrent product (Appleyard, Kocisky &
        Blunsom 2016, arXiv:1604.01946), as Keras' GRU."""

        z, r = recurrent(GRU.z_bar), recurrent(GRU.r_bar)
        n = act(GRU.n_bar)

    return KerasGRU


def keras_lstm(activation: str, recurrent_activation: str) -> type[Cell]:
    """Return the cell of LSTM."""
    act, recurrent = ACTIVATIONS[activation], ACTIVATIONS[recurrent_activation]

    class KerasLSTM(LSTM, name=f"keras_lstm_{activation}_{recurrent_activation}"):
        """Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate: Gers, Schmidhuber &
        Cummins 2000), as Keras' LSTM."""

        i, f, o = recurrent(LSTM.i_bar), recurrent(LSTM.f_bar), recurrent(LSTM.o_bar)
        g = act(LSTM.g_bar)
        h = LSTM.o * act(LSTM.c)

    return KerasLSTM
