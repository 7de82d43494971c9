"""PyTorch's recurrent functions: ``torch.gru``, ``torch.lstm``, ``torch.rnn_tanh``, ``rnn_relu``.

Input and output: NumPy arrays in PyTorch's layouts (2.13): input (T, N, I), or (N, T, I) with
``batch_first``; hx (L D, N, H), for the LSTM a pair of them; output (T, N, D H). L layers, D
directions. ``params`` is the flat list that ``nn.GRU._flat_weights`` holds: for each layer and
direction weight_ih (G H, I), weight_hh (G H, H), with biases bias_ih (G H) and bias_hh (G H), and
for an LSTM with ``proj_size`` P weight_hr (P, H); weight_hh is then (G H, P), output (T, N, D P).

    GRU : rows [r | z | n];  n = tanh(W_in x + b_in + r (W_hn h + b_hn));  h' = (1 - z) n + z h
    LSTM: rows [i | f | g | o];  c' = f c + i g;  h' = o tanh(c'), with proj_size times weight_hr

There are no tensors here, so each function has a twin, such as ``gru_vjp``, that also returns
``backward``. Instead of a packed sequence, ``lengths`` (N) says how many steps of each row count,
as ``pack_padded_sequence(..., enforce_sorted=False)`` and ``pad_packed_sequence`` around a layer
do: output is 0 beyond a length, final states are those of each row's last step, and the reverse
direction begins there. The cells have one bias where PyTorch adds two, but for the GRU's n: both
get the gradient of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as cached
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from cellgen import accept, api
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.stacks import Layers, Run

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]
Backward: TypeAlias = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Layout:
    """How PyTorch stacks what a cell declares one by one.

    ``gates``: blocks of rows in PyTorch's order, by the cell's suffixes, "" for a cell that stacks
    as PyTorch does. ``apart``: the gate whose two biases the cell keeps apart, as b and c.
    ``states``: the cell's, in PyTorch's order.
    """

    cell: str
    gates: tuple[str, ...]
    states: tuple[str, ...] = ("h",)
    apart: str | None = None
    has_projection: bool = False


LAYOUTS: Mapping[str, Layout] = {
    "gru": Layout("gru", ("_r", "_z", "_n"), apart="_n"),
    "lstm": Layout("lstm", ("_i", "_f", "_g", "_o"), ("h", "c")),
    "lstm with proj_size": Layout("lstm_projection", ("",), ("r", "c"), has_projection=True),
    "rnn_tanh": Layout("elman", ("",)),
    "rnn_relu": Layout("elman_relu", ("",)),
}


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
    given = _given("gru", params, *options)
    output, h_n = _run("gru", input, (hx,), given, lengths, save=False)[0]
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
    given = _given("gru", params, *options)
    return _run("gru", input, (hx,), given, lengths, save=True)


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
    given = _given("lstm", params, *options)
    output, h_n, c_n = _run("lstm", input, _pair(hx), given, lengths, save=False)[0]
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
    given = _given("lstm", params, *options)
    return _run("lstm", input, _pair(hx), given, lengths, save=True)


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
    given = _given("rnn_tanh", params, *options)
    output, h_n = _run("rnn_tanh", input, (hx,), given, lengths, save=False)[0]
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
    given = _given("rnn_tanh", params, *options)
    return _run("rnn_tanh", input, (hx,), given, lengths, save=True)


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
    given = _given("rnn_relu", params, *options)
    output, h_n = _run("rnn_relu", input, (hx,), given, lengths, save=False)[0]
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
    given = _given("rnn_relu", params, *options)
    return _run("rnn_relu", input, (hx,), given, lengths, save=True)


# --- one call ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """What every function takes beside input and hx, in PyTorch's order."""

    params: Sequence[Array]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1


def _given(
    function: str,
    params: object,
    has_biases: object,
    num_layers: object,
    dropout: object,
    train: object,
    bidirectional: object,
    batch_first: object,
) -> _Given:
    """Check what every function takes beside input and hx. Raises ArgumentError."""
    arrays = accept.items(function, "params", params, "the arrays of nn.GRU._flat_weights")
    flags = {
        "has_biases": has_biases,
        "train": train,
        "bidirectional": bidirectional,
        "batch_first": batch_first,
    }
    return _Given(
        params=[accept.array(function, f"params[{k}]", array) for k, array in enumerate(arrays)],
        num_layers=accept.whole(function, "num_layers", num_layers, 1),
        dropout=accept.real(function, "dropout", dropout, 0, 1, expected="a probability, 0 to 1"),
        **{name: accept.flag(function, name, value) for name, value in flags.items()},
    )


