"""Every cell that ships, of the modules that declare them."""

from cellgen.cells.antisymmetric_rnn import AntisymmetricRNN
from cellgen.cells.augru import AUGRU
from cellgen.cells.brc import BRC
from cellgen.cells.cfc import CfC
from cellgen.cells.co_rnn import CoRNN
from cellgen.cells.delta_net import (
    Comba,
    DeltaNet,
    DeltaProduct,
    GatedDeltaNet,
    GatedDeltaNet2,
    KimiDeltaAttention,
)
from cellgen.cells.elman import Elman, ElmanRelu
from cellgen.cells.fast_grnn import FastGRNN
from cellgen.cells.gru import GRU
from cellgen.cells.gru_block_cell import GRUBlockCell
from cellgen.cells.gru_d import GRUD
from cellgen.cells.gru_reset_before import GRUResetBefore
from cellgen.cells.ind_rnn import IndRNN, IndRNNRelu
from cellgen.cells.janet import JANET
from cellgen.cells.layer_norm import LayerNormGRU, LayerNormLSTM
from cellgen.cells.lem import LEM
from cellgen.cells.li_gru import LiGRU
from cellgen.cells.lif import LIF
from cellgen.cells.linear_attention import HGRN2, GatedLinearAttention, RetNet
from cellgen.cells.lmu import LMU
from cellgen.cells.lru import LRU
from cellgen.cells.lstm import CIFG, LSTM, LSTMPeephole
from cellgen.cells.lstm_block_cell import (
    LSTMBlockCell,
    LSTMBlockCellExactClip,
    LSTMBlockCellNoPeephole,
    LSTMBlockCellNoPeepholeExactClip,
)
from cellgen.cells.lstm_projection import LSTMProjection
from cellgen.cells.ltc import LTC
from cellgen.cells.m2rnn import M2RNN
from cellgen.cells.mamba import Mamba, Mamba2, Mamba3
from cellgen.cells.mgu import MGU
from cellgen.cells.minimal import MinGRU, MinGRULog, MinLSTM
from cellgen.cells.mlstm import MLSTM, MLSTMSigmoid
from cellgen.cells.multiplicative_lstm import MultiplicativeLSTM
from cellgen.cells.nested_lstm import NestedLSTM
from cellgen.cells.on_lstm import ONLSTM
from cellgen.cells.para_rnn import ParaGRU, ParaLSTM
from cellgen.cells.phased_lstm import PhasedLSTM
from cellgen.cells.qrnn import QRNN
from cellgen.cells.ran import RAN
from cellgen.cells.recurrent_highway import RecurrentHighway2Full, RecurrentHighway3
from cellgen.cells.rg_lru import RGLRU, Hawk
from cellgen.cells.rwkv import RWKV4, RWKV6, RWKV7
from cellgen.cells.s5 import S5
from cellgen.cells.slstm import SLSTM, SLSTMExp, SLSTMExpHeads, SLSTMHeads
from cellgen.cells.spiking import ALIF, Izhikevich
from cellgen.cells.sru import SRU, SRUProjection
from cellgen.cells.ttt import Titans, TTTLinear
from cellgen.cells.ugrnn import UGRNN

SHIPPED = (
    Elman,
    ElmanRelu,
    GRU,
    GRUBlockCell,
    GRUResetBefore,
    LSTM,
    LSTMPeephole,
    LSTMBlockCell,
    LSTMBlockCellNoPeephole,
    LSTMBlockCellExactClip,
    LSTMBlockCellNoPeepholeExactClip,
    CIFG,
    LSTMProjection,
    LayerNormLSTM,
    LayerNormGRU,
    MultiplicativeLSTM,
    SLSTM,
    SLSTMExp,
    SLSTMHeads,
    SLSTMExpHeads,
    AUGRU,
    MGU,
    JANET,
    LiGRU,
    UGRNN,
    RAN,
    BRC,
    IndRNN,
    IndRNNRelu,
    SRU,
    SRUProjection,
    QRNN,
    MinGRU,
    MinGRULog,
    MinLSTM,
    RecurrentHighway3,
    RecurrentHighway2Full,
    CfC,
    LTC,
    CoRNN,
    LEM,
    FastGRNN,
    AntisymmetricRNN,
    LRU,
    LIF,
    MLSTM,
    DeltaNet,
    GatedDeltaNet,
    TTTLinear,
    GatedLinearAttention,
    RetNet,
    Mamba,
    Mamba2,
    RWKV4,
    RWKV6,
    RWKV7,
    RGLRU,
    S5,
    GRUD,
    PhasedLSTM,
    ONLSTM,
    LMU,
    NestedLSTM,
    ALIF,
    Izhikevich,
    ParaGRU,
    ParaLSTM,
    KimiDeltaAttention,
    GatedDeltaNet2,
    DeltaProduct,
    HGRN2,
    MLSTMSigmoid,
    Titans,
    Hawk,
    Comba,
    Mamba3,
    M2RNN,
)
"""Every cell that ``cellgen build`` builds when none is named."""

__all__ = [
    "ALIF",
    "AUGRU",
    "BRC",
    "CIFG",
    "GRU",
    "GRUD",
    "HGRN2",
    "JANET",
    "LEM",
    "LIF",
    "LMU",
    "LRU",
    "LSTM",
    "LTC",
    "M2RNN",
    "MGU",
    "MLSTM",
    "ONLSTM",
    "QRNN",
    "RAN",
    "RGLRU",
    "RWKV4",
    "RWKV6",
    "RWKV7",
    "S5",
    "SHIPPED",
    "SLSTM",
    "SRU",
    "UGRNN",
    "AntisymmetricRNN",
    "CfC",
    "CoRNN",
    "Comba",
    "DeltaNet",
    "DeltaProduct",
    "Elman",
    "ElmanRelu",
    "FastGRNN",
    "GRUBlockCell",
    "GRUResetBefore",
    "GatedDeltaNet",
    "GatedDeltaNet2",
    "GatedLinearAttention",
    "Hawk",
    "IndRNN",
    "IndRNNRelu",
    "Izhikevich",
    "KimiDeltaAttention",
    "LSTMBlockCell",
    "LSTMBlockCellExactClip",
    "LSTMBlockCellNoPeephole",
    "LSTMBlockCellNoPeepholeExactClip",
    "LSTMPeephole",
    "LSTMProjection",
    "LayerNormGRU",
    "LayerNormLSTM",
    "LiGRU",
    "MLSTMSigmoid",
    "Mamba",
    "Mamba2",
    "Mamba3",
    "MinGRU",
    "MinGRULog",
    "MinLSTM",
    "MultiplicativeLSTM",
    "NestedLSTM",
    "ParaGRU",
    "ParaLSTM",
    "PhasedLSTM",
    "RecurrentHighway2Full",
    "RecurrentHighway3",
    "RetNet",
    "SLSTMExp",
    "SLSTMExpHeads",
    "SLSTMHeads",
    "SRUProjection",
    "TTTLinear",
    "Titans",
]
