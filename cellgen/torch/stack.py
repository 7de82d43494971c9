"""Run layers of a cell, one after the other, each in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cellgen.torch.functional import CellFunction


@dataclass(frozen=True)
class StackPlace:
    """One layer in one direction, and what it is given by name beside its input and states."""

    reverse: bool
    given: Callable[[Tensor], Mapping[str, Any]]


def run_layers(
    cell: CellFunction,
    layers: Sequence[Sequence[StackPlace]],
    x: Tensor,
    states: Sequence[Tensor],
    *,
    rate: float,
    options: Mapping[str, Any],
) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the last layer's outputs, directions side by side, and every final state.

    ``states`` are (layers x directions, B, ...), none where they are to be made; ``rate`` is the
    probability of dropout between layers.
    """
    input_, names = cell.names[0], cell.states
    lasts: list[list[Tensor]] = [[] for _ in names]
    sides: list[Any] = []
    number = 0
    for layer in layers:
        if sides:
            x = torch.cat([_flat(side[0]) for side in sides], -1)
            x = torch.nn.functional.dropout(x, rate) if rate else x
        sides = []
        for place in layer:
            own = {name: state[number] for name, state in zip(names, states, strict=False)}
            made = cell(**{input_: x, **own, **place.given(x)}, **options, reverse=place.reverse)
            sides.append(made)
            for kept, name in zip(lasts, cell.finals, strict=True):
                kept.append(getattr(made, name))
            number += 1
    return _joined(cell, sides), tuple(
        torch.stack(each) if len(each) > 1 else each[0].unsqueeze(0) for each in lasts
    )


def _flat(output: Tensor) -> Tensor:
    """Put the heads of an output over time side by side."""
    return output.flatten(2) if output.dim() > 3 else output


def _joined(cell: CellFunction, sides: Sequence[Any]) -> Any:
    """Put the directions side by side, heads flattened."""
    return cell.over_time(
        *(
            torch.cat([_flat(side[place]) for side in sides], -1)
            if len(sides) > 1
            else _flat(sides[0][place])
            for place in range(cell.over_time_count)
        )
    )
