"""Keras' recurrent layers: ``GRU``, ``LSTM``, ``SimpleRNN`` as functions of their weights.

Input and output: NumPy arrays in Keras' layouts (3.15): sequences (N, T, I), mask (N, T) of bool,
kernel (I, G H), recurrent_kernel (H, G H), bias (G H), for a GRU with reset_after (2, 3 H): that of
the input, then that of the recurrent product. Columns: GRU [z | r | h], LSTM [i | f | c | o].

    GRU : h = z h' + (1 - z) hh;  reset_after: hh = tanh(x W + b + r (h' U + b_rec)), else (r h') U
    LSTM: c = f c' + i tanh(...);  h = o tanh(c);  states h, c

A function takes what a layer's call takes, and what its constructor takes by the same names; what a
layer returns, it returns. There are no tensors here, so each has a twin, ``gru_vjp``, that also
returns ``backward``. A step that the mask leaves out keeps the states; its output is that of the
step before, zeros before the first valid step, or with ``zero_output_for_mask`` zeros; so
is the output of a layer that returns its last step alone, where the mask leaves that one out.
``go_backwards`` reads sequences and mask from the end and leaves the output in that order.

tanh with sigmoid (SimpleRNN: tanh, relu) are cells that ship; other activations, by Keras' names,
are generated and compiled when they are first used, which needs SymPy and a C compiler.
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

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]
Returned: TypeAlias = Array | list[Array]
Backward: TypeAlias = Callable[..., dict[str, Any]]

GATES: Mapping[str, str] = {
    "simple_rnn": "",
    "gru": "zrn",
    "gru_reset_after": "zrn",
    "lstm": "ifgo",
}
"""Blocks of columns by the suffixes of the cell's weights."""
STATES: Mapping[str, tuple[str, ...]] = {"lstm": ("h", "c")}
"""The cell's states in Keras' order, where they are not h alone."""
SHIPPED: Mapping[tuple[str, ...], str] = {
    ("simple_rnn", "tanh"): "elman",
    ("simple_rnn", "relu"): "elman_relu",
    ("gru", "tanh", "sigmoid"): "gru_reset_before",
    ("gru_reset_after", "tanh", "sigmoid"): "gru",
    ("lstm", "tanh", "sigmoid"): "lstm",
}
"""Cells that need no generating, by layer and activations."""


@dataclass(frozen=True)
class LayerOptions:
    """What a layer's constructor takes beside weights and activations."""

    return_sequences: bool = False
    return_state: bool = False
    go_backwards: bool = False
    zero_output_for_mask: bool = False


def simple_rnn(
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str = "tanh",
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
) -> Returned:
    """Run SimpleRNN; return what the layer returns: output, and a list with the state if asked.

    Raises ArgumentError: an unknown activation, shapes that do not agree.
    """
    options = LayerOptions(return_sequences, return_state, go_backwards, zero_output_for_mask)
    layer = ("simple_rnn", activation)
    return _run(layer, sequence, initial_state, mask, (kernel, recurrent_kernel, bias), options)[0]


def simple_rnn_vjp(
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str = "tanh",
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
) -> tuple[Returned, Backward]:
    """Run ``simple_rnn`` and return its result and ``backward``.

    ``backward(d_output=None, d_states=None)`` takes the gradients of the output and of the list of
    final states, zero where left out, and returns those of ``sequence``, ``initial_state`` (a
    list), ``kernel``, ``recurrent_kernel`` and ``bias`` by name.
    """
    options = LayerOptions(return_sequences, return_state, go_backwards, zero_output_for_mask)
    layer = ("simple_rnn", activation)
    weights = (kernel, recurrent_kernel, bias)
    return _run(layer, sequence, initial_state, mask, weights, options, save=True)


def gru(
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
    reset_after: bool = True,
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
) -> Returned:
    """Run GRU; return what the layer returns. Raises ArgumentError as ``simple_rnn`` does."""
    options = LayerOptions(return_sequences, return_state, go_backwards, zero_output_for_mask)
    layer = (_gru(reset_after), activation, recurrent_activation)
    return _run(layer, sequence, initial_state, mask, (kernel, recurrent_kernel, bias), options)[0]


def gru_vjp(
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
    reset_after: bool = True,
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
) -> tuple[Returned, Backward]:
    """Run ``gru`` and return its result and ``backward``, as ``simple_rnn_vjp`` does."""
    options = LayerOptions(return_sequences, return_state, go_backwards, zero_output_for_mask)
    layer = (_gru(reset_after), activation, recurrent_activation)
    weights = (kernel, recurrent_kernel, bias)
    return _run(layer, sequence, initial_state, mask, weights, options, save=True)