def _pair(hx: object) -> tuple[ArrayLike, ...]:
    """The states of an LSTM, h_0 and c_0."""
    return tuple(cast("list[ArrayLike]", accept.items("lstm", "hx", hx, "a pair: h_0, c_0")))


@cached
def _kernel(name: str) -> Kernel:
    return api.load(name)


def _run(
    function: str,
    input: ArrayLike,
    hx: tuple[ArrayLike, ...],
    given: _Given,
    lengths: ArrayLike | None,
    *,
    save: bool,
) -> tuple[tuple[Array, ...], Backward]:
    """Name the arrays as the cell does, run its layers, stack what they return."""
    if given.dropout and given.train:
        raise ArgumentError(
            f"{function}: dropout is {given.dropout} in training, expected 0; regularise the cell "
            f"with cellgen.regularise and give it masks"
        )
    x, params = accept.array(function, "input", input), given.params
    groups = given.num_layers * given.directions
    layout, each = _layout(function, len(params), groups, given.has_biases)
    dtype = np.result_type(x, *params)
    blocks = [params[each * place : each * (place + 1)] for place in range(groups)]
    for place, block in enumerate(blocks):
        _check_params(function, layout, block, place, given)
    weights = [_weights(layout, block, given.has_biases, dtype) for block in blocks]
    starts = _starts(function, layout, hx, given, dtype)
    layers = Layers(_kernel(layout.cell), _nested(weights, given))
    run = layers.forward(
        np.asarray(x, dtype),
        _nested(starts, given),
        save=save,
        batch_first=given.batch_first,
        lengths=None if lengths is None else accept.array(function, "lengths", lengths),
    )
    finals = tuple(
        np.stack([direction[name] for layer in run.last for direction in layer])
        for name in layout.states
    )

    def backward(
        d_output: ArrayLike | None = None,
        d_h_n: ArrayLike | None = None,
        d_c_n: ArrayLike | None = None,
    ) -> dict[str, Any]:
        upstream = {"d_output": d_output, "d_h_n": d_h_n, "d_c_n": d_c_n}
        shapes = [run.output.shape, *(final.shape for final in finals)]
        checked = _upstream(function, upstream, shapes, run.output.dtype)
        return _backward(layout, layers, run, given, checked)

    return (run.output, *finals), backward


def _starts(
    function: str,
    layout: Layout,
    hx: Sequence[ArrayLike],
    given: _Given,
    dtype: np.dtype[Any],
) -> list[Arrays]:
    """The states of each layer and direction before the first step. Raises ArgumentError."""
    labels = ("h_0", "c_0")[: len(layout.states)]
    if len(hx) != len(labels):
        raise ArgumentError(
            f"{function}: hx holds {len(hx)} arrays, expected {len(labels)}: {', '.join(labels)}"
        )
    groups = given.num_layers * given.directions
    states = []
    for label, array in zip(labels, hx, strict=True):
        state = np.ascontiguousarray(accept.array(function, label, array), dtype)
        if state.ndim != 3 or len(state) != groups:
            raise ArgumentError(
                f"{function}: {label} has shape {state.shape}, expected ({groups}, N, units): "
                f"{given.num_layers} layers in {given.directions} directions"
            )
        states.append(state)
    return [
        {f"{name}_prev": state[place] for name, state in zip(layout.states, states, strict=True)}
        for place in range(groups)
    ]


def _backward(
    layout: Layout,
    layers: Layers,
    run: Run,
    given: _Given,
    upstream: Sequence[Array | None],
) -> dict[str, Any]:
    """Return the gradients of input, hx and params."""
    first, *finals = upstream
    d_last: list[Arrays] = [{} for _ in range(given.num_layers * given.directions)]
    for name, array in zip(layout.states, finals, strict=True):
        for place, own in enumerate(d_last if array is not None else ()):
            assert array is not None
            own[name] = array[place]
    found = layers.backward(run, first, _nested(d_last, given))
    flat = [direction for layer in found.d_states for direction in layer]
    d_hx = tuple(np.stack([one[f"{name}_prev"] for one in flat]) for name in layout.states)
    each = [direction for layer in found.d_weights for direction in layer]
    params = [array for one in each for array in _params(layout, one, given.has_biases)]
    hx = d_hx if len(d_hx) > 1 else d_hx[0]
    return {"input": found.d_input, "hx": hx, "params": params}


