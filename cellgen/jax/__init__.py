"""Cells as functions of JAX: ``cellgen.jax.function(GRU)(params, x)``.

Pure functions, known to ``jit``, ``grad`` and every other transform, to any order. Needs JAX:
``pip install cellgen-compiler[jax]``.
"""

from __future__ import annotations

import contextlib

from cellgen.errors import BuildError, CellgenError

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":  # it is there and lacks something: its own words say what
        raise
    raise ImportError(
        "cellgen.jax needs JAX, which is not installed; pip install 'cellgen-compiler[jax]'"
    ) from None

from cellgen.jax.functional import CellFunction, function
from cellgen.jax.handler import register
from cellgen.jax.platforms import TARGET

with contextlib.suppress(BuildError):  # `function` raises it again
    register()  # so that a program of another process finds its target

__all__ = ["TARGET", "CellFunction", "CellgenError", "function"]