def lstm(
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
) -> Returned:
    """Run LSTM; return what the layer returns. Raises ArgumentError as ``simple_rnn`` does."""
    options = LayerOptions(return_sequences, return_state, go_backwards, zero_output_for_mask)
    layer = ("lstm", activation, recurrent_activation)
    return _run(layer, sequence, initial_state, mask, (kernel, recurrent_kernel, bias), options)[0]


def lstm_vjp(
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None = None,
    mask: ArrayLike | None = None,
    *,
    kernel: ArrayLike,
    recurrent_kernel: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str = "tanh",
    recurrent_activation: str = "sigmoid",
    return_sequences: bool = False,
    return_state: bool = False,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
) -> tuple[Returned, Backward]:
    """Run ``lstm`` and return its result and ``backward``, as ``simple_rnn_vjp`` does."""
    options = LayerOptions(return_sequences, return_state, go_backwards, zero_output_for_mask)
    layer = ("lstm", activation, recurrent_activation)
    weights = (kernel, recurrent_kernel, bias)
    return _run(layer, sequence, initial_state, mask, weights, options, save=True)


# --- one call ------------------------------------------------------------------------------------


def _gru(reset_after: object) -> str:
    """The layer that ``reset_after`` chooses."""
    return "gru_reset_after" if accept.flag("gru", "reset_after", reset_after) else "gru"


def _run(
    layer: tuple[str, ...],
    sequence: ArrayLike,
    initial_state: Sequence[ArrayLike] | None,
    mask: ArrayLike | None,
    weights: tuple[ArrayLike, ArrayLike, ArrayLike | None],
    options: LayerOptions,
    *,
    save: bool = False,
) -> tuple[Returned, Backward]:
    """Name the arrays as the cell does, run it over time, arrange what it returns."""
    kind, gates = layer[0], [f"_{gate}" for gate in GATES[layer[0]]] or [""]
    for name, value in vars(options).items():
        accept.flag(kind, name, value)
    cell = _kernel(_activated(layer))
    kernel_array = accept.array(kind, "kernel", weights[0])
    recurrent = accept.array(kind, "recurrent_kernel", weights[1])
    bias = None if weights[2] is None else accept.array(kind, "bias", weights[2])
    x = accept.array(kind, "sequence", sequence)
    _check_sequence(kind, x, options)
    dtype = np.result_type(x, kernel_array, recurrent)
    known = _weights(kind, gates, (kernel_array, recurrent, bias), dtype)
    names = STATES.get(kind, ("h",))
    shape = (len(x), recurrent.shape[0])
    known |= _initial(kind, names, initial_state, shape, dtype)
    settings: dict[str, Any] = {
        "mask": None if mask is None else accept.array(kind, "mask", mask).astype(bool),
        "reverse": options.go_backwards,
        "batch_first": True,
        "zero_output_for_mask": options.zero_output_for_mask,
    }
    done = cell.sequence_forward(x=np.asarray(x, dtype), **known, **settings, save=save)
    direction = -1 if options.go_backwards else 1
    h = done.h[:, ::direction]
    finals = [getattr(done, f"{name}_last") for name in names]
    output = h if options.return_sequences else h[:, -1]

    def backward(
        d_output: ArrayLike | None = None, d_states: Sequence[ArrayLike | None] | None = None
    ) -> dict[str, Any]:
        upstream = _upstream(kind, _states(kind, "d_states", d_states, names), shape, dtype)
        if d_output is not None:
            wide, meaning = np.zeros(done.h.shape, dtype), "that of the output"
            part = accept.shaped(kind, "d_output", d_output, output.shape, dtype, meaning=meaning)
            wide[:, slice(None) if options.return_sequences else -1] = part
            upstream["d_h"] = wide[:, ::direction]
        taken = {item.name for item in cell.sequence_backward.function.arguments}
        results = {n: a for n, a in done._asdict().items() if n in taken}
        call = {"x": np.asarray(x, dtype), **known, **results, **upstream}
        gradients = cell.sequence_backward(**call, **settings, saved=done.saved)._asdict()
        return {
            "sequence": gradients["d_x"],
            "initial_state": [gradients[f"d_{name}_prev"] for name in names],
            "kernel": np.concatenate([gradients[f"d_w{gate}"] for gate in gates], axis=1),
            "recurrent_kernel": np.concatenate([gradients[f"d_u{gate}"] for gate in gates], axis=1),
            "bias": _bias(kind, gates, gradients),
        }

    return ([output, *finals] if options.return_state else output), backward


def _upstream(
    kind: str,
    upstream: Mapping[str, ArrayLike | None],
    shape: tuple[int, int],
    dtype: np.dtype[Any],
) -> Arrays:
    """The gradients of final states by the names of the kernel."""
    return {
        f"d_{name}_last": accept.shaped(kind, f"d_states[{index}]", array, shape, dtype)
        for index, (name, array) in enumerate(upstream.items())
        if array is not None
    }


