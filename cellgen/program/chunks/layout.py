"""Lay arrays of steps as chunks have them, and back: steps before the last axis, heads in front.

Input: arrays (T, B, ...) in the shape of a value of a step. Output: (B, ..., T, K) in that of the
value over the steps of a chunk. Either way only axes move.
"""

from __future__ import annotations

import numpy as np

from cellgen.program.chunks.layers import Layer, Memory
from cellgen.program.closures import Array


class StreamLayout:
    """How the arrays of one layer lie."""

    def __init__(self, layer: Layer) -> None:
        self.rank = len(layer.states[0].shape)
        if isinstance(layer, Memory):
            self.last: tuple[int, ...] = tuple(
                axis for axis in (layer.value_axis, layer.key_axis) if axis is not None
            )
        else:
            self.last = (self.rank - 1,)
        self.is_memory = isinstance(layer, Memory)
        front = [n for n in range(self.rank) if n not in self.last]
        self._order = [n + 1 for n in front] + [0] + [n + 1 for n in self.last]
        self._state = front + list(self.last)

    def to_chunk(self, steps: Array) -> Array:
        """Lay the steps of a stream before the last axis."""
        moved = np.transpose(steps, self._order)
        front = moved.shape[: self.rank - len(self.last) + 1]
        return moved.reshape(*front, int(np.prod(moved.shape[len(front) :])))

    def to_steps(self, chunk: Array, shape: tuple[int, ...]) -> Array:
        """Lay what a chunk gives as steps of values of a shape, the rows first."""
        front = chunk.shape[:-1]
        moved = chunk.reshape(*front, *(shape[n] for n in self.last))
        return np.transpose(moved, np.argsort(self._order))

    def state_to_chunk(self, state: Array) -> Array:
        """Lay a state as a chunk starts from it: values by keys, or one row."""
        moved = np.transpose(state, self._state)
        if self.is_memory and len(self.last) == 2:
            return moved
        return moved[..., None, :]

    def state_from_chunk(self, first: Array) -> Array:
        """Lay what a chunk ends with as a state."""
        moved = first if self.is_memory and len(self.last) == 2 else first[..., 0, :]
        return np.transpose(moved, np.argsort(self._state))
