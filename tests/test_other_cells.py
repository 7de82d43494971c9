"""Cells that do not ship, each with something no shipped cell has: proved like those that do."""

from __future__ import annotations

import pytest

from cellgen import (
    Bias,
    Cell,
    Dim,
    H,
    I,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    mean,
    sigmoid,
    split,
    sqrt,
    tanh,
)
from cellgen.check import check


class MinGRU(Cell):
    """minGRU (Feng et al. 2024, arXiv:2410.01201): no product reads a state."""

    x, h_prev = Input(I), State(H)
    w_z, b_z, w_n, b_n = Weight(I, H), Bias(H), Weight(I, H), Bias(H)
    z = sigmoid(x @ w_z + b_z)
    n = x @ w_n + b_n
    h = (1 - z) * h_prev + z * n


class CoRNN(Cell):
    """coRNN (Rusch & Mishra 2021, arXiv:2010.00951): two states, one read by the other."""

    x, y_prev, z_prev = Input(I), State(H), State(H)
    w, v, u, b = Weight(H, H), Weight(H, H), Weight(I, H), Bias(H)
    dt, gam, eps = Scalar(0.1), Scalar(1.0), Scalar(0.5)
    z = z_prev + dt * (tanh(y_prev @ w + z_prev @ v + x @ u + b) - gam * y_prev - eps * z_prev)
    y = y_prev + dt * z


class SRU(Cell):
    """SRU with a projected skip (Lei et al. 2018, arXiv:1709.02755)."""

    x, c_prev = Input(I), State(H)
    w, w_f, w_r, w_s = Weight(I, H), Weight(I, H), Weight(I, H), Weight(I, H)
    v_f, v_r, b_f, b_r = Weight(H), Weight(H), Bias(H), Bias(H)
    f = sigmoid(x @ w_f + v_f * c_prev + b_f)
    r = sigmoid(x @ w_r + v_r * c_prev + b_r)
    c = f * c_prev + (1 - f) * (x @ w)
    h = r * c + (1 - r) * (x @ w_s)
    outputs = h, c


class LNLSTM(Cell):
    """Layer-norm LSTM (Ba, Kiros & Hinton 2016, arXiv:1607.06450): sums over units of products."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w, u, b = Weight(I, 4 * H), Weight(H, 4 * H), Bias(4 * H)
    a1, a2, g1, g2 = Weight(4 * H), Weight(4 * H), Weight(H), Bias(H)
    hu = h_prev @ u
    hc = hu - mean(hu)
    hn = a1 * hc / sqrt(mean(hc * hc) + 1e-5)
    xw = x @ w
    xc = xw - mean(xw)
    xn = a2 * xc / sqrt(mean(xc * xc) + 1e-5)
    f_bar, i_bar, o_bar, g_bar = split(hn + xn + b, 4)
    c = sigmoid(f_bar) * c_prev + sigmoid(i_bar) * tanh(g_bar)
    cc = c - mean(c)
    h = sigmoid(o_bar) * tanh(g1 * cc / sqrt(mean(cc * cc) + 1e-5) + g2)
    outputs = h, c


class LSTMP(Cell):
    """LSTM with projection (Sak, Senior & Beaufays 2014, arXiv:1402.1128): a product carried on."""

    P = Dim("P")
    x, r_prev, c_prev = Input(I), State(P), State(H)
    w, u, b, w_p = Weight(I, 4 * H), Weight(P, 4 * H), Bias(4 * H), Weight(H, P)
    i_bar, f_bar, g_bar, o_bar = split(x @ w + r_prev @ u + b, 4)
    c = sigmoid(f_bar) * c_prev + sigmoid(i_bar) * tanh(g_bar)
    r = (sigmoid(o_bar) * tanh(c)) @ w_p
    outputs = r, c


class RHN2(Cell):
    """Recurrent highway, two layers deep (Zilly et al. 2017, arXiv:1607.03474)."""

    x, h_prev = Input(I), State(H)
    w_h, w_t, r_h, r_t, r_h2, r_t2 = (
        Weight(I, H),
        Weight(I, H),
        Weight(H, H),
        Weight(H, H),
        Weight(H, H),
        Weight(H, H),
    )
    b_h, b_t, b_h2, b_t2 = Bias(H), Bias(H), Bias(H), Bias(H)
    q_1, t_1 = tanh(x @ w_h + h_prev @ r_h + b_h), sigmoid(x @ w_t + h_prev @ r_t + b_t)
    s_1 = q_1 * t_1 + h_prev * (1 - t_1)
    q_2, t_2 = tanh(s_1 @ r_h2 + b_h2), sigmoid(s_1 @ r_t2 + b_t2)
    h = q_2 * t_2 + s_1 * (1 - t_2)


class TimeGate(Cell):
    """Elapsed time per row and step, and a mask that is constant over time."""

    x, ts, h_prev, m = Input(I), Input(1), State(H), Static(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    h = h_prev + ts * m * (tanh(x @ w + (h_prev * m) @ u + b) - h_prev)


OTHERS = (MinGRU, CoRNN, SRU, LNLSTM, LSTMP, RHN2, TimeGate)


@pytest.mark.parametrize("cell", OTHERS, ids=lambda cell: cell.definition.name)
def test_a_cell_outside_the_package_is_proved(cell: type[Cell]) -> None:
    report = check(cell)
    assert report.ok, str(report)
    assert {"C sequence_backward", "C float32 sequence_forward"} <= {r.name for r in report.rows}
