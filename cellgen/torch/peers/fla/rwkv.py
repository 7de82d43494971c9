"""RWKV: ``fla.ops.rwkv6``, ``rwkv7``."""

from __future__ import annotations

from torch import Tensor

from cellgen.errors import ArgumentError
from cellgen.torch.peers import cells
from cellgen.torch.peers.gates import widened
from cellgen.torch.peers.memories import Read, Reading, attend


def chunk_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_size: int | None = None,
) -> Read:
    """RWKV-6; w (B, T, H, K), the bonus u (H, K)."""
    call = Reading("chunk_rwkv6", scale, initial_state, output_final_state, cu_seqlens)
    return attend(call, cells.Bonus, r, k, v, g=w, u=u)


def fused_recurrent_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_rwkv6``, forwards or in reverse."""
    call = Reading(
        "fused_recurrent_rwkv6",
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        reverse=reverse,
    )
    return attend(call, cells.Bonus, r, k, v, g=w, u=u)


def chunk_rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    chunk_size: int | None = None,
    disable_recompute: bool = False,
    cp_context: None = None,
    lower_bound: float | None = None,
) -> Read:
    """RWKV-7; w, a, b (B, T, H, K): the state decays by w, and b receives what a reads."""
    if cp_context is not None:
        raise ArgumentError("chunk_rwkv7: cp_context is passed, expected None")
    call = Reading("chunk_rwkv7", scale, initial_state, output_final_state, cu_seqlens)
    return attend(call, cells.LowRank, r, k, v, g=w, a=a, b=b)


def fused_recurrent_rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_rwkv7``, with other defaults."""
    call = Reading("fused_recurrent_rwkv7", scale, initial_state, output_final_state, cu_seqlens)
    return attend(call, cells.LowRank, r, k, v, g=w, a=a, b=b)


def fused_mul_recurrent_rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    kk: Tensor,
    a: Tensor,
    scale: float | None = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """RWKV-7 by the removal key kk and its rate a: what -kk reads, kk * a receives."""
    call = Reading(
        "fused_mul_recurrent_rwkv7",
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        reverse=reverse,
    )
    return attend(call, cells.LowRank, r, k, v, g=w, a=-kk, b=widened(kk) * widened(a))
