"""How a library lays out one layer's weights: arrays, each a grid of a cell's weights.

A block of a grid is a weight of the cell: ``w_<gate>`` (I, H) of the input, ``u_<gate>`` (H, H) of
the previous state, ``b_<gate>`` (H,) the bias, ``c_<gate>`` (H,) a second one, beside the recurrent
product, ``p_<gate>`` (H,) a peephole. Blocks of a row stand side by side in the last axis, rows one
under the other. Gates go by the cell's names: i f g o of an LSTM, z r n of a GRU; a minus before a
block says that the library means its negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

Grid: TypeAlias = tuple[tuple[str, ...], ...]
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Step: TypeAlias = "Callable[[dict[str, Array], Array, tuple[Array, ...]], tuple[Array, ...]]"
"""A library's step, of its arrays in float64: inputs (B, I), then states (B, H), to states."""


@dataclass(frozen=True)
class PackedWeight:
    """One array of a library: a grid of blocks, transposed or not, behind axes of length 1.

    ``entry``: which entry of the leading axis is this layer's; what is written has one entry.
    ``column_major``: each block has its shape, but its numbers, row by row, are the weight's
    column by column.
    """

    name: str
    grid: Grid
    transposed: bool = False
    leading: bool = False
    entry: int = 0
    column_major: bool = False

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks of all rows, without signs."""
        return tuple(block.lstrip("-") for row in self.grid for block in row)


@dataclass(frozen=True)
class Dialect:
    """A library's layout of one layer's weights.

    ``function`` names the equations, ``cell`` is the shipped cell that computes them, ``arrays``
    are the library's. ``forget_bias`` is added by the library to the bias of the forget gate when
    it runs. ``others``: how arrays of other layers of the same model begin. ``heads``: blocks are
    cut by heads (``cellgen.weights.heads``). ``step``: the library's equations, by which a
    conversion is proved; those of the table's own rows stand in ``cellgen.weights.semantics``.
    """

    name: str
    function: str
    arrays: tuple[PackedWeight, ...]
    forget_bias: float = 0.0
    others: tuple[str, ...] = ()
    heads: bool = False
    step: Step | None = None

    @property
    def alone(self) -> Dialect:
        """The dialect of arrays that hold this layer and no other direction."""
        return replace(self, arrays=tuple(replace(array, entry=0) for array in self.arrays))

    @property
    def blocks(self) -> frozenset[str]:
        """Every block that the library has an entry for."""
        return frozenset(block for array in self.arrays for block in array.blocks)


CELLS: Mapping[str, str] = {
    "lstm": "lstm",
    "gru": "gru",
    "gru_reset_before": "gru_reset_before",
    "rnn_tanh": "elman",
    "rnn_relu": "elman_relu",
    "slstm": "slstm_heads",
}
"""The shipped cell of each function; an LSTM with peepholes is ``lstm_peephole``."""
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "lstm": ("_i", "_f", "_g", "_o"),
    "gru": ("_z", "_r", "_n"),
    "gru_reset_before": ("_z", "_r", "_n"),
    "rnn_tanh": ("",),
    "rnn_relu": ("",),
    "slstm": ("_i", "_f", "_z", "_o"),
}
"""Gates of each function, as they end the names of blocks."""


def blocks_of(function: str) -> frozenset[str]:
    """Every block that a layout of a function can have."""
    kinds = "wrbc" if function == "slstm" else "wubc"
    blocks = {f"{kind}{gate}" for kind in kinds for gate in SUFFIXES[function]}
    return frozenset(blocks | ({"p_i", "p_f", "p_o"} if function == "lstm" else set()))


def side_by_side(kind: str, gates: str) -> Grid:
    """One row of blocks: ``side_by_side("w", "ifgo")``; one block without a gate for ``""``."""
    return (tuple(f"{kind}_{gate}" for gate in gates) or (kind,),)
