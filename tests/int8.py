"""Weights as int8 holds them: an independent rounding, by the panels of a cell's schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from sympy import Expr

from cellgen.language.cell import Cell
from cellgen.pipeline import sequence_of
from cellgen.runtime.abi import axis_length
from cellgen.runtime.kernel import Kernel
from cellgen.schedule.groups import Group, Weight

Arrays = dict[str, np.ndarray]


def every_size(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Dimensions of a forward pass; those that are not named are 3."""
    dims = kernel.functions["sequence_forward"].function.dims
    return {name: sizes.get(name, 3) for name in dims}


def drawn(kernel: Kernel, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Arguments of a forward pass in float32."""
    function, draw = kernel.functions["sequence_forward"].function, np.random.default_rng(seed)
    own = every_size(kernel, sizes)
    return {
        item.name: (
            draw.standard_normal([axis_length(axis, own) for axis in item.shape])
            * (own.get("H", 3) ** -0.5 if item.is_weight else 1)
        ).astype(np.float32)
        for item in function.arguments
        if not item.is_scalar
    }


def weights_of(kernel: Kernel) -> list[str]:
    function = kernel.functions["sequence_forward"].function
    return [a.name for a in function.arguments if a.is_weight]


def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``q`` and the scale of each column of a float32 matrix (K, columns)."""
    scale = (np.abs(matrix).max(0, initial=0) / np.float32(127)).astype(np.float32)
    quotients = matrix / np.where(scale > 0, scale, np.float32(1))
    return np.clip(np.rint(quotients), -127, 127) * (scale > 0), scale


def held(matrix: np.ndarray) -> np.ndarray:
    """What int8 holds of a matrix (K, columns), in float64."""
    q, scale = rounded(matrix)
    return q.astype(np.float64) * scale


def dequantised(cell: type[Cell], arrays: Arrays, sizes: Mapping[str, int]) -> Arrays:
    """Arguments in float64, those weights that panels hold as they hold them.

    Of work on weights alone, whose results panels hold, there are none here.
    """
    found = {name: array.astype(np.float64) for name, array in arrays.items()}

    def number(axis: Expr | int) -> int:
        dims = getattr(axis, "free_symbols", ())
        return int(axis.subs({d: sizes[str(d)] for d in dims})) if dims else int(axis)

    for weight in _weights(cell):
        view, name = weight.view, str(weight.view.buffer.value.name)
        array, whole = arrays[name], found[name]
        if weight.head:
            for head in range(len(array)):
                whole[head] = held(array[head])
            continue
        shape = tuple(map(number, view.buffer.shape))
        place = tuple(
            slice(number(a), number(a) + number(n))
            for a, n in zip(view.start, view.shape, strict=True)
        )
        part = array.reshape(shape)[place]
        whole.reshape(shape)[place] = held(part.T).T if weight.transposed else held(part)
    return found


def _weights(cell: type[Cell]) -> Iterator[Weight]:
    for stage in sequence_of(cell).forward.stages:
        if isinstance(stage, Group):
            for term in stage.terms:
                yield from term.weights
