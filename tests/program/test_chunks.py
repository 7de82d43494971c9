"""Layers of states over time follow from the equations of a step, or the statement that forbids."""

from __future__ import annotations

import math

import pytest
from sympy import Rational, log

from cellgen import (
    Cell,
    Dim,
    H,
    I,
    Input,
    State,
    Weight,
    exp,
    expand_dims,
    maximum,
    outer,
    sigmoid,
    tanh,
)
from cellgen.cells import (
    BRC,
    GRUD,
    HGRN2,
    LRU,
    LSTM,
    M2RNN,
    MLSTM,
    QRNN,
    RGLRU,
    RWKV4,
    RWKV6,
    RWKV7,
    S5,
    SHIPPED,
    SRU,
    Comba,
    DeltaNet,
    DeltaProduct,
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedLinearAttention,
    Hawk,
    IndRNN,
    KimiDeltaAttention,
    Mamba,
    Mamba2,
    Mamba3,
    MinGRU,
    MinGRULog,
    MinLSTM,
    MLSTMSigmoid,
    RetNet,
    TTTLinear,
)
from cellgen.language.value import Role, Value
from cellgen.program.chunks import (
    Decay,
    Delay,
    LinearScan,
    MaxPlusScan,
    Memory,
    form_over_time,
    lines_of,
)
from cellgen.program.chunks.bounds import interval
from cellgen.program.ssa import Statement

D, K, N = Dim("D"), Dim("K"), Dim("N")

QUALIFY = (
    *(DeltaNet, GatedDeltaNet, GatedLinearAttention, RetNet, Mamba, Mamba2, MLSTM, RWKV4, RWKV6),
    *(RWKV7, LRU, S5, MinGRU, MinGRULog, MinLSTM, QRNN, RGLRU, Hawk, HGRN2, MLSTMSigmoid),
    *(KimiDeltaAttention, GatedDeltaNet2, DeltaProduct, Comba, Mamba3),
)


def memory_of(cell: type[Cell]) -> Memory:
    return form_over_time(cell.definition).memories[0]


def names(cell: type[Cell]) -> list[tuple[str, ...]]:
    layers = form_over_time(cell.definition).layers
    return [(type(k).__name__, *map(str, k.states)) for k in layers]


def test_the_cells_that_ship_and_have_a_form_over_time() -> None:
    assert {c for c in SHIPPED if form_over_time(c.definition).refusal is None} == set(QUALIFY)


