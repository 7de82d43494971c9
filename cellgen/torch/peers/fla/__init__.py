"""Linear attention and delta rules by the names of ``fla.ops`` (flash-linear-attention 0.6).

Every function takes q, k (B, T, H, K), v (B, T, HV, V) with HV a multiple of H, and logarithms of
decays, and returns ``(o, final_state)``: o (B, T, HV, V) in the type of v, the state
(B, HV, K, V) in float32 (float64 where a tensor is), None unless ``output_final_state``. With
``cu_seqlens`` (N + 1) the sequences lie one after another in a batch of one, and states are
(N, HV, K, V). ``scale`` is 1 / sqrt(K) where None. ``chunk_*`` and ``fused_recurrent_*`` of one
rule run the same kernel, step by step: what only says how a GPU is to compute it (``chunk_size``,
``cu_seqlens_cpu``, ``chunk_indices``, ``safe_gate``, ``disable_recompute``,
``use_graph``, ``max_num_seqs``, ``lower_bound`` of ``chunk_rwkv7``) changes nothing.
All raise TensorError, KindError, ArgumentError.
"""

from cellgen.torch.peers.fla.delta_rules import (
    chunk_delta_rule,
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_delta_rule,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from cellgen.torch.peers.fla.gla import (
    chunk_gla,
    chunk_retention,
    chunk_simple_gla,
    fused_chunk_retention,
    fused_chunk_simple_gla,
    fused_recurrent_gla,
    fused_recurrent_retention,
    fused_recurrent_simple_gla,
)
from cellgen.torch.peers.fla.rwkv import (
    chunk_rwkv6,
    chunk_rwkv7,
    fused_mul_recurrent_rwkv7,
    fused_recurrent_rwkv6,
    fused_recurrent_rwkv7,
)

chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule

__all__ = [
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_gla",
    "chunk_kda",
    "chunk_retention",
    "chunk_rwkv6",
    "chunk_rwkv7",
    "chunk_simple_gla",
    "fused_chunk_retention",
    "fused_chunk_simple_gla",
    "fused_mul_recurrent_rwkv7",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "fused_recurrent_gla",
    "fused_recurrent_kda",
    "fused_recurrent_retention",
    "fused_recurrent_rwkv6",
    "fused_recurrent_rwkv7",
    "fused_recurrent_simple_gla",
]