def _check_sequence(kind: str, x: Array, options: LayerOptions) -> None:
    """Refuse what is no (N, T, I), and no steps where the last one's output is returned."""
    if x.ndim != 3:
        raise ArgumentError(f"{kind}: sequence has shape {x.shape}, expected (N, T, I)")
    if not x.shape[1] and not options.return_sequences:
        raise ArgumentError(
            f"{kind}: sequence has shape {x.shape}, expected a step at least, since the output is "
            f"that of the last one; pass return_sequences=True"
        )


def _states(
    kind: str, label: str, states: object, names: Sequence[str]
) -> dict[str, ArrayLike | None]:
    """Name the entries of a list with one for each state; all None where it was left out."""
    if states is None:
        return dict.fromkeys(names)
    listed = accept.items(kind, label, states, f"a list of arrays: {', '.join(names)}")
    if len(listed) != len(names):
        raise ArgumentError(
            f"{kind}: {label} holds {len(listed)} arrays, expected {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, cast("list[ArrayLike | None]", listed), strict=True))


def _initial(
    kind: str,
    names: Sequence[str],
    initial: Sequence[ArrayLike] | None,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
) -> Arrays:
    """The states before the first step, zeros where they were left out."""
    known = Arrays()
    for index, (name, state) in enumerate(_states(kind, "initial_state", initial, names).items()):
        start = np.zeros(shape, dtype) if initial is None else state
        label = f"initial_state[{index}]"
        known[f"{name}_prev"] = accept.shaped(kind, label, start, shape, dtype, meaning="(N, H)")
    return known


def _weights(
    kind: str,
    gates: Sequence[str],
    weights: tuple[Array, Array, Array | None],
    dtype: np.dtype[Any],
) -> Arrays:
    """Cut Keras' columns into the cell's weights; the GRU's two biases are one but for n."""
    kernel, recurrent, bias = weights
    width = len(gates) * len(recurrent) if recurrent.ndim else 0
    if kernel.ndim != 2 or recurrent.ndim != 2 or {kernel.shape[1], recurrent.shape[1]} != {width}:
        raise ArgumentError(
            f"{kind}: kernel has shape {kernel.shape} and recurrent_kernel {recurrent.shape}, "
            f"expected (I, {len(gates)} H) and (H, {len(gates)} H)"
        )
    expected = (2, width) if kind == "gru_reset_after" else (width,)
    both = np.zeros((2, width), dtype)
    if bias is not None:
        if bias.shape != expected:
            raise ArgumentError(f"{kind}: bias has shape {bias.shape}, expected {expected}")
        both[: len(np.atleast_2d(bias))] = bias
    known = Arrays()
    for index, gate in enumerate(gates):
        block = slice(width * index // len(gates), width * (index + 1) // len(gates))
        known[f"w{gate}"] = np.ascontiguousarray(kernel[:, block], dtype)
        known[f"u{gate}"] = np.ascontiguousarray(recurrent[:, block], dtype)
        if kind == "gru_reset_after" and gate == "_n":
            known[f"b{gate}"], known[f"c{gate}"] = both[0, block].copy(), both[1, block].copy()
        else:
            known[f"b{gate}"] = both[0, block] + both[1, block]
    return known


def _bias(kind: str, gates: Sequence[str], gradients: Mapping[str, Array]) -> Array:
    """Stack the gradients of the biases as Keras' bias is stacked."""
    first = np.concatenate([gradients[f"d_b{gate}"] for gate in gates])
    if kind != "gru_reset_after":
        return first
    names = ["d_c_n" if gate == "_n" else f"d_b{gate}" for gate in gates]
    return np.stack([first, np.concatenate([gradients[name] for name in names])])


def _activated(layer: tuple[str, ...]) -> tuple[str, ...]:
    """The layer with its activations as plain texts. Raises ArgumentError."""
    kind, *activations = layer
    what = "the name of an activation, such as 'tanh'"
    return kind, *(accept.word(kind, "activation", name, what) for name in activations)


@cached
def _kernel(layer: tuple[str, ...]) -> Kernel:
    """Load the cell that ships, or generate the one with these activations (which needs SymPy)."""
    if layer in SHIPPED:
        return api.load(SHIPPED[layer])
    from cellgen.cells import keras as cells

    for name in layer[1:]:
        if name not in cells.ACTIVATIONS:
            raise ArgumentError(
                f"{layer[0]}: activation {name!r} is unknown, expected one of "
                f"{', '.join(cells.ACTIVATIONS)}"
            )
    factory: Callable[..., Any] = getattr(cells, f"keras_{layer[0]}")
    return api.compile(factory(*layer[1:]))
