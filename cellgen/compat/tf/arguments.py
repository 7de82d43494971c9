"""Arguments and layouts that the ops share: arrays, kernels, the clip, the order of gates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from cellgen import accept
from cellgen.api import load
from cellgen.compat.tf.results import Array
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel, Results

Arrays: TypeAlias = dict[str, Array]

PEEPHOLES = ("wci", "wcf", "wco")

LSTM_ARGUMENTS = ("x", "cs_prev", "h_prev", "w", *PEEPHOLES, "b")

LSTM_MEMBERS: Mapping[tuple[bool, str], str] = {
    (True, "straight_through"): "lstm_block_cell",
    (False, "straight_through"): "lstm_block_cell_no_peephole",
    (True, "exact"): "lstm_block_cell_exact_clip",
    (False, "exact"): "lstm_block_cell_no_peephole_exact_clip",
}
"""The shipped cell by (use_peephole, clip_gradient)."""


@cache
def kernel_of(name: str) -> Kernel:
    """Load a kernel once."""
    return load(name)


def lstm_kernel(use_peephole: bool, clip_gradient: str) -> Kernel:
    """The kernel of an LSTM with or without peepholes, by the derivative of its clip."""
    return kernel_of(LSTM_MEMBERS[use_peephole, clip_gradient])


def named_arrays(label: str, **arguments: ArrayLike) -> tuple[Arrays, np.dtype[Any]]:
    """Make arrays contiguous, float16 ones float32; also tell the dtype of the first.

    The kernels tell what is wrong with other dtypes and with shapes.
    """
    arrays = {
        name: np.asarray(accept.array(label, name, array), order="C")
        for name, array in arguments.items()
    }
    dtype = next(iter(arrays.values())).dtype
    if dtype == np.float16 and all(array.dtype == dtype for array in arrays.values()):
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return arrays, dtype


def lstm_arrays(
    label: str, use_peephole: bool, arrays: tuple[ArrayLike, ...]
) -> tuple[Arrays, np.dtype[Any]]:
    """Name the arguments of an LSTM; without peepholes their weights are left out."""
    arguments = dict(zip(LSTM_ARGUMENTS, arrays, strict=True))
    if not accept.flag(label, "use_peephole", use_peephole):
        for name in PEEPHOLES:
            accept.array(label, name, arguments.pop(name))
    return named_arrays(label, **arguments)


def rounded(arrays: Results | tuple[Array, ...], dtype: np.dtype[Any]) -> list[Array]:
    """Give results the dtype of the arguments."""
    return [array.astype(dtype, copy=False) for array in arrays]


def peephole_gradients(gradients: Results, wci: ArrayLike) -> list[Array]:
    """The three gradients of the peepholes, zeros where the cell has none."""
    zeros = np.zeros(np.shape(wci), gradients[0].dtype)
    return [getattr(gradients, f"d_{name}", zeros) for name in PEEPHOLES]


def checked_clip(label: str, clip_gradient: str, cell_clip: float | None) -> float:
    """Check the choice of the clip's derivative; without a bound there is none (-1)."""
    if not isinstance(clip_gradient, str) or clip_gradient not in ("straight_through", "exact"):
        raise ArgumentError(
            f"{label}: clip_gradient is {accept.quoted(clip_gradient)}, expected "
            f"'straight_through' (TensorFlow's) or 'exact'"
        )
    if clip_gradient == "exact" and cell_clip is None:
        raise ArgumentError(
            f"{label}: clip_gradient='exact' needs the cell_clip of the forward call; pass it"
        )
    return -1.0 if cell_clip is None else accept.real(label, "cell_clip", cell_clip)
