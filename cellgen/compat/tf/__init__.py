"""TensorFlow's recurrent raw ops: GRUBlockCell, LSTMBlockCell, BlockLSTM, BlockLSTMV2, gradients.

Input and output: NumPy arrays with the names, order, layouts and defaults of ``tf.raw_ops`` (2.21),
results as named tuples. All arrays of a call are float32, float64 (TensorFlow has none) or float16
(LSTM; computed in float32 and rounded). N batch, I input, H hidden, T time.

    GRU:  w_ru (I + H, 2 H) rows [x ; h_prev], columns [r | u]; w_c (I + H, H); b_ru (2 H), b_c (H)
    LSTM: w (I + H, 4 H) rows [x ; h_prev], columns [i | ci | f | o], in V2 [i | f | ci | o];
          b (4 H) as the columns; wci, wcf, wco (H), ignored without ``use_peephole``;
          cell_clip <= 0 means no clipping

Where TensorFlow 2.21 is wrong or undefined, this is right:

* BlockLSTM leaves i, f, o, ci, co as uninitialised memory from step ``seq_len_max`` on, and ends
  the process when it exceeds T; here they are 0, and that is an error.
* ``tf.GradientTape`` differentiates BlockLSTMV2 with the kernel of the other column order, and has
  no gradient for GRUBlockCell and LSTMBlockCell at all; the functions here belong together.
* LSTMBlockCellGrad may zero wci, wcf and wco in place; nothing is written to an argument here.
* Float32 tanh is exactly 1 from about 8 on, which makes saturated gradients 0; not here.
* The published text of GRUBlockCell misprints its gradient in six places, that of LSTMBlockCell the
  order of the gates; these functions follow the kernels, which are right.

The LSTM gradients treat the clip of cs as the identity, as TensorFlow's do: on purpose, not the
derivative. ``clip_gradient="exact", cell_clip=...`` is the derivative of the forward function.
"""

from cellgen.compat.tf.results import (
    BlockLSTM,
    BlockLSTMGrad,
    GRUBlockCell,
    GRUBlockCellGrad,
    LSTMBlockCell,
    LSTMBlockCellGrad,
)
from cellgen.compat.tf.sequences import (
    block_lstm,
    block_lstm_grad,
    block_lstm_grad_v2,
    block_lstm_v2,
)
from cellgen.compat.tf.steps import (
    gru_block_cell,
    gru_block_cell_grad,
    lstm_block_cell,
    lstm_block_cell_grad,
)

__all__ = [
    "BlockLSTM",
    "BlockLSTMGrad",
    "GRUBlockCell",
    "GRUBlockCellGrad",
    "LSTMBlockCell",
    "LSTMBlockCellGrad",
    "block_lstm",
    "block_lstm_grad",
    "block_lstm_grad_v2",
    "block_lstm_v2",
    "gru_block_cell",
    "gru_block_cell_grad",
    "lstm_block_cell",
    "lstm_block_cell_grad",
]
