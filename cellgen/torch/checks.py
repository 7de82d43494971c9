"""What a call of layers is given, looked at in the layer's own words, before a cell is called.

Input: a layer, and tensors of a call. Output: nothing, or an error that names the layer's argument.
Nothing is looked at within a graph that torch compiles or traces: what the cell says counts there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from cellgen import accept
from cellgen.runtime.abi import Argument, axis_length, axis_terms, term_dims
from cellgen.runtime.call.faults import shape_text
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.roles import units

if TYPE_CHECKING:
    from cellgen.torch.layers import CellLayers

OF_LAYER = ("batch_first", "dropout", "bidirectional", "window", "rate")
"""Options of a layer that are none of its calls."""
COUNT = "layers x directions"
"""What messages call the first axis of a state."""


def check_given(layer: CellLayers, stated: Mapping[str, object]) -> None:
    """Look at names beside the input and the options of a call. Raises KindError."""
    known = (
        *(item.name for item in layer.roles.shared),
        *(mask.name for mask in layer.roles.masks),
        *layer.cell.scalars,
    )
    states = tuple(item.name for item in layer.roles.states)
    check_tensors(layer.label, layer.roles.shared, stated)
    for name in stated:
        if name in known:
            continue
        advice = f"expected {', '.join(known)}" if known else "it takes none by name"
        if name in states:
            advice = "pass state=, one for each layer and direction"
        elif name in layer.cell.names:
            advice = "the layer has it as its input or its parameter"
        elif name in OF_LAYER:
            advice = "it is said when the layer is made"
        raise KindError(f"{layer.label}: unknown argument {name!r}; {advice}")


def check_free(layer: CellLayers, name: str) -> None:
    """Look at a parameter's name. Raises KindError where it is an attribute of layers already."""
    if hasattr(layer, name):
        raise KindError(
            f"{layer.label}: the weight {name!r} would hide an attribute of the layer, expected "
            f"another name; rename it in the cell, for example to {name}_weight"
        )


def check_tensors(label: str, items: Sequence[Argument], tensors: Mapping[str, object]) -> None:
    """Look at the kinds of inputs and statics. Raises KindError."""
    for name, shape in ((item.name, shape_text(item)) for item in items):
        tensor = tensors.get(name)
        if name in tensors and not isinstance(tensor, Tensor):
            is_packed = isinstance(tensor, PackedSequence)
            advice = f"pad_packed_sequence({name})[0]" if is_packed else f"torch.as_tensor({name})"
            raise KindError(
                f"{label}: {name} is a {type(tensor).__name__}, expected a torch.Tensor {shape}; "
                f"pass {advice}"
            )


def check_states(label: str, name: str, states: Sequence[object]) -> None:
    """Look for states that are left out beside others that are not. Raises KindError."""
    for place, state in enumerate(states):
        if state is None:
            raise KindError(
                f"{label}: {name}[{place}] is None, expected a torch.Tensor; pass all states, or "
                f"leave {name} out, and all start as the cell says"
            )


def check_shapes(
    layer: CellLayers,
    x: Tensor,
    states: Sequence[object],
    tensors: Mapping[str, object],
    *,
    batch_first: bool,
) -> None:
    """Look at the shapes of a call's tensors, with rows or without. Raises TensorError, KindError.

    Dimensions are those that the layer was made with, steps and rows those of its input.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    missing = [item for item in layer.roles.shared if tensors.get(item.name) is None]
    if missing:
        raise KindError(
            f"{layer.label}: {missing[0].name} is missing, expected a tensor "
            f"{shape_text(missing[0])}; pass {missing[0].name}=..."
        )
    inner = units(layer.roles.input)
    is_single = x.dim() == len(inner) + 1
    timed = ("T",) if is_single else ("B", "T") if batch_first else ("T", "B")
    if x.dim() != len(timed) + len(inner):
        raise TensorError(
            f"{layer.label}: {layer.roles.input.name} has {x.dim()} axes, shape {tuple(x.shape)}, "
            f"expected {len(timed) + len(inner)}: {_text((*timed, *inner))}, or one less without B"
        )
    sizes = dict(layer.sizes) | dict(zip(timed, x.shape, strict=False))
    sizes[COUNT] = layer.num_layers * (1 + layer.bidirectional)
    rows = () if is_single else ("B",)
    for label, axes, tensor in _tensors(layer, x, states, tensors, timed, rows):
        _check_shape(layer, label, axes, tensor, sizes)


def _tensors(
    layer: CellLayers,
    x: Tensor,
    states: Sequence[object],
    values: Mapping[str, object],
    timed: tuple[str, ...],
    rows: tuple[str, ...],
) -> Iterator[tuple[str, tuple[str, ...], object]]:
    """Every tensor of a call, what a caller knows it by, and the axes that it should have."""
    yield layer.roles.input.name, (*timed, *units(layer.roles.input)), x
    for item in layer.roles.shared:
        yield item.name, (*(timed if item.over_time else rows), *units(item)), values[item.name]
    several = len(states) > 1
    for place, (item, state) in enumerate(zip(layer.roles.states, states, strict=False)):
        label = f"state[{place}] ({item.name})" if several else "state"
        yield label, (COUNT, *rows, *units(item)), state


def _check_shape(
    layer: CellLayers, label: str, axes: tuple[str, ...], tensor: object, sizes: Mapping[str, int]
) -> None:
    expected = tuple(axis_length(axis, dict(sizes)) for axis in axes)
    if not isinstance(tensor, Tensor):
        raise KindError(
            f"{layer.label}: {label} is a {type(tensor).__name__}, expected a torch.Tensor "
            f"{_text(axes)} = {expected}; pass torch.as_tensor(...)"
        )
    if tuple(tensor.shape) != expected:
        terms = [term for axis in axes if axis != COUNT for term in axis_terms(axis)]
        names = dict.fromkeys(dim for _, dims in terms for dim in term_dims(dims))
        whence = {
            dim: "the layer" if dim in layer.sizes else layer.roles.input.name for dim in names
        }
        known = ", ".join(f"{dim} = {sizes[dim]} of {whence[dim]}" for dim in names)
        raise TensorError(
            f"{layer.label}: {label} has shape {tuple(tensor.shape)}, expected {_text(axes)} = "
            f"{expected}, with {known}; make them agree"
        )
    lacks = accept.lacking(tensor)
    if lacks:
        raise TensorError(f"{layer.label}: {label} {lacks}")


def _text(axes: Sequence[str]) -> str:
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
