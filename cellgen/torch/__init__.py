"""Cells as layers of PyTorch: ``cellgen.torch.module(GRU, 28, 128)``, ``cellgen.torch.LSTM``.

``function`` gives any cell as a function of tensors, ``module`` as a layer with parameters. Both
are differentiable to any order, and known to ``torch.compile``, ``torch.export`` and
``torch.func``. ``GRU``, ``LSTM``, ``RNN`` and their cells stand in for ``torch.nn``'s; ``replace``
puts them into a model, ``restore`` is the way back. Needs torch:
``pip install cellgen-compiler[torch]``.
"""

from __future__ import annotations

from cellgen.errors import CellgenError
from cellgen.runtime.imports import needed

with needed(
    "torch",
    "cellgen.torch needs PyTorch, which is not installed; pip install 'cellgen-compiler[torch]'",
):
    import torch as _torch  # noqa: F401

from cellgen.torch.functional import CellFunction, function
from cellgen.torch.layers import CellLayers, module
from cellgen.torch.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from cellgen.torch.replacing import Replaced, replace, restore

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "CellFunction",
    "CellLayers",
    "CellgenError",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "Replaced",
    "function",
    "module",
    "replace",
    "restore",
]
