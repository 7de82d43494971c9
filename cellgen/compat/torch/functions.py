"""PyTorch's recurrent functions, each with a twin that also returns ``backward``."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from cellgen.compat.torch.call import Backward, checked_options, run_layers, state_pair
from cellgen.compat.torch.layout import Array


def gru(
    input: ArrayLike,
    hx: ArrayLike,
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Run a GRU (reset gate after the recurrent product); return output and h_n (L D, N, H).

    Raises:
        ArgumentError: shapes that do not agree, params that are too few or too many, dropout in
            training (draw masks and give them to a cell of ``cellgen.regularise``).
    """
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("gru", params, *options)
    output, h_n = run_layers("gru", input, (hx,), checked, lengths, save=False)[0]
    return output, h_n


def gru_vjp(
    input: ArrayLike,
    hx: ArrayLike,
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[tuple[Array, ...], Backward]:
    """Run ``gru`` and return its results and ``backward``.

    ``backward(d_output=None, d_h_n=None)`` takes the gradients of the results, zero where left out,
    and returns those of ``input``, ``hx`` and ``params`` (a list) by name.

    Raises ArgumentError as ``gru`` does.
    """
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("gru", params, *options)
    return run_layers("gru", input, (hx,), checked, lengths, save=True)


def lstm(
    input: ArrayLike,
    hx: Sequence[ArrayLike],
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Run an LSTM, with a projection where params hold one; return output, h_n and c_n.

    Raises ArgumentError as ``gru`` does.
    """
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("lstm", params, *options)
    output, h_n, c_n = run_layers("lstm", input, state_pair(hx), checked, lengths, save=False)[0]
    return output, h_n, c_n


def lstm_vjp(
    input: ArrayLike,
    hx: Sequence[ArrayLike],
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[tuple[Array, ...], Backward]:
    """Run ``lstm`` and return its results and ``backward(d_output=None, d_h_n=None, d_c_n=None)``.

    The gradient of ``hx`` is a pair. Raises ArgumentError as ``gru`` does.
    """
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("lstm", params, *options)
    return run_layers("lstm", input, state_pair(hx), checked, lengths, save=True)


def rnn_tanh(
    input: ArrayLike,
    hx: ArrayLike,
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Run Elman's network with tanh; return output and h_n. Raises ArgumentError as ``gru``."""
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("rnn_tanh", params, *options)
    output, h_n = run_layers("rnn_tanh", input, (hx,), checked, lengths, save=False)[0]
    return output, h_n


def rnn_tanh_vjp(
    input: ArrayLike,
    hx: ArrayLike,
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[tuple[Array, ...], Backward]:
    """Run ``rnn_tanh`` and return its results and ``backward``, as ``gru_vjp`` does."""
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("rnn_tanh", params, *options)
    return run_layers("rnn_tanh", input, (hx,), checked, lengths, save=True)


def rnn_relu(
    input: ArrayLike,
    hx: ArrayLike,
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Run Elman's network with relu; return output and h_n. Raises ArgumentError as ``gru``."""
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("rnn_relu", params, *options)
    output, h_n = run_layers("rnn_relu", input, (hx,), checked, lengths, save=False)[0]
    return output, h_n


def rnn_relu_vjp(
    input: ArrayLike,
    hx: ArrayLike,
    params: Sequence[ArrayLike],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: ArrayLike | None = None,
) -> tuple[tuple[Array, ...], Backward]:
    """Run ``rnn_relu`` and return its results and ``backward``, as ``gru_vjp`` does."""
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    checked = checked_options("rnn_relu", params, *options)
    return run_layers("rnn_relu", input, (hx,), checked, lengths, save=True)
