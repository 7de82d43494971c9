"""Linear attention with decays, and retention: ``fla.ops.gla``, ``simple_gla``, ``retention``."""

from __future__ import annotations

import torch
from torch import Tensor

from cellgen.torch.peers import cells
from cellgen.torch.peers.gates import widened
from cellgen.torch.peers.memories import Read, Reading, attend, no_decay


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Read:
    """Gated linear attention; g (B, T, H, K)."""
    call = Reading("chunk_gla", scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    return attend(call, cells.DecayByKey, q, k, v, g=g)


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """Gated linear attention; gk (B, T, H, K), gv (B, T, H, V)."""
    call = Reading(
        "fused_recurrent_gla",
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        state_v_first,
        reverse,
    )
    if gv is None:
        if gk is None:
            return attend(call, cells.DecayByHead, q, k, v, g=no_decay(v))
        return attend(call, cells.DecayByKey, q, k, v, g=gk)
    g = torch.zeros_like(k) if gk is None else gk
    return attend(call, cells.DecayByBoth, q, k, v, g=g, g_v=gv)


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_size: int | None = None,
) -> Read:
    """Linear attention with a decay by head; g (B, T, H), g_gamma (H), together their sum."""
    call = Reading(
        "chunk_simple_gla", scale, initial_state, output_final_state, cu_seqlens, state_v_first
    )
    return attend(call, cells.DecayByHead, q, k, v, g=_decay_by_head(v, g, g_gamma))


def fused_chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_simple_gla``."""
    call = Reading("fused_chunk_simple_gla", scale, initial_state, output_final_state, cu_seqlens)
    return attend(call, cells.DecayByHead, q, k, v, g=_decay_by_head(v, g, g_gamma))


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_simple_gla``, forwards or in reverse."""
    call = Reading(
        "fused_recurrent_simple_gla",
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        state_v_first,
        reverse,
    )
    return attend(call, cells.DecayByHead, q, k, v, g=_decay_by_head(v, g, g_gamma))


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int | None = None,
) -> Read:
    """Retention; head h decays by 1 - 2^(-5 - h)."""
    call = Reading("chunk_retention", scale, initial_state, output_final_state, cu_seqlens)
    return _retain(call, q, k, v)


def fused_chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_retention``."""
    call = Reading("fused_chunk_retention", scale, initial_state, output_final_state, cu_seqlens)
    return _retain(call, q, k, v)


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_retention``, forwards or in reverse."""
    call = Reading(
        "fused_recurrent_retention",
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        state_v_first,
        reverse,
    )
    return _retain(call, q, k, v)


def _decay_by_head(v: Tensor, g: Tensor | None, g_gamma: Tensor | None) -> Tensor:
    """Logarithms of decays (B, T, H) from those that depend on steps and those that do not."""
    both = no_decay(v) if g is None else g
    return both if g_gamma is None else widened(both) + widened(g_gamma)


def _retain(call: Reading, q: Tensor, k: Tensor, v: Tensor) -> Read:
    """Linear attention with retention's decays, the same at each step."""
    heads = torch.arange(v.shape[2], dtype=torch.float64, device=v.device)
    gamma = torch.log1p(-torch.exp2(-5 - heads)).to(torch.promote_types(v.dtype, torch.float32))
    return attend(call, cells.DecayByHead, q, k, v, g=gamma.expand(v.shape[:3]))
