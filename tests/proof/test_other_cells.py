"""Cells that do not ship, each with something no shipped cell has: proved like those that do."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
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


def test_neurons_of_izhikevich_fire_at_30() -> None:
    kernel = cellgen.load("izhikevich")
    v = np.array([[29.999999, 30.0, 30.000001]])
    zeros, weights = np.zeros((1, 3)), {"w": np.zeros((1, 3)), "u": np.zeros((3, 3))}
    made = kernel.forward(
        x=np.zeros((1, 1)), v_prev=v, r_prev=zeros, s_prev=zeros, **weights, b_in=zeros[0], dt=0.0
    )
    assert made.s.tolist() == [[0.0, 1.0, 1.0]]
    assert made.v.tolist() == [[29.999999, -65.0, -65.0]]
    assert made.r.tolist() == [[0.0, 8.0, 8.0]]


def test_inputs_of_s5_keep_their_digits_for_small_steps() -> None:
    kernel, draw = cellgen.load("s5"), np.random.default_rng(0).normal
    given = {name: draw(size=5) for name in ("l_re", "l_im")}
    given |= {name: draw(size=(2, 5)) for name in ("b_re", "b_im")}
    given |= {name: draw(size=(5, 2)) for name in ("c_re", "c_im")}
    given |= {"x": draw(size=(1, 2)), "log_step": np.full(5, -12.0), "d": np.zeros(2)}
    given |= {name: np.zeros((1, 5)) for name in ("s_re_prev", "s_im_prev")}
    exact = kernel.forward(**given)
    found = kernel.forward(**{name: array.astype(np.float32) for name, array in given.items()})
    for name in ("s_re", "s_im"):
        expected = getattr(exact, name)
        assert abs(getattr(found, name) / expected - 1).max() < 1e-4, name
