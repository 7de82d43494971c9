"""Which files of which peers each cell is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellgen.proof.goldens.case import Run
from cellgen.proof.goldens.of_jax import run_jax, run_jax_over_time
from cellgen.proof.goldens.of_pytorch import run_torch
from cellgen.proof.goldens.of_tensorflow import run_tf_gru, run_tf_lstm


@dataclass(frozen=True)
class Peer:
    """Which files a cell is compared with, and how a file's case is run with its kernel.

    ``attributes`` are those a file must have; ``exact`` chooses the masked derivative of the clip
    (``true64``) over TensorFlow's.
    """

    files: str
    run: Run
    attributes: tuple[tuple[str, object], ...] = ()
    exact: bool = False


def _tf_lstm(peephole: bool, exact: bool) -> Peer:
    return Peer("tf/lstm_block_cell_*", run_tf_lstm, (("use_peephole", peephole),), exact)


PEERS: Mapping[str, tuple[Peer, ...]] = {
    "elman": (Peer("torch/rnncell_tanh_*", run_torch("")),),
    "elman_relu": (Peer("torch/rnncell_relu_*", run_torch("")),),
    "gru": (Peer("torch/grucell_*", run_torch("rzn")), Peer("cells/gru_reset_after_*", run_jax)),
    "gru_block_cell": (Peer("tf/gru_block_cell_*", run_tf_gru),),
    "gru_reset_before": (Peer("cells/gru_reset_before_*", run_jax),),
    "lstm": (Peer("torch/lstmcell_*", run_torch("ifgo")), Peer("cells/lstm_a_*", run_jax)),
    "lstm_peephole": (Peer("cells/lstm_peephole_*", run_jax),),
    "lstm_block_cell": (_tf_lstm(True, False),),
    "lstm_block_cell_no_peephole": (_tf_lstm(False, False),),
    "lstm_block_cell_exact_clip": (_tf_lstm(True, True),),
    "lstm_block_cell_no_peephole_exact_clip": (_tf_lstm(False, True),),
    "cifg": (Peer("cells/cifg_*", run_jax),),
    "layer_norm_lstm": (Peer("cells/lnlstm_*", run_jax),),
    "slstm": (Peer("cells/slstm_sigf_heads1_*", run_jax),),
    "slstm_exp": (Peer("cells/slstm_expf_heads1_*", run_jax),),
    "slstm_heads": (Peer("cells/slstm_sigf_heads2_*", run_jax),),
    "slstm_exp_heads": (Peer("cells/slstm_expf_heads2_*", run_jax),),
    "mgu": (Peer("cells/mgu_*", run_jax),),
    "janet": (Peer("cells/janet_*", run_jax),),
    "li_gru": (Peer("cells/ligru_*", run_jax),),
    "ind_rnn": (Peer("cells/indrnn_tanh_*", run_jax),),
    "ind_rnn_relu": (Peer("cells/indrnn_relu_*", run_jax),),
    "sru": (Peer("cells/sru_highway_*", run_jax),),
    "sru_projection": (Peer("cells/sru_proj_*", run_jax),),
    "min_gru": (Peer("cells/mingru_a_*", run_jax),),
    "min_gru_log": (Peer("cells/mingru_g_a_*", run_jax),),
    "min_lstm": (Peer("cells/minlstm_*", run_jax),),
    "recurrent_highway_3": (Peer("cells/rhn_L3_coupled_*", run_jax),),
    "recurrent_highway_2_full": (Peer("cells/rhn_L2_full_*", run_jax),),
    "cfc": (Peer("cells/cfc_*", run_jax),),
    "lru": (Peer("cells/lru_*", run_jax),),
    "ltc": (Peer("cells/ltc_*", run_jax),),
}
"""The files that each shipped cell is compared with."""

OVER_TIME: Mapping[Run, Run] = {run_jax: run_jax_over_time}
"""How the cases of a run are run by the functions over time."""
