"""PyTorch's recurrent functions: ``torch.gru``, ``torch.lstm``, ``torch.rnn_tanh``, ``rnn_relu``.

Input and output: NumPy arrays in PyTorch's layouts (2.13): input (T, N, I), or (N, T, I) with
``batch_first``; hx (L D, N, H), for the LSTM a pair of them; output (T, N, D H). L layers, D
directions. ``params`` is the flat list that ``nn.GRU._flat_weights`` holds: for each layer and
direction weight_ih (G H, I), weight_hh (G H, H), with biases bias_ih (G H) and bias_hh (G H), and
for an LSTM with ``proj_size`` P weight_hr (P, H); weight_hh is then (G H, P), output (T, N, D P).

    GRU : rows [r | z | n];  n = tanh(W_in x + b_in + r (W_hn h + b_hn));  h' = (1 - z) n + z h
    LSTM: rows [i | f | g | o];  c' = f c + i g;  h' = o tanh(c'), with proj_size times weight_hr

There are no tensors here, so each function has a twin, such as ``gru_vjp``, that also returns
``backward``. Instead of a packed sequence, ``lengths`` (N) says how many steps of each row count,
as ``pack_padded_sequence(..., enforce_sorted=False)`` and ``pad_packed_sequence`` around a layer
do: output is 0 beyond a length, final states are those of each row's last step, and the reverse
direction begins there. The cells have one bias where PyTorch adds two, but for the GRU's n: both
get the gradient of their sum.
"""

from cellgen.compat.torch.functions import (
    gru,
    gru_vjp,
    lstm,
    lstm_vjp,
    rnn_relu,
    rnn_relu_vjp,
    rnn_tanh,
    rnn_tanh_vjp,
)

__all__ = [
    "gru",
    "gru_vjp",
    "lstm",
    "lstm_vjp",
    "rnn_relu",
    "rnn_relu_vjp",
    "rnn_tanh",
    "rnn_tanh_vjp",
]
