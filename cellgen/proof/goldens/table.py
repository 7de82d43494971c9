"""Which files of which peers each cell is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellgen.proof.goldens.case import Run
from cellgen.proof.goldens.of_jax import run_jax, run_jax_over_time
from cellgen.proof.goldens.of_pytorch import run_torch
from cellgen.proof.goldens.of_tensorflow import run_tf_gru, run_tf_lstm


@dataclass(frozen=True)
class PeerCases:
    """Which files a cell is compared with, and how a file's case is run with its kernel.

    ``attributes`` are those a file must have; ``exact`` chooses the masked derivative of the clip
    (``true64``) over TensorFlow's.
    """

    files: str
    run: Run
    attributes: tuple[tuple[str, object], ...] = ()
    exact: bool = False


def _tf_lstm(peephole: bool, exact: bool) -> PeerCases:
    return PeerCases("tf/lstm_block_cell_*", run_tf_lstm, (("use_peephole", peephole),), exact)


PEERS: Mapping[str, tuple[PeerCases, ...]] = {
    "elman": (PeerCases("torch/rnncell_tanh_*", run_torch("")),),
    "elman_relu": (PeerCases("torch/rnncell_relu_*", run_torch("")),),
    "gru": (
        PeerCases("torch/grucell_*", run_torch("rzn")),
        PeerCases("cells/gru_reset_after_*", run_jax),
    ),
    "gru_block_cell": (PeerCases("tf/gru_block_cell_*", run_tf_gru),),
    "gru_reset_before": (PeerCases("cells/gru_reset_before_*", run_jax),),
    "lstm": (
        PeerCases("torch/lstmcell_*", run_torch("ifgo")),
        PeerCases("cells/lstm_a_*", run_jax),
    ),
    "lstm_peephole": (PeerCases("cells/lstm_peephole_*", run_jax),),
    "lstm_block_cell": (_tf_lstm(True, False),),
    "lstm_block_cell_no_peephole": (_tf_lstm(False, False),),
    "lstm_block_cell_exact_clip": (_tf_lstm(True, True),),
    "lstm_block_cell_no_peephole_exact_clip": (_tf_lstm(False, True),),
    "cifg": (PeerCases("cells/cifg_*", run_jax),),
    "layer_norm_lstm": (PeerCases("cells/lnlstm_*", run_jax),),
    "slstm": (PeerCases("cells/slstm_sigf_heads1_*", run_jax),),
    "slstm_exp": (PeerCases("cells/slstm_expf_heads1_*", run_jax),),
    "slstm_heads": (PeerCases("cells/slstm_sigf_heads2_*", run_jax),),
    "slstm_exp_heads": (PeerCases("cells/slstm_expf_heads2_*", run_jax),),
    "mgu": (PeerCases("cells/mgu_*", run_jax),),
    "janet": (PeerCases("cells/janet_*", run_jax),),
    "li_gru": (PeerCases("cells/ligru_*", run_jax),),
    "ind_rnn": (PeerCases("cells/indrnn_tanh_*", run_jax),),
    "ind_rnn_relu": (PeerCases("cells/indrnn_relu_*", run_jax),),
    "sru": (PeerCases("cells/sru_highway_*", run_jax),),
    "sru_projection": (PeerCases("cells/sru_proj_*", run_jax),),
    "min_gru": (PeerCases("cells/mingru_a_*", run_jax),),
    "min_gru_log": (PeerCases("cells/mingru_g_a_*", run_jax),),
    "min_lstm": (PeerCases("cells/minlstm_*", run_jax),),
    "recurrent_highway_3": (PeerCases("cells/rhn_L3_coupled_*", run_jax),),
    "recurrent_highway_2_full": (PeerCases("cells/rhn_L2_full_*", run_jax),),
    "cfc": (PeerCases("cells/cfc_*", run_jax),),
    "lru": (PeerCases("cells/lru_*", run_jax),),
    "ltc": (PeerCases("cells/ltc_*", run_jax),),
}
"""The files that each shipped cell is compared with."""

OVER_TIME: Mapping[Run, Run] = {run_jax: run_jax_over_time}
"""How the cases of a run are run by the functions over time."""
