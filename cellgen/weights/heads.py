"""xlstm's sLSTM: gates cut by heads, the input's matrices block by block.

Beck et al. 2024 (arXiv:2405.04517). In the layer of the package xlstm, ``fgate`` is the matrix of
the input gate and ``igate`` that of the forget gate; the dialect keeps those names. Each is (K, D,
D), a block a head, where the cell has the whole (I, K, D): a cell's weights go back only if all
entries between heads are zero. The layer's convolution and its norm are no part of the cell.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.weights.grids import Array, Arrays, Blocks
from cellgen.weights.layouts import Dialect

GATES = "ifzo"
INPUTS = {"i": "fgate.weight", "f": "igate.weight", "z": "zgate.weight", "o": "ogate.weight"}
KERNEL, BIAS = "slstm_cell._recurrent_kernel_", "slstm_cell._bias_"


def read_heads(dialect: Dialect, arrays: Mapping[str, Array]) -> Blocks:
    """Cut the arrays of a layer into w (I, K, D), r (K, D, D) and b (K, D) of each gate."""
    if dialect.name.startswith("cellgen."):
        return dict(arrays)
    kernel, bias = arrays[KERNEL], arrays[BIAS]
    first = arrays[INPUTS["i"]]
    if first.ndim != 3:
        raise ArgumentError(
            f"{dialect.name}: {INPUTS['i']} has shape {first.shape}, expected (K, D, D)"
        )
    heads, units, inputs = first.shape
    gate_rows = _is_vanilla(dialect)
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(INPUTS.values(), (heads, units, inputs))
    wanted[KERNEL] = (heads, 4 * units, units) if gate_rows else (heads, units, 4 * units)
    wanted[BIAS] = (4 * heads * units,)
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise ArgumentError(
                f"{dialect.name}: {name} has shape {arrays[name].shape}, expected {shape} for "
                f"K = {heads} heads of D = {units} units"
            )
    if gate_rows:
        recurrent = kernel.reshape(heads, 4, units, units).transpose(1, 0, 3, 2)
        biases = bias.reshape(4, heads, units)
    else:
        recurrent = kernel.reshape(heads, units, 4, units).transpose(2, 0, 1, 3)
        biases = bias.reshape(heads, 4, units).transpose(1, 0, 2)
    blocks = Blocks()
    for at, gate in enumerate(GATES):
        full = np.zeros((heads, inputs, heads, units), first.dtype)
        for head in range(heads):
            full[head, :, head] = arrays[INPUTS[gate]][head].T
        blocks[f"w_{gate}"] = full.reshape(heads * inputs, heads, units)
        blocks[f"r_{gate}"], blocks[f"b_{gate}"] = recurrent[at], biases[at]
    return blocks


def write_heads(dialect: Dialect, blocks: Mapping[str, Array]) -> Arrays:
    """Join w, r and b of each gate as the layer holds them. Raises ArgumentError."""
    if dialect.name.startswith("cellgen."):
        return {array.name: np.ascontiguousarray(blocks[array.name]) for array in dialect.arrays}
    heads, units = blocks["w_i"].shape[1:]
    written = Arrays()
    for gate, name in INPUTS.items():
        written[name] = _one_head_each(dialect, f"w_{gate}", blocks[f"w_{gate}"])
    recurrent = np.stack([blocks[f"r_{gate}"] for gate in GATES])
    biases = np.stack([blocks[f"b_{gate}"] for gate in GATES])
    if _is_vanilla(dialect):
        kernel, bias = recurrent.transpose(1, 0, 3, 2), biases
        kernel = kernel.reshape(heads, 4 * units, units)
    else:
        kernel, bias = recurrent.transpose(1, 2, 0, 3), biases.transpose(1, 0, 2)
        kernel = kernel.reshape(heads, units, 4 * units)
    written[KERNEL] = np.ascontiguousarray(kernel)
    written[BIAS] = np.ascontiguousarray(bias).reshape(-1)
    return written


def _one_head_each(dialect: Dialect, block: str, full: Array) -> Array:
    """Take the blocks (K, D, D) on the diagonal; the others must be zero. Raises ArgumentError."""
    inputs, heads, units = full.shape
    if inputs % heads:
        raise ArgumentError(
            f"{dialect.name}: {block} reads I = {inputs} inputs, which {heads} heads do not share "
            f"evenly; the layer has I / K inputs a head"
        )
    cut = full.reshape(heads, inputs // heads, heads, units).copy()
    own = np.stack([cut[head, :, head].T.copy() for head in range(heads)])
    for head in range(heads):
        cut[head, :, head] = 0
    between = np.argwhere(cut.reshape(full.shape))
    if len(between):
        first = ", ".join(str(int(at)) for at in between[0])
        raise ArgumentError(
            f"{dialect.name}: {len(between)} entries of {block} lead from one head's inputs to "
            f"another head, the first at [{first}]; the layer has no place for them"
        )
    return own


def _is_vanilla(dialect: Dialect) -> bool:
    """Whether gates are rows of the kernel, as the package keeps them without CUDA."""
    return next(array for array in dialect.arrays if array.name == KERNEL).transposed
