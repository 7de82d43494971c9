"""Cells as layers of PyTorch: ``cellgen.torch.module(GRU, 28, 128)``.

``function`` gives any cell as a function of tensors, ``module`` as a layer with parameters. Both
are differentiable to any order, and known to ``torch.compile``, ``torch.export`` and
``torch.func``. Needs torch: ``pip install cellgen[torch]``.
"""

from __future__ import annotations

from cellgen.errors import CellgenError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "cellgen.torch needs PyTorch, which is not installed; pip install 'cellgen[torch]'"
    ) from error

from cellgen.torch.functional import CellFunction, function
from cellgen.torch.layers import CellLayers, module

__all__ = ["CellFunction", "CellLayers", "CellgenError", "function", "module"]
