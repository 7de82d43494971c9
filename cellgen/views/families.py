"""The cells that ship, by family, without their declarations.

Input: the generated folders. Output: for each family the names of its cells and what each is. What
is imported here imports no SymPy, so that a list is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellgen.runtime.paths import generated_folder, shipped_names

FAMILIES: Mapping[str, str] = {
    "simple": "elman elman_relu ind_rnn ind_rnn_relu antisymmetric_rnn",
    "gated units": "gru gru_block_cell gru_reset_before layer_norm_gru mgu li_gru ugrnn ran brc "
    "augru gru_d fast_grnn recurrent_highway_3 recurrent_highway_2_full para_gru",
    "LSTM": "lstm lstm_peephole lstm_block_cell lstm_block_cell_no_peephole "
    "lstm_block_cell_exact_clip lstm_block_cell_no_peephole_exact_clip cifg janet lstm_projection "
    "layer_norm_lstm multiplicative_lstm phased_lstm on_lstm nested_lstm para_lstm",
    "xLSTM": "slstm slstm_exp slstm_heads slstm_exp_heads mlstm mlstm_sigmoid",
    "scans": "sru sru_projection qrnn min_gru min_gru_log min_lstm lru s5 rg_lru hawk mamba rwkv4",
    "matrix memories": "mamba2 mamba3 retnet gla hgrn2 delta_net gated_delta_net "
    "gated_delta_net_2 kda delta_product comba ttt_linear titans rwkv6 rwkv7 m2rnn",
    "continuous time": "cfc ltc co_rnn lem lmu",
    "spiking": "lif alif izhikevich",
}
"""Every cell that ships, in one family."""


def by_family() -> dict[str, dict[str, str]]:
    """What each cell is, by family and name, of the cells whose generated sources are there.

    One of no family stands under "others".
    """
    names = {*shipped_names()}
    listed = {family: line.split() for family, line in FAMILIES.items()}
    others = sorted(names - {name for own in listed.values() for name in own})
    listed |= {"others": others} if others else {}
    return {
        family: {name: _title(name) for name in own if name in names}
        for family, own in listed.items()
    }


def _title(name: str) -> str:
    """The first line of what a generated package says of itself, which is its first line."""
    place = generated_folder() / name / "__init__.py"
    with place.open(encoding="utf-8") as file:
        return file.readline().strip().strip('"').rstrip(".")