def _upstream(
    function: str,
    given: Mapping[str, ArrayLike | None],
    shapes: Sequence[tuple[int, ...]],
    dtype: np.dtype[Any],
) -> list[Array | None]:
    """Check the gradients of the results, each of its result's shape. Raises ArgumentError."""
    found: list[Array | None] = []
    for name, array in given.items():
        result = name.removeprefix("d_")
        if len(found) == len(shapes):
            if array is not None:
                raise ArgumentError(
                    f"{function}: {name} is given, expected none, since {function} has no {result}"
                )
            continue
        shape, meaning = shapes[len(found)], f"that of {result}"
        is_given = array is not None
        found.append(
            accept.shaped(function, name, array, shape, dtype, meaning=meaning)
            if is_given
            else None
        )
    return found


def _check_params(
    function: str, layout: Layout, params: Sequence[Array], place: int, given: _Given
) -> None:
    """Refuse params of one layer and direction whose shapes do not agree.

    weight_hh tells H, or P with a projection.
    """
    names = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * given.has_biases
    names += ["weight_hr"] * layout.has_projection
    suffix = f"_l{place // given.directions}{'_reverse' * (place % given.directions)}"
    arrays = dict(zip(names, params, strict=True))
    for name in ("weight_ih", "weight_hh"):
        if arrays[name].ndim != 2:
            raise ArgumentError(
                f"{function}: {name}{suffix} has shape {arrays[name].shape}, expected two axes"
            )
    gates = len(layout.gates) if not layout.has_projection else 4
    inner = arrays["weight_hh"].shape[1]
    units = arrays["weight_hr"].shape[-1:] if layout.has_projection else (inner,)
    rows = gates * (units[0] if units else 0)
    expected = {
        "weight_ih": (rows, arrays["weight_ih"].shape[1]),
        "weight_hh": (rows, inner),
        "bias_ih": (rows,),
        "bias_hh": (rows,),
        "weight_hr": (inner, *units),
    }
    for name, array in arrays.items():
        if array.shape != expected[name]:
            raise ArgumentError(
                f"{function}: {name}{suffix} has shape {array.shape}, expected {expected[name]}: "
                f"{gates} gates of {rows // gates} units"
            )


def _layout(function: str, count: int, groups: int, has_biases: bool) -> tuple[Layout, int]:
    """Tell the layout by how many params a layer has; return also how many."""
    plain = 4 if has_biases else 2
    if function == "lstm" and count == groups * (plain + 1):
        return LAYOUTS["lstm with proj_size"], plain + 1
    if count != groups * plain:
        raise ArgumentError(
            f"{function}: params holds {count} arrays, expected {groups * plain}: {plain} for each "
            f"of {groups} layers and directions"
        )
    return LAYOUTS[function], plain


def _nested(items: Sequence[Arrays], given: _Given) -> list[list[Arrays]]:
    """Arrange what is flat as [layer][direction]."""
    wide = given.directions
    return [list(items[wide * k : wide * (k + 1)]) for k in range(given.num_layers)]


def _weights(
    layout: Layout, params: Sequence[Array], has_biases: bool, dtype: np.dtype[Any]
) -> Arrays:
    """Cut the rows of one layer's params into the cell's weights, transposed."""
    rows, known = params[0].shape[0], Arrays()
    none = np.zeros(rows, dtype)
    bias_ih, bias_hh = (params[2], params[3]) if has_biases else (none, none)
    for index, gate in enumerate(layout.gates):
        block = slice(rows * index // len(layout.gates), rows * (index + 1) // len(layout.gates))
        known[f"w{gate}"] = np.ascontiguousarray(params[0][block].T, dtype)
        known[f"u{gate}"] = np.ascontiguousarray(params[1][block].T, dtype)
        if gate == layout.apart:
            known[f"b{gate}"] = np.ascontiguousarray(bias_ih[block], dtype)
            known[f"c{gate}"] = np.ascontiguousarray(bias_hh[block], dtype)
        else:
            known[f"b{gate}"] = np.ascontiguousarray(bias_ih[block] + bias_hh[block], dtype)
    if layout.has_projection:
        known["w_p"] = np.ascontiguousarray(params[-1].T, dtype)
    return known


def _params(layout: Layout, found: Mapping[str, Array], has_biases: bool) -> list[Array]:
    """Stack the gradients of one layer's weights as PyTorch's params are stacked."""
    parts = [np.concatenate([found[f"{kind}{gate}"].T for gate in layout.gates]) for kind in "wu"]
    if has_biases:
        recurrent = ["c" if gate == layout.apart else "b" for gate in layout.gates]
        parts.append(np.concatenate([found[f"b{gate}"] for gate in layout.gates]))
        names = [f"{kind}{gate}" for kind, gate in zip(recurrent, layout.gates, strict=True)]
        parts.append(np.concatenate([found[name] for name in names]))
    return [*parts, found["w_p"].T] if layout.has_projection else parts
