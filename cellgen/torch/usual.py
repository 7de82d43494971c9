"""Usual calls of layers: a batch, no options, parameters where the layer keeps them.

Input: a layer's input, states and parameters by name. Output: its first output and final states;
None for calls that are not usual, which go the long way. Nothing is looked at here that C looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cellgen.errors import ArgumentError
from cellgen.torch import native
from cellgen.torch.derivatives import Call, backward, run_back
from cellgen.torch.direct import DETACHED, OF_LAYER, are_plain, is_quiet
from cellgen.torch.errors import DeclinedError
from cellgen.torch.functional import CellFunction
from cellgen.torch.kept import apart
from cellgen.torch.tracked import NO_TABLES, TrackedCall, run_tracked

Made: TypeAlias = "tuple[Tensor, tuple[Tensor, ...]]"
"""The first output, and final states, (layers x directions, B, ...)."""
TRACKED = -1
"""In the place of flags: gradients are wanted."""
REFUSALS = DeclinedError, RuntimeError, TypeError, AttributeError, ArgumentError
"""What a call that is not usual ends with."""


@dataclass(frozen=True)
class LayerDirection:
    """One direction of a layer.

    ``call`` is what it runs, ``tracked`` the same as autograd tracks it; ``first`` is the name of
    its first parameter, ``parameters`` takes all of them, in the order of the cell's, from those of
    a module; ``finals`` are the places of final states among the results.
    """

    call: Call
    tracked: TrackedLayer
    first: str
    parameters: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    finals: tuple[int, ...]

    def run(
        self, x: Tensor, states: tuple[Any, ...], parameters: Mapping[str, Any], flags: int
    ) -> Made | None:
        """Run it; None where C does not, or a module has not all parameters."""
        results: Sequence[Tensor] | None = None
        try:
            own = self.parameters(parameters)
        except KeyError:
            return None
        if flags == TRACKED:
            results = run_tracked(self.tracked, x, *states, *own)
        elif self.call.direct is not None:
            results = self.call.direct.run([x, *states, *own], save=False, flags=flags)
        return None if results is None else (results[0], tuple([results[k] for k in self.finals]))


@dataclass(frozen=True)
class Stack:
    """Layers of a cell, with the directions of each.

    ``start`` stands for the states of one that are left out; ``only`` is the direction of a stack
    that has no other. A copy, or what is unpickled, is None: by what number C knows the cell, which
    a call keeps, holds in this process alone.
    """

    layers: tuple[tuple[LayerDirection, ...], ...]
    start: tuple[None, ...]
    only: LayerDirection | None
    rank: int

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def run(
        self, x: Any, states: Any, parameters: Mapping[str, Any], batch_first: bool
    ) -> tuple[Tensor, Any] | None:
        """Compute the last layer's first output and its final states, a tuple of several.

        None for calls that are not usual. ``states`` are (layers x directions, B, ...), or None,
        where cells say how they start.
        """
        if type(x) is not Tensor or x.dim() != self.rank or not x.is_cpu or not is_quiet():
            return None
        if states is None:
            states = self.start
        elif type(states) is not tuple or len(states) != len(self.start) or not are_plain(states):
            return None
        flags = OF_LAYER | DETACHED
        if torch.is_grad_enabled():
            first = parameters.get(self.layers[0][0].first)
            flags = TRACKED if first is None or first.requires_grad else OF_LAYER
            if flags == TRACKED and not x.numel():
                return None
        x = x.transpose(0, 1) if batch_first else x
        try:
            if self.only is not None:
                results = self.only.run(x, states, parameters, flags)
            else:
                results = self._run_layers(x, states, parameters, flags)
        except REFUSALS:
            return None  # the long way has words for it
        if results is None:
            return None
        output, last = results
        if batch_first:
            output = output.transpose(0, 1)
        return output, last if len(last) > 1 else last[0]

    def _run_layers(
        self, x: Tensor, states: Any, parameters: Mapping[str, Any], flags: int
    ) -> Made | None:
        """Run layers one after the other, directions side by side."""
        place, count = 0, len(self.layers) * len(self.layers[0])
        if any(state is not None and len(state) != count for state in states):
            return None
        lasts: list[tuple[Tensor, ...]] = []
        for layer in self.layers:
            sides = []
            for direction in layer:
                own = tuple(
                    state if state is None else state[place : place + 1] for state in states
                )
                results = direction.run(x, own, parameters, flags)
                if results is None:
                    return None
                sides.append(results[0])
                lasts.append(results[1])
                place += 1
            x = sides[0] if len(sides) == 1 else torch.cat(sides, -1)
        return x, tuple(torch.cat(each) for each in zip(*lasts, strict=True))


class TrackedLayer(TrackedCall):
    """One direction of a layer; ``states`` are how many, ``finals`` as in ``Stack``."""

    def __init__(self, call: Call, states: int, finals: tuple[int, ...]) -> None:
        layout = call.known.layout
        results = [item.name for item in layout.outputs]
        read = {item.name for item in layout.backward.arguments}
        reads = [place for place, name in enumerate(results) if name in read]
        super().__init__(call, OF_LAYER, results, reads)
        self.states, self.finals = states, finals

    def gradients(
        self, needed: tuple[bool, ...], saved: Sequence[Any], upstream: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Return gradients of theta by operators, which may be differentiated again."""
        call = self.call.wanting(needed)
        each = [
            u[0] if place in self.finals and u is not None else u
            for place, u in enumerate(upstream)
        ]
        theta = self._with_states([*saved[: self.count]])
        kept = self._apart(theta, saved[self.count :])
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            spread = call.spread(backward(call, NO_TABLES, theta, kept, each))
        else:
            spread = call.spread(run_back(call, NO_TABLES, theta, kept, each))
        for place in range(1, 1 + self.states):
            gradient = spread[place]
            spread[place] = None if gradient is None else gradient.unsqueeze(0)
        return spread

    def _apart(self, theta: Sequence[Tensor], kept: Sequence[Tensor]) -> list[Tensor]:
        """What a layer keeps as the operators have it; results that nothing reads are zeros.

        Raises TensorError where a hook of saved tensors gave something else back.
        """
        layout = self.call.known.layout
        saved = {item.name for item in layout.saved}
        items = [item for item in layout.forward.results if item.name in saved]
        kept_by_name = apart(layout, items, theta, kept[-1])
        sizes = layout.sizes(theta)
        for place, item in enumerate(layout.outputs):
            if place in self.reads:
                result = kept[self.reads.index(place)]
                kept_by_name[item.name] = result[0] if place in self.finals else result
            else:
                kept_by_name[item.name] = theta[0].new_zeros(layout.shape(item.name, sizes))
        return [kept_by_name[item.name] for item in (*layout.outputs, *layout.saved)]

    def _with_states(self, arguments: list[Any]) -> list[Any]:
        """What an operator takes: states (B, ...), made where they are left out."""
        layout, end = self.call.known.layout, 1 + self.states
        if arguments[1] is not None:
            return [arguments[0], *(state[0] for state in arguments[1:end]), *arguments[end:]]
        sizes = layout.sizes(arguments)
        for place in range(1, end):
            item = layout.theta[place]
            arguments[place] = arguments[0].new_full(layout.shape(item.name, sizes), item.initial)
        return arguments


