"""Run a cell of a peer's function: shapes, types, heads, packed sequences, states.

Input: tensors by the names of the cell's inputs, rows first, then steps. Output: what is read at
each step, in the type of the values, and the last state. The recurrence is in float32, or in
float64 where a tensor is; gradients keep the state before every 32nd step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cellgen import accept
from cellgen.language.cell import Cell
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.functional import CellFunction, function

Read = tuple[Tensor, Tensor | None]
"""What is read at each step, and the last state where it is asked for."""

STEPS_BETWEEN_STATES = 32
"""Steps between states that are kept for gradients; steps between them run once more."""


@dataclass(frozen=True)
class Reading:
    """What a call says beside its streams; ``peer`` is the name of the function."""

    peer: str
    scale: float | None
    initial_state: Tensor | None
    output_final_state: bool
    cu_seqlens: Tensor | None = None
    state_v_first: bool = False
    reverse: bool = False


FUNCTIONS: dict[type[Cell], CellFunction] = {}
"""Functions of cells, each built or loaded when it is first asked for."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def axes_of(cell: type[Cell], name: str) -> tuple[str, ...]:
    """Axes of a tensor of the cell as functions of peers have them: rows, then steps."""
    if cell not in FUNCTIONS:
        FUNCTIONS[cell] = function(cell)
    item = next(item for item in FUNCTIONS[cell].layout.theta if item.name == name)
    return ("B", "T", *item.shape[2:]) if item.over_time else tuple(item.shape)


def attend(
    call: Reading, cell: type[Cell], q: Tensor, k: Tensor, v: Tensor, **gates: Tensor
) -> Read:
    """Read values v (B, T, HV, V) by keys k and queries q (B, T, H, K); HV a multiple of H.

    ``gates`` are the cell's other inputs and weights by their names. Returns o (B, T, HV, V) and
    the last state (N, HV, K, V), None where it is not asked for. Raises TensorError, KindError.
    """
    peer = call.peer
    q, k = (repeated(peer, name, t, v) for name, t in (("q", q), ("k", k)))
    units, width = q.shape[-1], v.shape[-1]
    scale = units**-0.5 if call.scale is None else accept.real(peer, "scale", call.scale)
    sizes = {"B": v.shape[0], "T": v.shape[1], "N": v.shape[2], "K": units, "D": width}
    streams = {"q": q, "k": k, "v": v, **gates}
    state = call.initial_state
    tensors = checked(peer, cell, sizes, streams, state)
    tensors["q"] = tensors["q"] * scale
    if state is not None and call.state_v_first:
        state = state.transpose(-1, -2)
    o, last = run(call, cell, sizes, tensors, state)
    if last is not None and call.state_v_first:
        last = last.transpose(-1, -2)
    return o.to(v.dtype), last


