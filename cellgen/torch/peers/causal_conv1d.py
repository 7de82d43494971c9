"""The convolution before a scan by the name and signature of ``causal_conv1d`` (1.6.1).

A convolution has no state over time that a cell would declare: torch computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad, silu

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.torch.errors import TensorError

ACTIVATIONS = (None, "silu", "swish")


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each channel with what lies at and before a step.

    x (batch, dim, L), weight (dim, width), bias (dim), ``initial_states`` (batch, dim, width - 1)
    what lies before x, ``seq_idx`` (batch, L) numbers of sequences, which do not see each other;
    -1 is padding, whose result is 0, and neither states nor last steps go with ``seq_idx``.
    Computed in float32, or in float64 where a tensor is, under autocast too.
    Returns (batch, dim, L) in the type of x, with ``return_final_states`` the last width - 1 steps
    of x as well, copied to ``final_states_out`` where that is passed. Raises TensorError,
    ArgumentError.
    """
    peer = "causal_conv1d_fn"
    if activation not in ACTIVATIONS:
        raise ArgumentError(
            f"{peer}: activation is {accept.quoted(activation)}, expected None, 'silu' or 'swish'"
        )
    if x.dim() != 3 or weight.dim() != 2 or x.shape[1] != weight.shape[0]:
        raise TensorError(
            f"{peer}: x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}, expected "
            f"(batch, dim, L) and (dim, width)"
        )
    before = weight.shape[1] - 1
    _check(peer, x, before, bias, initial_states)
    if seq_idx is not None and (initial_states is not None or return_final_states):
        raise ArgumentError(
            f"{peer}: seq_idx is passed with initial_states or return_final_states, expected "
            f"either; a row of several sequences has no one state"
        )
    tensors = [t for t in (x, weight, bias, initial_states) if t is not None]
    is_double = any(t.dtype == torch.float64 for t in tensors)
    kind = torch.float64 if is_double else torch.float32
    wide, taps = x.to(kind), weight.to(kind)
    shift = None if bias is None else bias.to(kind)
    if initial_states is None:
        wide = pad(wide, (before, 0))
    else:
        wide = torch.cat([initial_states.to(kind), wide], -1)
    with torch.autocast(x.device.type, enabled=False):
        if seq_idx is None:
            y = conv1d(wide, taps[:, None], shift, groups=x.shape[1])
        else:
            y = _within(peer, wide, taps, shift, seq_idx)
        y = (y if activation is None else silu(y)).to(x.dtype)
    if not return_final_states:
        return y
    final = wide[..., wide.shape[-1] - before :].to(x.dtype)
    if final_states_out is not None:
        final = final_states_out.copy_(final)
    return y, final


def _check(
    peer: str, x: Tensor, before: int, bias: Tensor | None, initial_states: Tensor | None
) -> None:
    """Hold the shapes of what may be left out to those of x and weight. Raises TensorError."""
    rows, channels, _ = x.shape
    for name, tensor, shape in (
        ("bias", bias, (channels,)),
        ("initial_states", initial_states, (rows, channels, before)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise TensorError(f"{peer}: {name} has shape {tuple(tensor.shape)}, expected {shape}")


def _within(
    peer: str, wide: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor
) -> Tensor:
    """The same where steps see those of their own sequence alone, and 0 at numbers below 0."""
    steps, before = seq_idx.shape[-1], weight.shape[1] - 1
    if (wide.shape[0], wide.shape[2] - before) != tuple(seq_idx.shape):
        raise TensorError(f"{peer}: seq_idx has shape {tuple(seq_idx.shape)}, expected (batch, L)")
    earlier = pad(seq_idx, (before, 0), value=-1)
    y = wide.new_zeros(()) if bias is None else bias[:, None]
    for tap in range(before + 1):
        is_own = (earlier[:, tap : tap + steps] == seq_idx)[:, None]
        y = y + torch.where(is_own, wide[..., tap : tap + steps], 0) * weight[:, tap, None]
    return torch.where((seq_idx >= 0)[:, None], y, 0)
