"""Cells as layers of PyTorch: ``cellgen.torch.module(GRU, 28, 128)``, ``cellgen.torch.LSTM``.

``function`` gives any cell as a function of tensors, ``module`` as a layer with parameters. Both
are differentiable to any order, and known to ``torch.compile``, ``torch.export`` and
``torch.func``. ``GRU``, ``LSTM``, ``RNN`` and their cells stand in for ``torch.nn``'s; ``replace``
puts them into a model, ``restore`` is the way back. Needs torch:
``pip install cellgen-compiler[torch]``.
"""

from __future__ import annotations

from cellgen.errors import CellgenError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":  # it is there and lacks something: its own words say what
        raise
    raise ImportError(
        "cellgen.torch needs PyTorch, which is not installed; pip install 'cellgen-compiler[torch]'"
    ) from None

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
