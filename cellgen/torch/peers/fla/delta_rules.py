"""Delta rules: ``fla.ops.delta_rule``, ``gated_delta_rule``, ``kda``."""

from __future__ import annotations

import torch
from torch import Tensor

from cellgen.errors import ArgumentError
from cellgen.torch.peers import cells
from cellgen.torch.peers.gates import log_decay, rate, unit_length, widened
from cellgen.torch.peers.memories import Read, Reading, attend, no_decay


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_size: int | None = None,
) -> Read:
    """The delta rule; beta (B, T, H)."""
    call = Reading("chunk_delta_rule", scale, initial_state, output_final_state, cu_seqlens)
    return _correct(call, q, k, v, beta, use_qk_l2norm_in_kernel)


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The delta rule; beta (B, T, H) or (B, T, H, V), 1 where None."""
    call = Reading(
        "fused_recurrent_delta_rule", scale, initial_state, output_final_state, cu_seqlens
    )
    beta = torch.ones_like(v[..., 0]) if beta is None else beta
    return _correct(call, q, k, v, beta, use_qk_l2norm_in_kernel)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: None = None,
    chunk_size: int | None = None,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> Read:
    """The delta rule on a memory that decays; g, beta (B, T, HV), A_log, dt_bias (HV)."""
    peer = "chunk_gated_delta_rule"
    _refuse_context(peer, cp_context)
    call = Reading(peer, scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    beta = rate(peer, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    g = log_decay(peer, g, use_gate_in_kernel, A_log, dt_bias)
    q, k = unit_length(use_qk_l2norm_in_kernel, q, k)
    return attend(call, cells.Delta, q, k, v, g=g, beta=beta)


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The same as ``chunk_gated_delta_rule``, with decays gk (B, T, HV, K) beside or for g."""
    peer = "fused_recurrent_gated_delta_rule"
    if gv is not None:
        raise ArgumentError(f"{peer}: gv is passed, expected None; no cell decays by value here")
    call = Reading(peer, scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    beta = torch.ones_like(v[..., 0]) if beta is None else beta
    beta = rate(peer, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if g is None and not use_gate_in_kernel:
        g = no_decay(v)
    g = log_decay(peer, g, use_gate_in_kernel, A_log, dt_bias)
    q, k = unit_length(use_qk_l2norm_in_kernel, q, k)
    if gk is None:
        return attend(call, cells.Delta, q, k, v, g=g, beta=beta)
    return attend(call, cells.DeltaByKey, q, k, v, g=widened(g)[..., None] + widened(gk), beta=beta)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: None = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    chunk_size: int | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> Read:
    """The delta rule with a decay by key; g (B, T, HV, K), beta (B, T, HV), A_log (HV)."""
    _refuse_context("chunk_kda", cp_context)
    if return_intermediate_states:
        raise ArgumentError("chunk_kda: return_intermediate_states is True, expected False")
    if safe_gate and use_gate_in_kernel and lower_bound is None:
        raise ArgumentError(
            "chunk_kda: safe_gate is True and lower_bound None with use_gate_in_kernel; pass a "
            "lower_bound, such as -5"
        )
    call = Reading("chunk_kda", scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    beta = rate(call.peer, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    g = log_decay(call.peer, g, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    q, k = unit_length(use_qk_l2norm_in_kernel, q, k)
    return attend(call, cells.DeltaByKey, q, k, v, g=g, beta=beta)


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Read:
    """The delta rule with a decay by key; g (B, T, HV, K), beta (B, T, HV), A_log (HV)."""
    peer = "fused_recurrent_kda"
    call = Reading(peer, scale, initial_state, output_final_state, cu_seqlens, state_v_first)
    beta = rate(peer, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    g = log_decay(peer, g, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    q, k = unit_length(use_qk_l2norm_in_kernel, q, k)
    return attend(call, cells.DeltaByKey, q, k, v, g=g, beta=beta)


def _correct(call: Reading, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, unit: bool) -> Read:
    """The delta rule without decay; beta by head, or by value."""
    q, k = unit_length(unit, q, k)
    if beta.dim() == v.dim():
        return attend(call, cells.DeltaByValue, q, k, v, beta=beta)
    return attend(call, cells.Delta, q, k, v, g=no_decay(v), beta=beta)


def _refuse_context(peer: str, cp_context: object) -> None:
    if cp_context is not None:
        raise ArgumentError(
            f"{peer}: cp_context is passed, expected None; a sequence is computed in one process"
        )
