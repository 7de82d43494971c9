"""What the peers' kernels form of gates, rates and keys before the recurrence, in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from cellgen.errors import ArgumentError

EPSILON = 1e-6
"""Added to a sum of squares before its root is taken."""


def widened(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in float64 where it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def unit_length(is_asked: bool, *keys: Tensor) -> tuple[Tensor, ...]:
    """Keys and queries over their lengths, in float32 at least; as they are where not asked."""
    if not is_asked:
        return keys
    wide = (widened(key) for key in keys)
    return tuple(key * torch.rsqrt(key.square().sum(-1, keepdim=True) + EPSILON) for key in wide)


def rate(peer: str, beta: Tensor, use_sigmoid: bool, allow_neg_eigval: bool) -> Tensor:
    """The delta rule's beta, between 0 and 1, or 0 and 2. Raises ArgumentError."""
    if allow_neg_eigval and not use_sigmoid:
        raise ArgumentError(
            f"{peer}: allow_neg_eigval doubles what use_beta_sigmoid_in_kernel forms; pass both"
        )
    if not use_sigmoid:
        return beta
    return torch.sigmoid(widened(beta)) * (2 if allow_neg_eigval else 1)


def log_decay(
    peer: str,
    g: Tensor | None,
    use_gate: bool,
    a_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None = None,
) -> Tensor:
    """The logarithm of a decay by head (B, T, H) or by key (B, T, H, K). Raises ArgumentError."""
    if g is None:
        raise ArgumentError(f"{peer}: g is None, expected what the gate is formed of, (B, T, H)")
    if not use_gate:
        return g
    if a_log is None and lower_bound is None:
        raise ArgumentError(f"{peer}: A_log is None with use_gate_in_kernel; pass it, (H)")
    tail = g.shape[2:]
    wide = widened(g)
    if dt_bias is not None:
        wide = wide + dt_bias.reshape(tail)
    strength = wide.new_ones(1) if a_log is None else widened(a_log).exp()
    strength = strength.reshape(-1, *(1,) * (len(tail) - 1))
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(strength * wide)
    return -strength * softplus(wide)
