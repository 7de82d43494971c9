"""How PyTorch stacks what a cell declares one by one: its params, cut and stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cellgen.errors import ArgumentError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arrays: TypeAlias = dict[str, Array]


@dataclass(frozen=True)
class ParamsLayout:
    """How PyTorch stacks what a cell declares one by one.

    ``gates``: blocks of rows in PyTorch's order, by the cell's suffixes, "" for a cell that stacks
    as PyTorch does. ``apart``: the gate whose two biases the cell keeps apart, as b and c.
    ``states``: the cell's, in PyTorch's order.
    """

    cell: str
    gates: tuple[str, ...]
    states: tuple[str, ...] = ("h",)
    apart: str | None = None
    has_projection: bool = False


LAYOUTS: Mapping[str, ParamsLayout] = {
    "gru": ParamsLayout("gru", ("_r", "_z", "_n"), apart="_n"),
    "lstm": ParamsLayout("lstm", ("_i", "_f", "_g", "_o"), ("h", "c")),
    "lstm with proj_size": ParamsLayout("lstm_projection", ("",), ("r", "c"), has_projection=True),
    "rnn_tanh": ParamsLayout("elman", ("",)),
    "rnn_relu": ParamsLayout("elman_relu", ("",)),
}


def layout_of(function: str, count: int, groups: int, has_biases: bool) -> tuple[ParamsLayout, int]:
    """Tell the layout by how many params a layer has; return also how many."""
    plain = 4 if has_biases else 2
    if function == "lstm" and count == groups * (plain + 1):
        return LAYOUTS["lstm with proj_size"], plain + 1
    if count != groups * plain:
        raise ArgumentError(
            f"{function}: params holds {count} arrays, expected {groups * plain}: {plain} for each "
            f"of {groups} layers and directions"
        )
    return LAYOUTS[function], plain


def cell_weights(
    layout: ParamsLayout, params: Sequence[Array], has_biases: bool, dtype: np.dtype[Any]
) -> Arrays:
    """Cut the rows of one layer's params into the cell's weights, transposed."""
    rows, known = params[0].shape[0], Arrays()
    none = np.zeros(rows, dtype)
    bias_ih, bias_hh = (params[2], params[3]) if has_biases else (none, none)
    for index, gate in enumerate(layout.gates):
        block = slice(rows * index // len(layout.gates), rows * (index + 1) // len(layout.gates))
        known[f"w{gate}"] = np.ascontiguousarray(params[0][block].T, dtype)
        known[f"u{gate}"] = np.ascontiguousarray(params[1][block].T, dtype)
        if gate == layout.apart:
            known[f"b{gate}"] = np.ascontiguousarray(bias_ih[block], dtype)
            known[f"c{gate}"] = np.ascontiguousarray(bias_hh[block], dtype)
        else:
            known[f"b{gate}"] = np.ascontiguousarray(bias_ih[block] + bias_hh[block], dtype)
    if layout.has_projection:
        known["w_p"] = np.ascontiguousarray(params[-1].T, dtype)
    return known


def stacked_params(
    layout: ParamsLayout, gradients: Mapping[str, Array], has_biases: bool
) -> list[Array]:
    """Stack the gradients of one layer's weights as PyTorch's params are stacked."""
    parts = [
        np.concatenate([gradients[f"{kind}{gate}"].T for gate in layout.gates]) for kind in "wu"
    ]
    if has_biases:
        recurrent = ["c" if gate == layout.apart else "b" for gate in layout.gates]
        parts.append(np.concatenate([gradients[f"b{gate}"] for gate in layout.gates]))
        names = [f"{kind}{gate}" for kind, gate in zip(recurrent, layout.gates, strict=True)]
        parts.append(np.concatenate([gradients[name] for name in names]))
    return [*parts, gradients["w_p"].T] if layout.has_projection else parts
