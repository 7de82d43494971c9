"""Calls of so many steps and rows: where their inputs go, and where their output lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeAlias

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES
from cellgen.runtime.results import Array
from cellgen.runtime.streams.part import StreamedLayer

Inputs: TypeAlias = Array | Mapping[str, Array]
"""The cell's input, or several inputs by name."""


class StreamFrame:
    """Views of a stream's memory, and dimensions as C takes them, made once; see ``Stream``."""

    def __init__(
        self, layers: Sequence[StreamedLayer], steps: int, rows: int, *, step: bool
    ) -> None:
        self._inputs = [(a.name, a.view(steps, rows, step=step)) for a in layers[0].inputs]
        self.output = layers[-1].output.view(steps, rows, step=step)
        self._layers = [(layer, layer.sizes(steps, rows)) for layer in layers]
        self.rows = rows
        for layer, sizes in self._layers:
            layer.fit(sizes)

    def call(self, label: str, way: int) -> None:
        """Compute every layer, from one copy of the states to another. Raises CellgenError."""
        for layer, sizes in self._layers:
            code = layer.call(sizes, layer.structs[way])
            if code:
                raise CellgenError(
                    f"{label}: the compiled function returned {code}: "
                    f"{ERROR_CODES.get(code, 'an unknown error code')}; the arguments passed every "
                    f"check, so report it",
                    code="kernel",
                )

    def read(self, label: str, x: Inputs) -> None:
        """Copy inputs into the stream's memory. Raises ArgumentError for what does not fit."""
        if isinstance(x, np.ndarray) or not isinstance(x, Mapping):
            if len(self._inputs) != 1:
                self._refuse_names(label, {self._inputs[0][0]: x})
            name, view = self._inputs[0]
            _check(label, name, view, x)
            view[...] = x
            return
        if x.keys() != {name for name, _ in self._inputs}:
            self._refuse_names(label, x)
        for name, view in self._inputs:
            _check(label, name, view, x[name])
        for name, view in self._inputs:
            view[...] = x[name]

    def _refuse_names(self, label: str, x: Mapping[str, object]) -> NoReturn:
        raise ArgumentError(
            f"{label}: x has {', '.join(map(str, x)) or 'nothing'}, expected the inputs "
            f"{', '.join(name for name, _ in self._inputs)}; pass a dict of one array for each"
        )


class StreamFrames:
    """The frames of so many rows: of one step, of some rows' step, of the steps of a block."""

    def __init__(self, layers: Sequence[StreamedLayer], block: int, rows: int) -> None:
        self._layers, self._block, self._rows = layers, block, rows
        self.one = StreamFrame(layers, 1, rows, step=True)
        self._some: dict[int, StreamFrame] = {}
        self._by_steps = {block: StreamFrame(layers, block, rows, step=False)}

    def of_some(self, rows: int) -> StreamFrame:
        """The frame of one step of fewer rows."""
        frame = self._some.get(rows)
        if frame is None:
            frame = self._some[rows] = StreamFrame(self._layers, 1, rows, step=True)
        return frame

    def of_steps(self, label: str, x: Inputs) -> StreamFrame:
        """The frame of as many steps as an input has, of a block where it is no array.

        Raises ArgumentError for too many steps.
        """
        first = next(array for array in self._layers[0].inputs if array.over_time)
        array = x.get(first.name) if isinstance(x, Mapping) else x
        steps = len(array) if isinstance(array, np.ndarray) and array.ndim else self._block
        frame = self._by_steps.get(steps)
        if frame is not None:
            return frame
        if not 1 <= steps <= self._block:
            shape = ", ".join(map(str, ("T", self._rows, *first.units)))
            raise ArgumentError(
                f"{label}: {first.name} has {steps} steps, expected ({shape}) with T from 1 to "
                f"{self._block}; cut it, or make the stream with a larger block"
            )
        self._by_steps[steps] = StreamFrame(self._layers, steps, self._rows, step=False)
        return self._by_steps[steps]


def _check(label: str, name: str, view: Array, array: object) -> None:
    if (
        isinstance(array, np.ndarray)
        and array.shape == view.shape
        and array.dtype == view.dtype
        and (type(array) is np.ndarray or not isinstance(array, np.ma.MaskedArray))
    ):
        return
    accept.refuse_masked(label, name, array)
    fix = "a row for each id, in their order"
    if isinstance(array, np.ndarray) and array.shape == view.shape:
        fix = f"which its weights are of; pass {name}.astype(np.{view.dtype})"
    raise ArgumentError(
        f"{label}: {name} is {accept.quoted(array)}, expected a numpy.ndarray {view.shape} of "
        f"{view.dtype}, {fix}"
    )
