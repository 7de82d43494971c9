"""The body of a ``Scan`` as a cell with its weights, as ``scan_reader`` reads it.

Input: arguments of the node. Output: arguments of the cell; and from its results those of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.onnx.forms import short
from cellgen.onnx.graph import Array


@dataclass(frozen=True)
class Port:
    """A state, a sequence or an output: its name in the cell, and the node's axis of steps.

    ``flat`` tells that it has no axis of units in the model, ``single`` that it has none of rows. A
    sequence that the body does not read has no name.
    """

    name: str
    axis: int = 0
    flat: bool = False
    single: bool = False

    def widened(self, array: Array, steps: int) -> Array:
        """An array as the cell has it; so many axes stand before that of rows."""
        array = array[..., None] if self.flat else array
        return np.expand_dims(array, steps) if self.single else array

    def narrowed(self, array: Array, steps: int) -> Array:
        """An array as the node has it."""
        array = np.take(array, 0, steps) if self.single else array
        return array[..., 0] if self.flat else array


@dataclass(frozen=True)
class Body:
    """A body as a cell: ``states`` and ``inputs`` in the node's order, ``outputs`` too.

    ``statics`` are names in the cell by those in the graph around. ``starts`` are initial states
    that stand in the model, as the cell has them, one with one row for every row; ``from_inputs``
    names the values of the graph that are initial states and depend on the model's inputs.
    """

    label: str
    lines: tuple[str, ...]
    weights: Mapping[str, Array]
    reverse: bool
    dtype: str
    states: tuple[Port, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    statics: Mapping[str, str]
    starts: Mapping[str, Array]
    from_inputs: Mapping[str, str]

    def arguments(self, inputs: Sequence[object], around: Mapping[str, object]) -> dict[str, Array]:
        """Name the node's inputs as the cell does, steps first. Raises UsageError."""
        expected = len(self.states) + len(self.inputs)
        if len(inputs) != expected:
            raise UsageError(
                f"{self.label}: {len(inputs)} inputs, expected {expected}: {len(self.states)} "
                f"initial states, then {len(self.inputs)} sequences"
            )
        arguments: dict[str, Array] = {}
        for operand, port in zip(inputs[len(self.states) :], self.inputs, strict=True):
            if not port.name:
                continue
            array = self._array(port.name, operand)
            if not -array.ndim <= port.axis < array.ndim:
                raise UsageError(
                    f"{self.label}: {port.name} has shape {array.shape}, expected an axis "
                    f"{port.axis} of steps"
                )
            arguments[port.name] = port.widened(np.moveaxis(array, port.axis, 0), 1)
        rows = next((array.shape[1] for array in arguments.values() if array.ndim > 1), 1)
        for operand, port in zip(inputs, self.states, strict=False):
            name = f"{port.name}_prev"
            if operand is None:
                arguments[name] = self._start(name, rows)
            else:
                arguments[name] = port.widened(self._array(port.name, operand), 0)
        for name, own in self.statics.items():
            if name not in around:
                raise UsageError(
                    f"{self.label}: reads {short(name)!r} of the graph around it, which depends on "
                    f"the model's inputs; pass around={{{short(name)!r}: ...}}"
                )
            arguments[own] = self._array(name, around[name])
        return arguments

    def _array(self, name: str, value: object) -> Array:
        return np.asarray(accept.array(self.label, name, value), self.dtype)

    def _start(self, name: str, rows: int) -> Array:
        """An initial state that stands in the model. Raises UsageError where it does not."""
        if name in self.from_inputs:
            raise UsageError(
                f"{self.label}: {name} starts at {short(self.from_inputs[name])!r}, which depends "
                f"on the model's inputs; pass it"
            )
        start = self.starts[name].astype(self.dtype)
        return np.repeat(start, rows, 0) if len(start) == 1 else start

    def results(self, values: Mapping[str, Array]) -> tuple[Array, ...]:
        """Final states, then outputs, as the node gives them."""
        every = [port.narrowed(values[f"{port.name}_last"], 0) for port in self.states]
        for port in self.outputs:
            every.append(np.moveaxis(port.narrowed(values[port.name], 1), 0, port.axis))
        return tuple(every)
