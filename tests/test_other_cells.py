"""Cells that do not ship, each with something no shipped cell has: proved like those that do."""

from __future__ import annotations

import pytest

from cellgen import (
    Bias,
    Cell,
    H,
    I,
    Input,
    State,
    Static,
    Weight,
    tanh,
)
from cellgen.proof.check import check


class TimeGate(Cell):
    """Elapsed time per row and step, and a mask that is constant over time."""

    x, ts, h_prev, m = Input(I), Input(1), State(H), Static(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    h = h_prev + ts * m * (tanh(x @ w + (h_prev * m) @ u + b) - h_prev)


OTHERS = (TimeGate,)


@pytest.mark.parametrize("cell", OTHERS, ids=lambda cell: cell.definition.name)
def test_a_cell_outside_the_package_is_proved(cell: type[Cell]) -> None:
    report = check(cell)
    assert report.ok, str(report)
    assert {"C sequence_backward", "C float32 sequence_forward"} <= {r.name for r in report.rows}
