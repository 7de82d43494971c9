"""The cells that ship: declarations and nothing else."""

from cellgen.cells.elman import Elman, ElmanRelu
from cellgen.cells.gru import GRU
from cellgen.cells.gru_block_cell import GRUBlockCell
from cellgen.cells.gru_reset_before import GRUResetBefore
from cellgen.cells.lstm import LSTM, LSTMPeephole
from cellgen.cells.lstm_block_cell import (
    LSTMBlockCell,
    LSTMBlockCellExactClip,
    LSTMBlockCellNoPeephole,
    LSTMBlockCellNoPeepholeExactClip,
)

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
)
"""Every cell that ``cellgen build`` builds when none is named."""

__all__ = ["SHIPPED", *(cell.__name__ for cell in SHIPPED)]
