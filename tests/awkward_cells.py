"""Cells that are unlike those that ship, each for something that functions over time may miss: one
list for proofs, options, row blocks and CUDA."""

from __future__ import annotations

import types
from functools import cache
from typing import Any, cast

from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid, tanh
from tests.conftest import (
    VARIANTS,
    ColumnParts,
    Cumulated,
    DeltaRule,
    MatrixHeads,
    RunningHeads,
    RunningUnits,
)


class Spellings(Cell):
    """Values whose names begin and end as those do that are derived."""

    z_prev, t_x = Input(I), Input(I)
    y_last_prev, a_prev_prev = State(H), State(H)
    dot_x, t_w, w_pre = Weight(I, H), Weight(I, H), Weight(I, H)
    w_total, w_part, b_zero = Weight(H, H), Weight(H, H), Bias(H)
    z = sigmoid(z_prev @ dot_x + y_last_prev @ w_total + b_zero)
    y = tanh(t_x @ t_w + a_prev_prev @ w_part)
    z_pre = z_prev @ w_pre
    y_total = y * z_pre
    y_last = z * y_last_prev + (1 - z) * y_total
    a_prev = tanh(y_last * y + a_prev_prev)
    outputs = y, y_last, a_prev
    gradients = z_pre, y, y_total


class Unread(Cell):
    """A new state of the inputs alone, which no step reads: nothing is left to do in each."""

    x, h_prev, w = Input(I), State(H), Weight(I, H)

    h = x @ w


@cache
def cell_of_states(count: int) -> type[Cell]:
    """A cell of so many states h0, h1, ..., each an output with a bias b_h0, b_h1, ... of its own.

    From 32 on it has more outputs and final states than a number of 64 bits can tell apart.
    """

    def body(own: dict[str, Any]) -> None:
        own["x"] = Input(H)
        names = [f"h{number}" for number in range(count)]
        for name in names:
            own[f"{name}_prev"] = State(H)
        for name in names:
            own[f"b_{name}"] = Bias(H)
        for name in names:
            own[name] = tanh(own[f"{name}_prev"] + own[f"b_{name}"] + own["x"])
        own["outputs"] = [own[name] for name in names]

    return cast("type[Cell]", types.new_class(f"Of{count}States", (Cell,), {}, body))


AWKWARD = (
    *VARIANTS,
    *(Cumulated, RunningUnits, RunningHeads, ColumnParts, DeltaRule, MatrixHeads),
    *(Spellings, Unread),
)
"""Reductions within and across heads, parts that are arguments and results at once, cut gradients,
shared weights, contexts that learn, running sums, matrices of a row, spellings of derived names, a
state that is not read."""
