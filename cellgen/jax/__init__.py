"""Cells as functions of JAX: ``cellgen.jax.function(GRU)(params, x)``.

Pure functions, known to ``jit``, ``grad`` and every other transform, to any order. Needs JAX:
``pip install cellgen-compiler[jax]``.
"""

from __future__ import annotations

import contextlib

from cellgen.errors import BuildError, CellgenError
from cellgen.runtime.imports import needed

with needed(
    "jax",
    "cellgen.jax needs JAX, which is not installed; pip install 'cellgen-compiler[jax]'",
):
    import jax as _jax  # noqa: F401

from cellgen.jax.functional import CellFunction, function
from cellgen.jax.handler import register
from cellgen.jax.platforms import TARGET

with contextlib.suppress(BuildError):  # `function` raises it again
    register()  # so that a program of another process finds its target

__all__ = ["TARGET", "CellFunction", "CellgenError", "function"]
