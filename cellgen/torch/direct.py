"""Calls without torch's dispatcher, where nothing would come of it.

The dispatcher finds what a call means under gradients, modes, transforms and on other devices, and
takes as long as a small kernel. Where torch has none of these at work and tensors are plain ones of
the CPU, ``direct.c`` runs the same kernel on the same memory. What it declines, operators do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cellgen.torch import native
from cellgen.torch.devices import CPU, PLACES

if TYPE_CHECKING:
    from cellgen.torch.functional import CellFunction

SAVES, REVERSE, OF_LAYER, DETACHED = 1, 2, 4, 8
"""Flags of a call: it keeps what a gradient reads; steps run in reverse; states have a first axis
of one layer, (1, B, ...); tensors that require gradients are taken, too, since nothing is
tracked."""


def is_quiet() -> bool:
    """Whether torch only runs what it is given: no mode, transform, trace or profile is at work."""
    own = torch._C
    return not (
        own._len_torch_dispatch_stack()
        or own._len_torch_function_stack()
        or own._is_any_autocast_enabled()
        or own._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or own._is_tracing()
        or own._autograd._profiler_enabled()
        or PLACES["cpu"] is not CPU
    )


@dataclass(frozen=True)
class Direct:
    """The forward pass of a call without options; ``flags`` of one that does not save, and one."""

    number: int
    flags: tuple[int, int]
    scalars: tuple[float, ...]

    def run(self, theta: Sequence[Tensor], *, save: bool) -> list[Tensor] | None:
        """Compute outputs, final states, and what is saved; None: run operators."""
        run = native.direct()
        return None if run is None else run(self.number, self.flags[save], theta, self.scalars)


def how(text: str, scalars: tuple[float, ...], *, reverse: bool) -> Direct | None:
    """Say how a cell is called, by the text that operators know it by; None where only they can."""
    number, flags = native.number_of(text), DETACHED | (REVERSE if reverse else 0)
    return Direct(number, (flags, flags | SAVES), scalars) if number else None


@dataclass(frozen=True)
class Stack:
    """Layers of a cell whose calls have no options, as names of what each call takes.

    ``places`` are, for each layer, its directions: names of parameters in the order of the cell's,
    behind the input and the states; ``rank`` is that of the input. ``finals`` are the places of
    final states among the results. A copy, or what is unpickled, is None: ``number``, by which C
    knows the cell, holds in this process alone.
    """

    number: int
    states: int
    rank: int
    scalars: tuple[float, ...]
    places: tuple[tuple[tuple[str, ...], ...], ...]
    finals: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def run(
        self, x: Any, states: Any, parameters: Mapping[str, Any], batch_first: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Compute the last layer's first output and all final states; None: run operators.

        ``states`` are (layers x directions, B, ...), or none, where cells say how they start.
        """
        if type(x) is not Tensor or x.dim() != self.rank or len(states) not in (0, self.states):
            return None
        is_tracked = torch.is_grad_enabled()
        if is_tracked and self._learns(parameters):
            return None
        if not is_quiet():
            return None
        flags = OF_LAYER if is_tracked else OF_LAYER | DETACHED
        x = x.transpose(0, 1) if batch_first else x
        if len(self.places) == 1 == len(self.places[0]):
            found = self._one(x, states, parameters, flags)
        else:
            found = self._several(x, states, parameters, flags)
        if batch_first and found is not None:
            return found[0].transpose(0, 1), found[1]
        return found

    def _learns(self, parameters: Mapping[str, Any]) -> bool:
        """Whether the first parameter requires a gradient: then no more need be looked at."""
        first = parameters.get(self.places[0][0][0])
        return first is None or bool(first.requires_grad)

    def _one(
        self, x: Tensor, states: Any, parameters: Mapping[str, Any], flags: int
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Run one layer in one direction."""
        given = [x, *(states or (None,) * self.states), *map(parameters.get, self.places[0][0])]
        call = native.direct()
        found = None if call is None else call(self.number, flags, given, self.scalars)
        return None if found is None else (found[0], tuple([found[k] for k in self.finals]))

    def _several(
        self, x: Tensor, states: Any, parameters: Mapping[str, Any], flags: int
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Run layers one after the other, directions side by side."""
        call, place = native.direct(), 0
        count = len(self.places) * len(self.places[0])
        if call is None or any(
            type(state) is not Tensor or len(state) != count for state in states
        ):
            return None
        lasts: list[list[Tensor]] = []
        for layer in self.places:
            sides = []
            for reverse, names in enumerate(layer):
                own = [state[place : place + 1] for state in states] or [None] * self.states
                given = [x, *own, *map(parameters.get, names)]
                found = call(self.number, flags | REVERSE * reverse, given, self.scalars)
                if found is None:
                    return None
                sides.append(found[0])
                lasts.append([found[k] for k in self.finals])
                place += 1
            x = sides[0] if len(sides) == 1 else torch.cat(sides, -1)
        return x, tuple(torch.cat(each) for each in zip(*lasts, strict=True))


def stack_of(
    cell: CellFunction, scalars: tuple[float, ...], suffixes: Sequence[Sequence[str]]
) -> Stack | None:
    """Return layers of a cell whose parameters' names end so; None where operators run them.

    That is where a cell reads more than one input and its states.
    """
    states, outputs = len(cell.states), [item.name for item in cell.layout.outputs]
    number = native.number_of(cell.known.text)
    roles = [item.role for item in cell.layout.theta]
    alike = roles[: 1 + states] == ["input", *["state"] * states]
    if not (number and native.direct() and alike) or {"input", "static"} & {*roles[1:]}:
        return None
    places = tuple(
        tuple(tuple(name + end for name in cell.names[1 + states :]) for end in layer)
        for layer in suffixes
    )
    finals = tuple(outputs.index(name) for name in cell.finals)
    return Stack(number, states, len(cell.layout.theta[0].shape), scalars, places, finals)
