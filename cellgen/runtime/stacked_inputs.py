"""What a stack of layers is given, for each layer and direction: checked, and put together.

Input: weights, states, inputs and what all share, by name. Output: the arguments of one call of the
cell's ``sequence_forward``, or an ArgumentError that names the layer and what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from cellgen import accept
from cellgen.accept import a_type
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import infer_dims, lengths, suggestion
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.call.items import Item
from cellgen.runtime.call.views import view_of
from cellgen.runtime.names import state_of
from cellgen.runtime.results import Array

Arrays: TypeAlias = dict[str, Array]
Named: TypeAlias = Mapping[str, Array | float]
"""Arrays, and run-time scalars, by the names that the cell gives them."""
Nested: TypeAlias = Sequence[Sequence[Named]]
"""What is given by name, for each layer and each of its directions."""


class StackedInputs:
    """What the layers of one cell take; ``reads`` is the input that the layer below gives.

    ``learned`` names the arguments that have a gradient. Raises ArgumentError for weights that are
    missing, unknown or no arrays, and for other than 1 or 2 directions.
    """

    def __init__(
        self,
        label: str,
        function: Function,
        weights: object,
        reads: Argument,
        learned: frozenset[str],
    ) -> None:
        self.items = {item.name: item for item in function.arguments}
        self.states = tuple(function.states.values())
        self._input, self._learned = reads, learned
        self.directions = self._check_weights(label, weights)

    def nested(self, label: str, name: str, values: Nested | None) -> Nested:
        """What is given for each layer and direction: nothing where it was left out."""
        shape = self.directions
        if values is None:
            return [[{} for _ in range(count)] for count in shape]
        nested = _by_layer(label, name, values)
        if [len(layer) for layer in nested] != shape:
            raise ArgumentError(
                f"{label}: {name} is nested as {[len(layer) for layer in nested]}, expected "
                f"{shape}, the directions of each layer; pass {name}[layer][direction]"
            )
        return nested

    def first(self, label: str, states: Nested | None) -> Nested:
        """Initial states by their names, ``h_prev``, where some have those of final states, ``h``.

        Raises ArgumentError where a state is given twice.
        """
        nested = self.nested(label, "states", states)
        for layer in nested:
            for own in layer:
                for name in self.states:
                    if name in own and state_of(name) in own:
                        raise ArgumentError(
                            f"{label}: states has {name} and {state_of(name)}, expected one of "
                            f"them, which are one state; leave one out"
                        )
        return [
            [{state_of(n) if n in self.states else n: a for n, a in own.items()} for own in layer]
            for layer in nested
        ]

    def _check_weights(self, label: str, weights: object) -> list[int]:
        """Count the directions of each layer; refuse what is no stack of every weight."""
        nested = _by_layer(label, "weights", weights)
        if not nested:
            raise ArgumentError(f"{label}: weights has no layer, expected at least one")
        for index, layer in enumerate(nested):
            if len(layer) not in (1, 2) or len(layer) != len(nested[0]):
                raise ArgumentError(
                    f"{label}: layer {index} has {len(layer)} directions, expected as many as "
                    f"layer 0 and 1 or 2; pass weights[layer][direction]"
                )
            for direction, own in enumerate(layer):
                place = f"{label}, layer {index}"
                self._check_own(f"{place}, direction {direction}" if layer[1:] else place, own)
        return [len(layer) for layer in nested]

    def _check_own(self, label: str, own: Mapping[str, object]) -> None:
        """Check names and kinds of one direction's weights.

        Those without gradient, such as the masks of dropped weights, may be given to each call
        instead.
        """
        for name, value in own.items():
            item = self.items.get(name)
            if item is None:
                raise ArgumentError(
                    f"{label}: unknown {name!r} in weights; {suggestion(name, list(self.items))}"
                )
            if not (item.is_weight or item.is_scalar):
                raise ArgumentError(
                    f"{label}: {name} is in weights, expected weights, biases and scalars alone; "
                    f"give {name} {shape_text(item)} to forward(...)"
                )
            accept.refuse_masked(label, name, value)
            if item.is_weight and not isinstance(value, np.ndarray):
                raise ArgumentError(
                    f"{label}: {name} is {accept.quoted(value)}, expected a numpy.ndarray "
                    f"{shape_text(item)}; pass np.asarray({name}, np.float32)"
                )
        for name, item in self.items.items():
            needed = item.is_weight and item.used and name in self._learned
            if needed and name not in own:
                raise ArgumentError(
                    f"{label}: weights has no {name}, expected an array {shape_text(item)}"
                )

    def merged(self, label: str, parts: Mapping[str, Named]) -> dict[str, Array | float]:
        """Everything that one call is given but its x and initial states that were left out."""
        merged: dict[str, Array | float] = {}
        origins = {self._input.name: "x"}
        for source, values in parts.items():
            for name, value in values.items():
                if name in origins:
                    raise ArgumentError(
                        f"{label}: {name} is given in {source} and as {origins[name]}, expected "
                        f"once; leave one out"
                    )
                if name not in self.items:
                    raise ArgumentError(
                        f"{label}: unknown {name!r} in {source}; "
                        f"{suggestion(name, list(self.items))}"
                    )
                merged[name], origins[name] = value, source
        for name, item in self.items.items():
            left_out = item.used and not item.is_scalar and item.role != "state"
            if left_out and name not in origins:
                varies = bool({"T", "B"} & set(item.shape))
                places = "shared, or in inputs[layer][direction]" if varies else "weights"
                raise ArgumentError(
                    f"{label}: {name} is missing, expected an array {shape_text(item)} in {places}"
                )
        return merged

    def with_heads(self, label: str, x: Array, arguments: Named) -> Array:
        """Give x the axes that the cell's input has: one of heads is split into heads and units."""
        item = self._input
        if not isinstance(x, np.ndarray):
            raise ArgumentError(
                f"{label}: {item.name} is {a_type(x)}, expected a numpy.ndarray {shape_text(item)}"
            )
        if x.ndim == 3 < len(item.shape):
            units = lengths(item, {"T": 0, "B": 0, **self.dims(label, arguments, {})})[2:]
            if math.prod(units) == x.shape[2]:
                return x.reshape(*x.shape[:2], *units)
        return x

    def dims(self, label: str, arguments: Named, options: Mapping[str, object]) -> dict[str, int]:
        """The dimensions that the arrays of one call tell. Raises ArgumentError."""
        items = []
        for name, array in arguments.items():
            item = self.items[name]
            if item.is_scalar or not isinstance(array, np.ndarray):
                continue
            if array.ndim != len(item.shape):
                raise ArgumentError(
                    f"{label}: {name} has {array.ndim} axes, shape {array.shape}, expected "
                    f"{len(item.shape)}: {shape_text(item)}; reshape it"
                )
            transposed = item.over_time and options.get("batch_first")
            view = view_of(array)
            items.append(Item(item, view.swapped() if transposed else view, name))
        return infer_dims(label, items)[0]

    def first_states(
        self, arguments: Named, dims: Mapping[str, int], dtype: np.dtype[np.floating]
    ) -> Arrays:
        """Initial states that were left out: where they are declared to start."""
        names = [state_of(name) for name in self.states]
        missing = [self.items[name] for name in names if name not in arguments]
        return {item.name: np.full(lengths(item, dims), item.initial, dtype) for item in missing}


def _by_layer(label: str, name: str, value: object) -> list[list[dict[str, Array | float]]]:
    """What is given by name, for each layer and direction. Raises ArgumentError.

    The values are looked at where they are used.
    """
    nested: list[list[dict[str, Array | float]]] = []
    place = f"{name}[layer][direction]"
    for index, layer in enumerate(accept.items(label, name, value, f"a list: {place}")):
        if isinstance(layer, Mapping):
            raise ArgumentError(
                f"{label}: {name} has a dict for a layer: layer {index} is a dict, expected a list "
                f"of one for each direction, such as [{{...}}]; pass {place}"
            )
        each = accept.items(
            label, f"{name}[{index}]", layer, "a dict for each direction, in a list"
        )
        labelled = ((f"{name}[{index}][{direction}]", own) for direction, own in enumerate(each))
        nested.append(
            [accept.names(label, each_label, own, "arrays") for each_label, own in labelled]  # type: ignore[misc]
        )
    return nested