def repeated(peer: str, name: str, stream: Tensor, v: Tensor) -> Tensor:
    """Queries or keys for as many heads as values have. Raises TensorError, KindError."""
    for other, tensor in ((name, stream), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise KindError(
                f"{peer}: {other} is {accept.quoted(tensor)}, expected a tensor (B, T, H, ...)"
            )
        if tensor.dim() != 4:
            raise TensorError(
                f"{peer}: {other} has shape {tuple(tensor.shape)}, expected (B, T, H, ...); heads "
                f"are the third axis"
            )
    heads, groups = stream.shape[2], v.shape[2]
    if heads == groups:
        return stream
    if heads == 0 or groups % heads:
        raise TensorError(f"{peer}: v has {groups} heads, expected a multiple of {name}'s {heads}")
    return stream.repeat_interleave(groups // heads, 2)


def checked(
    peer: str,
    cell: type[Cell],
    sizes: Mapping[str, int],
    streams: Mapping[str, Tensor],
    state: object = None,
) -> dict[str, Tensor]:
    """Tensors in one type, with every axis of the cell's inputs; a state counts for the type.

    Raises TensorError, KindError.
    """
    tensors = {}
    for name, tensor in streams.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            what = tensor.dtype if isinstance(tensor, Tensor) else accept.quoted(tensor)
            raise KindError(f"{peer}: {name} is {what}, expected a tensor of floating point")
        axes = axes_of(cell, name)
        shape = tuple(sizes[axis] for axis in axes if axis != "1")
        if tensor.shape != shape:
            raise TensorError(f"{peer}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
        tensors[name] = tensor.unsqueeze(-1) if axes[-1] == "1" else tensor
    is_double = any(tensor.dtype == torch.float64 for tensor in streams.values())
    is_double |= isinstance(state, Tensor) and state.dtype == torch.float64
    kind = torch.float64 if is_double else torch.float32
    return {name: tensor.to(kind) for name, tensor in tensors.items()}


def run(
    call: Reading,
    cell: type[Cell],
    sizes: Mapping[str, int],
    tensors: dict[str, Tensor],
    state: Tensor | None = None,
    reset: Tensor | None = None,
) -> Read:
    """Run the cell over all steps, of each packed sequence by itself. Raises TensorError."""
    axes = axes_of(cell, "s_prev")
    lengths, places = None, None
    if call.cu_seqlens is not None:
        lengths = lengths_of(call.peer, call.cu_seqlens, sizes)
        rows = torch.repeat_interleave(lengths)
        starts = lengths.cumsum(0) - lengths
        places = rows, torch.arange(sizes["T"], device=rows.device) - starts[rows]
        shape = len(lengths), int(lengths.max()) if len(lengths) else 0
        for name, tensor in tensors.items():
            if axes_of(cell, name)[1] == "T":
                zeros = tensor.new_zeros(*shape, *tensor.shape[2:])
                tensors[name] = zeros.index_put(places, tensor[0])
    first = next(iter(tensors.values()))
    if state is not None:
        shape = (first.shape[0], *(sizes[axis] for axis in axes[1:]))
        tensors["s_prev"] = state_of(call, shape, state).to(first)
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
    spares = needs_gradient and first.device.type == "cpu" and first.shape[1] > STEPS_BETWEEN_STATES
    options: dict[str, Any] = {"checkpoint": STEPS_BETWEEN_STATES} if spares else {}
    with torch.autocast(first.device.type, enabled=False):
        results = FUNCTIONS[cell](
            lengths=lengths,
            reset=reset,
            reverse=call.reverse,
            batch_first=True,
            outputs=("o",),
            **tensors,
            **options,
        )
    o = results.o if places is None else results.o[places][None]
    return o, results.s_last if call.output_final_state else None


def state_of(call: Reading, shape: tuple[int, ...], state: object) -> Tensor:
    """The first state, looked at. Raises TensorError, KindError."""
    peer = call.peer
    if not isinstance(state, Tensor) or not state.is_floating_point():
        raise KindError(f"{peer}: initial_state is {accept.quoted(state)}, expected a tensor")
    if state.shape != shape:
        axes = " when turned to keys first" if call.state_v_first else ""
        raise TensorError(
            f"{peer}: initial_state has shape {tuple(state.shape)}{axes}, expected {shape}, a "
            f"state for each {'row' if call.cu_seqlens is None else 'sequence'}"
        )
    return state


def lengths_of(peer: str, bounds: object, sizes: Mapping[str, int]) -> Tensor:
    """Lengths of packed sequences. Raises TensorError, KindError."""
    if sizes["B"] != 1:
        raise TensorError(
            f"{peer}: a batch of {sizes['B']} rows with cu_seqlens, expected one row that holds "
            f"all sequences; reshape (B, T, ...) to (1, B * T, ...)"
        )
    return bounds_of(peer, bounds, sizes["T"]).diff()


def bounds_of(peer: str, bounds: object, steps: int) -> Tensor:
    """Where each sequence begins and ends, (N + 1), looked at. Raises TensorError, KindError."""
    if not isinstance(bounds, Tensor) or bounds.dtype not in (torch.int32, torch.int64):
        raise KindError(
            f"{peer}: cu_seqlens is {accept.quoted(bounds)}, expected a tensor of integers (N + 1)"
        )
    ends = bounds.long()
    is_whole = ends.dim() == 1 and len(ends) > 0 and ends[0] == 0 and ends[-1] == steps
    if not is_whole or ends.diff().lt(0).any():
        raise TensorError(
            f"{peer}: cu_seqlens is {ends.tolist()}, expected bounds that rise from 0 to the "
            f"{steps} steps"
        )
    return ends


def no_decay(v: Tensor) -> Tensor:
    """Logarithms of decays (B, T, HV) that are 1."""
    return v.new_zeros(()).expand(v.shape[:3])
