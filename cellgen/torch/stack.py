"""Run layers of a cell, one after the other, each in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout

from cellgen.frameworks.selection import asks_for_last
from cellgen.runtime.options import ALL_LAYERS, ROWS
from cellgen.torch.at_once import are_at_once, run_at_once
from cellgen.torch.functional import CellFunction

NOTHING: Mapping[str, Any] = {}


class StackPlace(NamedTuple):
    """One layer in one direction, and what it is given by name beside its input and states."""

    reverse: bool
    arguments_of: Callable[[Tensor], Mapping[str, Any]]


def dropped_rows_first(x: Tensor, rate: float) -> Tensor:
    """Dropout of an array (B, T, ...) that draws as it does for (T, B, ...), as torch.nn has it."""
    return dropout(x.transpose(0, 1).contiguous(), rate).transpose(0, 1)


def run_layers(
    cell: CellFunction,
    layers: Sequence[Sequence[StackPlace]],
    x: Tensor,
    states: Sequence[Tensor],
    *,
    rate: float,
    drop: Callable[[Tensor, float], Tensor] = dropout,
    options: Mapping[str, Any],
    selection: Mapping[str, Any] = NOTHING,
) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the last layer's outputs, directions side by side, and every final state.

    ``states`` are (layers x directions, B, ...), none where they are to be made; ``rate`` is the
    probability of dropout between layers, which ``drop`` draws; ``selection`` says which outputs
    of the last layer are wanted, and what all layers keep.
    """
    input_, names = cell.names[0], cell.states
    lasts: list[list[Tensor]] = [[] for _ in names]
    sides: list[Any] = []
    number = 0
    for layer in layers:
        if sides:
            x = torch.cat([_flat(side[0]) for side in sides], -1)
            x = drop(x, rate) if rate else x
        calls = []
        how = selection if not selection or layer is layers[-1] else _within(cell, selection)
        for place in layer:
            arguments = {input_: x, **place.arguments_of(x)}
            for name, state in zip(names, states, strict=False):
                arguments[name] = state[number]
            calls.append(partial(cell, **arguments, **options, **how, reverse=place.reverse))
            number += 1
        if len(calls) > 1 and are_at_once(cell, x, {**options, **how}):
            sides = run_at_once(x.device, calls)
        else:
            sides = []
            for call in calls:
                sides.append(call())
        for results in sides:
            for kept, name in zip(lasts, cell.finals, strict=True):
                kept.append(getattr(results, name))
    return _joined(cell, sides, 1 if asks_for_last(selection) else 2), tuple(
        torch.stack(each) if len(each) > 1 else each[0].unsqueeze(0) for each in lasts
    )


def _within(cell: CellFunction, selection: Mapping[str, Any]) -> dict[str, Any]:
    """What a layer shows that another one reads: its first output, of all steps."""
    rows = (ROWS[name] for name in selection)
    kept = {row.name: selection[row.name] for row in rows if row.layers == ALL_LAYERS}
    return {**kept, "outputs": (cell.over_time_names[0],)}


def _flat(output: Tensor, axis: int = 2) -> Tensor:
    """Put the heads of an output over time side by side, those of the last step at axis 1."""
    return output.flatten(axis) if output.dim() > axis + 1 else output


def _joined(cell: CellFunction, sides: Sequence[Any], axis: int) -> Any:
    """Put the directions side by side, heads flattened; what is not wanted is None."""
    joined: list[Tensor | None] = []
    for place in range(len(cell.over_time_names)):
        flat = [_flat(side[place], axis) for side in sides if side[place] is not None]
        several = torch.cat(flat, -1) if len(flat) > 1 else None
        joined.append(several if several is not None else next(iter(flat), None))
    return cell.over_time(*joined)