def _taking(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return what takes the items of these names from a mapping."""
    if len(names) > 1:
        return itemgetter(*names)  # in C, but of one name no tuple
    return lambda items: tuple([items[name] for name in names])


def stack_of(
    cell: CellFunction, calls: tuple[Call, Call], suffixes: Sequence[Sequence[str]]
) -> Stack | None:
    """Return layers of a cell whose parameters' names end so; None where no call is usual.

    That is where a cell reads more than one input and its states.
    """
    states, outputs = len(cell.states), [item.name for item in cell.layout.outputs]
    roles = [item.role for item in cell.layout.theta]
    alike = roles[: 1 + states] == ["input", *["state"] * states]
    if not (calls[0].direct and native.direct() and alike) or {"input", "static"} & {*roles[1:]}:
        return None
    finals = tuple(outputs.index(name) for name in cell.finals)
    tracked = [TrackedLayer(call, states, finals) for call in calls]

    def layer(reverse: int, suffix: str) -> LayerDirection:
        names = [name + suffix for name in cell.names[1 + states :]]
        first = names[0] if names else ""
        return LayerDirection(calls[reverse], tracked[reverse], first, _taking(names), finals)

    layers = tuple(tuple(layer(*each) for each in enumerate(ends)) for ends in suffixes)
    only = layers[0][0] if len(layers) == 1 == len(layers[0]) else None
    return Stack(layers, (None,) * states, only, len(cell.layout.theta[0].shape))
