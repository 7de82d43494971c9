"""Arrays of a call, drawn by the shapes that an interface states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from cellgen.runtime.abi import Function, axis_length

Arrays = dict[str, np.ndarray]


def draw_arrays(
    function: Function,
    sizes: Mapping[str, int],
    seed: int | np.random.Generator = 0,
    *,
    scale: float = 0.5,
    dtype: DTypeLike = np.float64,
    optional: bool = False,
) -> Arrays:
    """Draw the arrays of a call by name: those that it must have, or those that it may.

    Scalars keep their defaults; what a forward pass saves is no array of its caller's.
    """
    rng = np.random.default_rng(seed)
    return {
        item.name: (
            scale * rng.standard_normal([axis_length(axis, sizes) for axis in item.shape])
        ).astype(dtype)
        for item in function.arguments
        if item.optional == optional
        and (item.used or optional)
        and not (item.is_scalar or item.saved)
    }
