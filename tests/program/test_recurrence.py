"""The class of a recurrence follows from the equations, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from cellgen import (
    Bias,
    Cell,
    Dim,
    H,
    I,
    Input,
    State,
    Weight,
    concat,
    keep,
    maximum,
    mean,
    outer,
    sigmoid,
    split,
    stop_gradient,
    tanh,
    where,
)
from cellgen.cells import (
    GRU,
    GRUD,
    LSTM,
    M2RNN,
    MLSTM,
    RWKV4,
    RWKV6,
    DeltaNet,
    Elman,
    GatedDeltaNet,
    GatedLinearAttention,
    GRUBlockCell,
    Mamba,
    Mamba2,
    RetNet,
    TTTLinear,
)
from cellgen.cells.co_rnn import CoRNN
from cellgen.cells.layer_norm import LayerNormLSTM
from cellgen.cells.lstm_projection import LSTMProjection
from cellgen.cells.minimal import MinGRU
from cellgen.cells.recurrent_highway import RecurrentHighway2Full
from cellgen.cells.slstm import SLSTMHeads
from cellgen.cells.sru import SRU
from cellgen.pipeline import programs_of, recurrence
from cellgen.program.interpret import interpret
from cellgen.program.jumps import jump_of
from cellgen.program.over_time import unroll
from cellgen.program.recurrence import RecurrenceClass, are_units_apart
from cellgen.views.show import as_data, as_text
from tests.conftest import SIZES, draw
from tests.cover import each_of, of_equations

K, D = Dim("K"), Dim("D")
DENSE, BLOCK, DIAGONAL, RANK_ONE, MATRIX, MAX_PLUS, LINEAR = RecurrenceClass


class IndRNN(Cell):
    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H), Bias(H)
    h = tanh(x @ w + u * h_prev + b)


class LRU(Cell):
    """A complex state as a pair; its output is a product that no state waits for."""

    x, re_prev, im_prev = Input(I), State(H), State(H)
    a_re, a_im, w_re, w_im, v = Weight(H), Weight(H), Weight(I, H), Weight(I, H), Weight(H, H)
    re = a_re * re_prev - a_im * im_prev + x @ w_re
    im = a_re * im_prev + a_im * re_prev + x @ w_im
    y = tanh(re @ v)
    outputs = re, im, y


class Heads(Cell):
    """Units of a head read each other; heads do not."""

    x, h_prev = Input(I), State(K, D)
    w, r = Weight(I, K, D), Weight(K, D, D)
    h = tanh(x @ w + h_prev @ r)


class HeadsApart(Cell):
    """Heads of units that read only themselves."""

    x, h_prev = Input(I), State(K, D)
    w, a = Weight(I, K, D), Weight(K, D)
    h = sigmoid(a) * h_prev + x @ w


class HeadsMixed(Cell):
    """A sum over all heads: every unit reads every other."""

    x, h_prev = Input(I), State(K, D)
    w, r = Weight(I, K, D), Weight(K, D, D)
    h = tanh(x @ w + h_prev @ r) + mean(h_prev, axis=all)


class MinLSTM(Cell):
    x, h_prev = Input(I), State(H)
    w = Weight(I, 3 * H)
    f_bar, i_bar, n = split(x @ w, 3)
    f, i = sigmoid(f_bar), sigmoid(i_bar)
    h = f / (f + i) * h_prev + i / (f + i) * n


class Chosen(Cell):
    """Linear as long as the condition reads no state."""

    x, s_prev = Input(H), State(H)
    s = where(x > 0, keep(s_prev), x)


class Latched(Cell):
    x, s_prev = Input(H), State(H)
    s = where(s_prev > 0, s_prev, x)


class Peak(Cell):
    x, s_prev = Input(H), State(H)
    s = maximum(s_prev, x)


class Stopped(Cell):
    """The derivative of stop_gradient is 0; its value still reads the state."""

    x, s_prev = Input(H), State(H)
    s = tanh(stop_gradient(s_prev)) + x


class Squared(Cell):
    x, s_prev = Input(H), State(H)
    s = x * s_prev * (1 - s_prev)


class Shifted(Cell):
    """Joins the halves of a state the other way round: units read other units."""

    x, s_prev = Input(2 * H), State(2 * H)
    left, right = split(s_prev, 2)
    s = concat(right, left) + x


class Normalised(Cell):
    x, s_prev = Input(H), State(H)
    s = s_prev - mean(s_prev) + x


class OneForAll(Cell):
    """A state of one unit that every unit reads, known at every step before they are formed."""

    x, g_prev, s_prev = Input(H), State(1), State(H)
    g = 1 - g_prev
    s = g_prev * s_prev + x


class AllForOne(Cell):
    """The same, whose one unit reads the others: neither is known before the other."""

    x, g_prev, s_prev = Input(H), State(1), State(H)
    g = sigmoid(g_prev) + mean(s_prev)
    s = g_prev * s_prev + x


class DeltaOfColumns(Cell):
    """A matrix that is corrected along its rows."""

    x, k, s_prev = Input(D), Input(K), State(K, D)
    s = s_prev + outer(k, x - k @ s_prev)


class DeltaTwice(Cell):
    """Two keys are read, and corrected at once."""

    x, k, q, s_prev = Input(D), Input(K), Input(K), State(D, K)
    s = s_prev + outer(x - s_prev @ k, k) + outer(s_prev @ q, q)


class DeltaBent(Cell):
    x, k, s_prev = Input(D), Input(K), State(D, K)
    s = s_prev + outer(tanh(x - s_prev @ k), k)


class Forgetful(Cell):
    x, s_prev = Input(H), State(H)
    s = tanh(x)


@pytest.mark.parametrize(
    ("cell", "kind", "levels"),
    [
        (Elman, DENSE, 1),
        (GRU, DENSE, 1),
        (GRUBlockCell, DENSE, 2),
        (LSTM, DENSE, 1),
        (CoRNN, DENSE, 1),
        (LSTMProjection, DENSE, 2),
        (RecurrentHighway2Full, DENSE, 2),
        (SLSTMHeads, BLOCK, 1),
        (LayerNormLSTM, DENSE, 5),
        (Normalised, DENSE, 1),
        (Shifted, DENSE, 0),
        (OneForAll, LINEAR, 0),
        (SRU, DIAGONAL, 0),
        (IndRNN, DIAGONAL, 0),
        (Latched, DIAGONAL, 0),
        (Peak, MAX_PLUS, 0),
        (Stopped, DIAGONAL, 0),
        (Squared, DIAGONAL, 0),
        (Heads, BLOCK, 1),
        (HeadsApart, LINEAR, 0),
        (HeadsMixed, DENSE, 1),
        (MinGRU, LINEAR, 0),
        (MinLSTM, LINEAR, 0),
        (LRU, LINEAR, 0),
        (Chosen, LINEAR, 0),
        (MLSTM, MATRIX, 0),
        (DeltaNet, RANK_ONE, 1),
        (GatedDeltaNet, RANK_ONE, 1),
        (DeltaOfColumns, RANK_ONE, 1),
        (DeltaTwice, RANK_ONE, 1),
        (DeltaBent, BLOCK, 1),
        (GatedLinearAttention, MATRIX, 0),
        (RetNet, MATRIX, 0),
        (Mamba, MATRIX, 0),
        (Mamba2, MATRIX, 0),
        (RWKV4, MAX_PLUS, 1),
        (RWKV6, MATRIX, 2),
        (Forgetful, LINEAR, 0),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else str(item),
)
def test_the_class_is_read_from_the_equations(cell, kind, levels):
    found = recurrence(cell)
    assert (found.kind, found.levels) == (kind, levels), str(found)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (GRU, "`h_prev @ u_z` mixes units of a state"),
        (GRUBlockCell, "`h_prev @ w_ru[I:I + H]` mixes units of a state"),
        (SRU, "is not linear in a state"),
        (Stopped, "`stop_gradient(s_prev)` is not linear in a state"),
        (MinGRU, "h = h_prev * (1 - z) + b; the factors read no state"),
        (LRU, "re = re_prev * a_re + -im_prev * a_im + b; the factors read no state"),
        (TTTLinear, "`u = s_prev @ k` mixes units of a state"),
        (M2RNN, "`z = tanh(s_prev @ u + "),
        (Normalised, "`sum(s_prev -> (B, 1))` mixes units of a state"),
        (Shifted, "`concat(right, left)` joins a state with other units"),
        (AllForOne, "`x + g_prev * s_prev` reads one unit of a state for many"),
        (OneForAll, "g = -g_prev + b"),
        (OneForAll, "s = g_prev * s_prev + b; the factors read no state"),
        (Forgetful, "s reads no state"),
        (DeltaNet, "s = s_prev + outer(beta * v - beta * u, k); u = s_prev @ k; read as s @ q"),
        (RWKV6, "s = exp(g) * s_prev + outer(v, k); g = -exp(w_0 + low_w_b), a number a key"),
        (DeltaBent, "of a state"),
        (RWKV6, "x_shift reads no state"),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_the_reason_is_given_in_the_names_of_the_author(cell, reason):
    assert any(reason in state.reason for state in recurrence(cell).states), str(recurrence(cell))


def test_products_are_told_apart_by_what_waits_for_them():
    found = recurrence(LRU)
    assert [str(s) for s in found.hoisted] == ["x_w_re = x @ w_re", "x_w_im = x @ w_im"]
    assert (found.recurrent, [str(s) for s in found.trailing]) == ((), ["re_v = re @ v"])


def test_a_cell_is_of_the_class_of_its_hardest_state():
    found = recurrence(GRUD)
    assert [state.kind for state in found.states] == [DENSE, LINEAR]


@pytest.mark.parametrize("cell", each_of(of_equations))
def test_units_that_are_apart_read_that_unit_of_states_alone(cell):
    """A unit of one state moves: no other unit of any new state has another bit."""
    programs, forward = unroll(cell.definition), programs_of(cell).mathematics[0]
    given = draw(forward.arguments)
    spread = False
    for state in (str(link.previous) for link in programs.links):
        if state not in given:
            continue
        place = tuple(length // 2 for length in given[state].shape)
        moved = {**given, state: given[state].copy()}
        moved[state][place] += 0.25
        for link in programs.links:
            before, after = (
                interpret(forward, arrays, SIZES)[str(link.next)].copy()
                for arrays in (given, moved)
            )
            if before.shape == given[state].shape:
                before[place] = after[place] = 0
            spread |= not np.array_equal(before, after, equal_nan=True)
    shapes = {link.previous.shape for link in programs.links}
    apart = are_units_apart(programs)
    assert not (apart and (spread or len(shapes) > 1))
    if not apart and len(shapes) == 1 and not jump_of(cell.definition):
        assert spread, "units are apart, and nothing says so"


@pytest.mark.parametrize("cell", each_of(of_equations))
def test_show_prints_the_class_and_why(cell):
    found, programs = recurrence(cell), programs_of(cell)
    shown = as_text(programs)
    assert f"recurrence: {found.kind.value}, {found.levels_text}" in shown
    assert all(state.reason in shown for state in found.states)
    assert as_data(programs)["recurrence"]["class"] == found.kind.value
