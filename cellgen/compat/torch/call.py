"""One call of a recurrent function: its arguments checked, its layers run, results stacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as cached
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from cellgen import accept, api
from cellgen.compat.torch.layout import (
    Array,
    Arrays,
    ParamsLayout,
    cell_weights,
    layout_of,
    stacked_params,
)
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.stacks import Layers, Run

Backward: TypeAlias = Callable[..., dict[str, Any]]


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


def checked_options(
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


def state_pair(hx: object) -> tuple[ArrayLike, ...]:
    """The states of an LSTM, h_0 and c_0."""
    return tuple(cast("list[ArrayLike]", accept.items("lstm", "hx", hx, "a pair: h_0, c_0")))


@cached
def _kernel(name: str) -> Kernel:
    return api.load(name)


def run_layers(
    function: str,
    input: ArrayLike,
    hx: tuple[ArrayLike, ...],
    options: _Given,
    lengths: ArrayLike | None,
    *,
    save: bool,
) -> tuple[tuple[Array, ...], Backward]:
    """Name the arrays as the cell does, run its layers, stack what they return."""
    if options.dropout and options.train:
        raise ArgumentError(
            f"{function}: dropout is {options.dropout} in training, expected 0; regularise the "
            f"cell with cellgen.regularise and give it masks"
        )
    x, params = accept.array(function, "input", input), options.params
    groups = options.num_layers * options.directions
    layout, each = layout_of(function, len(params), groups, options.has_biases)
    dtype = np.result_type(x, *params)
    blocks = [params[each * place : each * (place + 1)] for place in range(groups)]
    for place, block in enumerate(blocks):
        _check_params(function, layout, block, place, options)
    weights = [cell_weights(layout, block, options.has_biases, dtype) for block in blocks]
    starts = _starts(function, layout, hx, options, dtype)
    layers = Layers(_kernel(layout.cell), _nested(weights, options))
    run = layers.forward(
        np.asarray(x, dtype),
        _nested(starts, options),
        save=save,
        batch_first=options.batch_first,
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
        return _backward(layout, layers, run, options, checked)

    return (run.output, *finals), backward


def _starts(
    function: str,
    layout: ParamsLayout,
    hx: Sequence[ArrayLike],
    options: _Given,
    dtype: np.dtype[Any],
) -> list[Arrays]:
    """The states of each layer and direction before the first step. Raises ArgumentError."""
    labels = ("h_0", "c_0")[: len(layout.states)]
    if len(hx) != len(labels):
        raise ArgumentError(
            f"{function}: hx holds {len(hx)} arrays, expected {len(labels)}: {', '.join(labels)}"
        )
    groups = options.num_layers * options.directions
    states = []
    for label, array in zip(labels, hx, strict=True):
        state = np.ascontiguousarray(accept.array(function, label, array), dtype)
        if state.ndim != 3 or len(state) != groups:
            raise ArgumentError(
                f"{function}: {label} has shape {state.shape}, expected ({groups}, N, units): "
                f"{options.num_layers} layers in {options.directions} directions"
            )
        states.append(state)
    return [
        {f"{name}_prev": state[place] for name, state in zip(layout.states, states, strict=True)}
        for place in range(groups)
    ]


def _backward(
    layout: ParamsLayout,
    layers: Layers,
    run: Run,
    checked: _Given,
    upstream: Sequence[Array | None],
) -> dict[str, Any]:
    """Return the gradients of input, hx and params."""
    first, *finals = upstream
    d_last: list[Arrays] = [{} for _ in range(checked.num_layers * checked.directions)]
    for name, array in zip(layout.states, finals, strict=True):
        for place, own in enumerate(d_last if array is not None else ()):
            assert array is not None
            own[name] = array[place]
    gradients = layers.backward(run, first, _nested(d_last, checked))
    flat = [direction for layer in gradients.d_states for direction in layer]
    d_hx = tuple(np.stack([one[f"{name}_prev"] for one in flat]) for name in layout.states)
    each = [direction for layer in gradients.d_weights for direction in layer]
    params = [array for one in each for array in stacked_params(layout, one, checked.has_biases)]
    hx = d_hx if len(d_hx) > 1 else d_hx[0]
    return {"input": gradients.d_input, "hx": hx, "params": params}


def _upstream(
    function: str,
    named: Mapping[str, ArrayLike | None],
    shapes: Sequence[tuple[int, ...]],
    dtype: np.dtype[Any],
) -> list[Array | None]:
    """Check the gradients of the results, each of its result's shape. Raises ArgumentError."""
    gradients: list[Array | None] = []
    for name, array in named.items():
        result = name.removeprefix("d_")
        if len(gradients) == len(shapes):
            if array is not None:
                raise ArgumentError(
                    f"{function}: {name} is given, expected none, since {function} has no {result}"
                )
            continue
        shape, meaning = shapes[len(gradients)], f"that of {result}"
        is_given = array is not None
        gradients.append(
            accept.shaped(function, name, array, shape, dtype, meaning=meaning)
            if is_given
            else None
        )
    return gradients


def _check_params(
    function: str, layout: ParamsLayout, params: Sequence[Array], place: int, options: _Given
) -> None:
    """Refuse params of one layer and direction whose shapes do not agree.

    weight_hh tells H, or P with a projection.
    """
    names = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * options.has_biases
    names += ["weight_hr"] * layout.has_projection
    suffix = f"_l{place // options.directions}{'_reverse' * (place % options.directions)}"
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


def _nested(items: Sequence[Arrays], options: _Given) -> list[list[Arrays]]:
    """Arrange what is flat as [layer][direction]."""
    wide = options.directions
    return [list(items[wide * k : wide * (k + 1)]) for k in range(options.num_layers)]