@pytest.mark.parametrize(
    ("cell", "layers"),
    [
        (MinGRU, [("LinearScan", "h_prev")]),
        (LRU, [("LinearScan", "h_re_prev", "h_im_prev")]),
        (MLSTM, [("MaxPlusScan", "m_prev"), ("Memory", "c_prev"), ("Memory", "n_prev")]),
        (
            RWKV4,
            [
                ("Delay", "x_shift_prev"),
                ("MaxPlusScan", "p_prev"),
                ("LinearScan", "a_prev"),
                ("LinearScan", "b_prev"),
            ],
        ),
        (RWKV7, [("Delay", "x_shift_prev"), ("Memory", "s_prev")]),
        (GRUD, [("LinearScan", "x_seen_prev"), ("Refusal", "h_prev")]),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_states_are_layers_in_the_order_in_which_they_can_be_computed(cell, layers) -> None:
    assert names(cell) == layers


@pytest.mark.parametrize(
    ("cell", "decay", "erased", "updates", "is_matrix"),
    [
        (DeltaNet, Decay.NONE, 1, 1, True),
        (GatedDeltaNet, Decay.HEAD, 1, 1, True),
        (GatedLinearAttention, Decay.KEY, 0, 1, True),
        (RetNet, Decay.HEAD, 0, 1, True),
        (Mamba, Decay.KEY, 0, 1, False),
        (Mamba2, Decay.HEAD, 0, 1, True),
        (RWKV6, Decay.KEY, 0, 1, True),
        (RWKV7, Decay.KEY, 1, 2, True),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_a_memory_says_how_it_decays_and_what_it_adds_and_erases(
    cell, decay, erased, updates, is_matrix
) -> None:
    memory = memory_of(cell)
    assert memory.decay is decay
    assert (len(memory.erasers), len(memory.updates)) == (erased, updates)
    assert (memory.value_axis is not None) is is_matrix


def test_the_correction_and_the_value_of_the_delta_rule_are_one_update() -> None:
    assert (
        "outer(beta * v - beta * u, k); u = s_prev @ k"
        in lines_of(form_over_time(DeltaNet.definition))[0]
    )


def test_a_vector_beside_a_matrix_is_one_more_column_of_it() -> None:
    matrix, vector = form_over_time(MLSTM.definition).memories
    assert (matrix.beside, vector.beside) == (None, matrix.state)


def test_the_bound_of_a_decay_is_proven_from_the_equations() -> None:
    memory = memory_of(RWKV7)
    assert memory.bound == pytest.approx(-math.exp(-0.5), rel=1e-12)
    assert memory.bound <= -math.exp(-0.5)
    assert not memory.floored
    assert memory_of(GatedLinearAttention).floored


def test_no_logarithm_is_formed_where_an_exponential_can_be_undone() -> None:
    for cell in (GatedDeltaNet, GatedLinearAttention, Mamba2, MLSTM, RWKV6, RWKV7):
        form = form_over_time(cell.definition)
        for memory in form.memories:
            written = form.stated[memory.log_decay]
            assert not [f for f in written.atoms(log) if f], cell
            assert memory.positive == ()
    assert [str(v) for v in memory_of(RetNet).positive] == ["gamma"]


class KeptRest(Cell):
    """A decay of 1 - sigmoid(x), whose logarithm is log_sigmoid(-x)."""

    x, s_prev = Input(I), State(N, D, K)
    w_z, w_k, w_v = Weight(I, N, 1), Weight(I, N, K), Weight(I, N, D)
    z = sigmoid(x @ w_z)
    s = (1 - expand_dims(z, -1)) * s_prev + outer(x @ w_v, x @ w_k)
    h = s @ (x @ w_k)
    outputs = h, s


class MayTurn(Cell):
    """A decay that may be negative has no logarithm."""

    x, s_prev = Input(I), State(N, D, K)
    w_z, w_k, w_v = Weight(I, N, 1), Weight(I, N, K), Weight(I, N, D)
    s = expand_dims(tanh(x @ w_z), -1) * s_prev + outer(x @ w_v, x @ w_k)
    h = s @ (x @ w_k)
    outputs = h, s


class ByValue(Cell):
    """Decays by value beside a read, which is no matter of keys."""

    x, s_prev = Input(I), State(N, D, K)
    w_a, w_k, w_v = Weight(I, N, D), Weight(I, N, K), Weight(I, N, D)
    k = x @ w_k
    a = expand_dims(sigmoid(x @ w_a), -1)
    s = a * (s_prev - outer(s_prev @ k, k)) + outer(x @ w_v, k)
    h = s @ k
    outputs = h, s


class HandedOn(Cell):
    """An output that is no sum of the matrix: its units go one by one, which a scan can form."""

    x, s_prev = Input(I), State(N, D, K)
    w_a, w_k, w_v = Weight(I, N, 1), Weight(I, N, K), Weight(I, N, D)
    s = expand_dims(sigmoid(x @ w_a), -1) * s_prev + outer(x @ w_v, x @ w_k)
    h = tanh(s) @ (x @ w_k)
    outputs = h, s


class Fed(Cell):
    """A scan of what is read of a memory: the memory comes first."""

    x, s_prev, y_prev = Input(I), State(N, D, K), State(N, D)
    w_a, w_k, w_v = Weight(I, N, 1), Weight(I, N, K), Weight(I, N, D)
    a, k = sigmoid(x @ w_a), x @ w_k
    s = expand_dims(a, -1) * s_prev + outer(x @ w_v, k)
    y = a * y_prev + (1 - a) * (s @ k)
    outputs = y, s


class AskedByALater(Cell):
    """A memory whose query is a state that stands behind it, and another whose query is its own."""

    x, s_prev, t_prev, n_prev = Input(I), State(N, D, K), State(N, D, D), State(N, K)
    w_a, w_k, w_v = Weight(I, N, 1), Weight(I, N, K), Weight(I, N, D)
    a, k, v = sigmoid(x @ w_a), x @ w_k, x @ w_v
    t = expand_dims(a, -1) * t_prev + outer(v, v)
    s = expand_dims(a, -1) * s_prev + outer(v, k)
    n = a * n_prev + k
    h = t @ (s @ n)
    outputs = h, s, t, n


class AskedByItself(Cell):
    """A memory whose query is made of what was read of it at the step before."""

    x, s_prev, n_prev = Input(I), State(N, K, K), State(N, K)
    w_a, w_k = Weight(I, N, 1), Weight(I, N, K)
    a, k = sigmoid(x @ w_a), x @ w_k
    s = expand_dims(a, -1) * s_prev + outer(k, k)
    n = a * n_prev + s @ k
    h = s @ n_prev
    outputs = h, s, n


def test_the_logarithm_of_what_a_gate_leaves_is_that_of_the_gate_mirrored() -> None:
    memory = memory_of(KeptRest)
    assert "log_sigmoid(-x_w_z)" in lines_of(form_over_time(KeptRest.definition))[0]
    assert memory.decay is Decay.HEAD


def test_a_matrix_whose_units_are_read_one_by_one_is_a_scan() -> None:
    assert names(HandedOn) == [("LinearScan", "s_prev")]


def test_a_state_may_be_formed_from_what_is_read_of_a_memory() -> None:
    assert names(Fed) == [("Memory", "s_prev"), ("LinearScan", "y_prev")]


def test_a_memory_comes_behind_the_states_that_its_queries_are_made_of() -> None:
    layers = [("LinearScan", "n_prev"), ("Memory", "s_prev"), ("Memory", "t_prev")]
    assert names(AskedByALater) == layers


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (AskedByItself, "s_prev and n_prev wait for each other"),
        (LSTM, "`h_prev @ u_o` mixes units of a state"),
        (SRU, "`f = sigmoid(x @ w_f + c_prev * v_f + b_f)` is not linear in a state"),
        (M2RNN, "`z = tanh(s_prev @ u + "),
        (M2RNN, "))` is not linear in the state"),
        (IndRNN, "`tanh(h_bar)` is not linear in a state"),
        (BRC, "is not linear in a state"),
        (TTTLinear, "`sum(u -> (B, N, 1))` sums what was read along the other axis"),
        (ByValue, "decays by value, with"),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_the_statement_that_forbids_a_form_over_time_is_named(cell, reason) -> None:
    refusal = form_over_time(cell.definition).refusal
    assert refusal is not None
    assert reason in refusal.reason
    assert f"step by step: {refusal.reason}" in " ".join(lines_of(form_over_time(cell.definition)))


def test_a_decay_that_may_be_negative_goes_unit_by_unit() -> None:
    assert names(MayTurn) == [("LinearScan", "s_prev")]


def test_streams_are_formed_from_inputs_weights_and_earlier_layers_alone() -> None:
    for cell in (*QUALIFY, Fed, AskedByALater):
        form = form_over_time(cell.definition)
        memories = {v for k in form.memories for v in (k.state, k.next)}
        known: set[Value] = set()
        for layer in form.layers:
            program = form.pre[layer.states]
            states = {v for v in program.arguments if v.role is Role.STATE}
            assert states <= known, cell
            assert not memories.intersection(program.values), cell
            assert set(layer.streams) <= set(program.results), cell
            if not isinstance(layer, Memory):
                known.update(layer.states)
        assert form.post is not None
        assert not memories.intersection(form.post.values), cell


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        (lambda x: sigmoid(x), 0, 1),
        (lambda x: -Rational(1, 2) * sigmoid(x), -0.5, 0),
        (lambda x: exp(-exp(x)), 0, 1),
        (lambda x: maximum(x, -3), -3, math.inf),
        (lambda x: 1 - 2 * sigmoid(x), -1, 1),
        (lambda x: x * x, 0, math.inf),
        (lambda x: x, -math.inf, math.inf),
    ],
)
def test_intervals_hold_whatever_the_arguments_are(expression, low, high) -> None:
    x = Value("x", (H,), Role.INPUT)
    y = Value("y", (H,), Role.LOCAL)
    bound = interval(y, {y: Statement(y, expression(x))})
    assert bound.low <= low
    assert bound.high >= high
    assert bound.low == pytest.approx(low, abs=1e-12)
    assert bound.high == pytest.approx(high, abs=1e-12)


def test_delays_and_scans_have_their_streams() -> None:
    delay, scan, *_ = form_over_time(RWKV4.definition).layers
    assert isinstance(delay, Delay)
    assert [str(v) for v in delay.streams] == ["x_shift"]
    assert isinstance(scan, MaxPlusScan)
    assert scan.moved_first
    (pair,) = form_over_time(LRU.definition).layers
    assert isinstance(pair, LinearScan)
    assert sorted(pair.factors) == [(0, 0), (0, 1), (1, 0), (1, 1)]


class OwnLetters(Cell):
    """Values that are called as what is too long to be spelled, or what a layer names itself."""

    x, b_prev, s_prev = Input(I), State(H), State(D, K)
    w_b, w_u = Weight(I, H), Weight(I, K)
    w_g, w_v = Weight(I, K), Weight(I, D)

    b = sigmoid(x @ w_b) * b_prev + x @ w_b
    u, g, v = tanh(x @ w_u), -exp(x @ w_g), x @ w_v
    s = expand_dims(exp(g), -2) * (s_prev - outer(s_prev @ u, u)) + outer(v, u)
    y = s @ u

    outputs = b, s, y


def test_a_letter_of_a_layer_is_no_name_of_the_author() -> None:
    scan, memory = lines_of(form_over_time(OwnLetters.definition))
    assert "b = b_prev * sigmoid(x_w_b) + b_;" in scan
    assert "exp(g_) * s_prev" in memory
    assert "; u_ = s_prev @ u" in memory
