"""Gradients without a pass backward in time: equal to those with one where they claim to be."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen import (
    Bias,
    Cell,
    DeclarationError,
    Dim,
    H,
    I,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    concat,
    outer,
    sigmoid,
    split,
    tanh,
)
from cellgen.cells import (
    ALIF,
    GRU,
    LIF,
    LRU,
    LSTM,
    MLSTM,
    QRNN,
    RWKV4,
    SHIPPED,
    AntisymmetricRNN,
    Elman,
    IndRNN,
    Mamba,
)
from cellgen.language.value import Role, Value
from cellgen.program.derive import adjoint, forward
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.program.transforms.online import gradients_of, online
from cellgen.proof.check import check
from cellgen.views.explain import explain
from tests.conftest import SIZES, Arrays, draw, relative
from tests.targets.test_cuda import OnHost

ACCURACY = 1e-12
"""Of float64: the same terms, added in another order over all steps."""

STEPS = 4
D, K = Dim("D"), Dim("K")

_EXACT = """
brc ind_rnn ind_rnn_relu sru sru_projection qrnn min_gru min_gru_log min_lstm lru mlstm gla retnet
mamba2 rg_lru s5 para_gru para_lstm"""
EXACT = _EXACT.split()
"""Cells that ship, each unit of whose states reads its own past alone."""

_OWN_UNITS = """
elman elman_relu gru gru_block_cell gru_reset_before lstm lstm_peephole lstm_block_cell cifg
multiplicative_lstm slstm slstm_heads augru mgu janet li_gru ugrnn ran recurrent_highway_3 ltc
co_rnn lem fast_grnn lif phased_lstm nested_lstm alif"""
OWN_UNITS = _OWN_UNITS.split()
"""Cells that ship whose units meet in products by square weights, or square blocks of weights."""

SHIPPED_BY_NAME = {cell.definition.name: cell for cell in SHIPPED}


def named(names: list[str], every_day: int) -> list[object]:
    """Cells by their names; those behind the first few are slow."""
    return [
        pytest.param(
            SHIPPED_BY_NAME[name], id=name, marks=pytest.mark.slow if i >= every_day else ()
        )
        for i, name in enumerate(names)
    ]


def series(cell: type[Cell], steps: int = STEPS) -> tuple[Arrays, Arrays]:
    """Random arguments over time, and gradients of a loss by the outputs of every step."""
    definition = cell.definition
    given = draw(definition.declared, 0)
    for value in definition.with_role(Role.INPUT):
        each = [draw([value], 10 + step)[str(value.name)] for step in range(steps)]
        given[str(value.name)] = np.stack(each)
    rng = np.random.default_rng(3)
    upstream = {
        str(output.name): rng.standard_normal((steps, *shape_sizes(output, SIZES)))
        for output in definition.outputs
    }
    return given, upstream


def through_time(cell: type[Cell], given: Arrays, upstream: Arrays) -> Arrays:
    """Gradients of the parameters by going backward through the steps of the cell itself."""
    definition, program = cell.definition, forward(cell.definition)
    roles = (Role.STATE, Role.WEIGHT, Role.BIAS)
    wanted = [v for v in program.arguments if v.role in roles or v in definition.requested]
    full, adjoints = adjoint(program, definition.outputs, wanted)
    inputs = {str(value.name) for value in definition.with_role(Role.INPUT)}
    state = {str(s.name): given[str(s.name)] for s in definition.states}
    steps = []
    for step in range(STEPS):
        at = {k: a[step] if k in inputs else a for k, a in given.items()} | state
        steps.append({str(v.name): at[str(v.name)] for v in program.arguments})
        found = interpret(program, steps[-1], SIZES)
        state = {str(s.name): found[str(definition.next_state(s).name)] for s in definition.states}
    total: Arrays = {}
    back: Arrays = {}
    for step in reversed(range(STEPS)):
        along = {
            f"d_{o.name}": upstream[str(o.name)][step] + back.get(f"{o.name}_prev", 0)
            for o in definition.outputs
        }
        found = interpret(full, {**steps[step], **along}, SIZES)
        for value in wanted:
            own, name = found[str(adjoints[value].name)], str(value.name)
            if value.role is Role.STATE:
                back[name] = own
            else:
                total[name] = total.get(name, 0) + own
    return total


def step_by_step(made: type[Cell], given: Arrays, upstream: Arrays) -> Arrays:
    """Gradients of the parameters after the last step of an online cell, added over rows."""
    definition, program = made.definition, forward(made.definition)
    inputs = {str(value.name) for value in definition.with_role(Role.INPUT)}
    over_time = {**{f"grad_{name}": array for name, array in upstream.items()}, **given}
    state = {
        str(s.name): given.get(str(s.name), np.zeros(shape_sizes(s, SIZES)))
        for s in definition.states
    }
    for step in range(STEPS):
        at = {k: a[step] if k in inputs else a for k, a in over_time.items()} | state
        found = interpret(program, {str(v.name): at[str(v.name)] for v in program.arguments}, SIZES)
        state = {str(s.name): found[str(definition.next_state(s).name)] for s in definition.states}
    return {name: state[f"{grad}_prev"] for name, grad in gradients_of(made).items()}


def agree(cell: type[Cell], made: type[Cell], given: Arrays, upstream: Arrays) -> None:
    """Compare with back-propagation through time."""
    expected, found = through_time(cell, given, upstream), step_by_step(made, given, upstream)
    constant = {str(value.name) for value in cell.definition.fixed}
    assert {n for n, a in expected.items() if np.any(a)} - constant <= set(found)
    for name, rows in found.items():
        array = expected[name]
        own = rows if array.ndim == rows.ndim else rows.sum(0)
        assert relative(own.reshape(array.shape), array) < ACCURACY, name


@pytest.mark.parametrize("cell", named(["lru", "qrnn", *EXACT], 2))
def test_gradients_are_those_of_a_pass_backward_through_time(cell: type[Cell]) -> None:
    agree(cell, online(cell), *series(cell))


def kernels_agree(
    made: type[Cell], cell: type[Cell], dtype: type = np.float64, kernel: object = None
) -> None:
    """The same by kernels: of the online cell, and of its cell with gradients of weights."""
    given, upstream = ({k: a.astype(dtype) for k, a in arrays.items()} for arrays in series(cell))
    definition = made.definition
    states = {
        str(s.name): given.get(str(s.name), np.zeros(shape_sizes(s, SIZES), dtype))
        for s in definition.states
    }
    read = {str(value.name) for value in definition.declared}
    over_time = {f"grad_{n}": a for n, a in upstream.items() if f"grad_{n}" in read}
    online_kernel: Any = kernel or cellgen.compile(made)
    stepped = online_kernel.sequence_forward(**{**given, **states, **over_time})
    plain = cellgen.load(cell.definition.name)
    run = plain.sequence_forward(**given, save=True)
    outputs = {str(o.name): getattr(run, str(o.name)) for o in cell.definition.outputs}
    along = {f"d_{n}": a for n, a in upstream.items()}
    taken = inspect.signature(plain.sequence_backward).parameters
    words = {k: a for k, a in {**given, **outputs, **along}.items() if k in taken}
    back = plain.sequence_backward(**words, saved=run.saved)
    bar = ACCURACY if dtype is np.float64 else 1e-4
    for name, grad in gradients_of(made).items():
        found, expected = getattr(stepped, f"{grad}_last").sum(0), getattr(back, f"d_{name}")
        assert relative(found, expected) < bar, name


@pytest.mark.parametrize("cell", named(["ind_rnn", *EXACT], 1))
def test_kernels_give_the_gradients_of_a_pass_backward(cell: type[Cell]) -> None:
    kernels_agree(online(cell), cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", named(EXACT, 0))
def test_kernels_of_float32_give_them_too(cell: type[Cell]) -> None:
    kernels_agree(online(cell), cell, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("cell", named(["ind_rnn", "lru", "gla"], 0))
def test_kernels_of_cuda_give_them_in_emulation(cell: type[Cell]) -> None:
    made = online(cell)
    for dtype in (np.float64, np.float32):
        kernel = OnHost(cellgen.compile_cuda(made, emulated=True), np.dtype(dtype).name)
        kernels_agree(made, cell, dtype, kernel)


# --- cells of one's own --------------------------------------------------------------------------


class FusedGates(Cell):
    """Gates side by side, of which states read some: parts of products and of biases."""

    x, h_prev = Input(I), State(H)
    w, b = Weight(I, 4 * H), Bias(4 * H)

    z_bar, o_bar, n_bar, f_bar = split(x @ w + b, 4)
    h = sigmoid(f_bar) * h_prev + sigmoid(z_bar) * tanh(n_bar)
    y = sigmoid(o_bar) * h
    outputs = y, h


class JoinedGates(Cell):
    """Values that are joined, changed as one, and parted again."""

    x, h_prev = Input(I), State(H)
    w_z, w_n, u = Weight(I, H), Weight(I, H), Weight(H)

    z, n = split(tanh(concat(x @ w_z + u * h_prev, x @ w_n)), 2)
    h = h_prev + z * (n - h_prev)


class SharedGate(Cell):
    """One gate for all units, a number that learns, a context that learns, a bias read twice."""

    x, h_prev = Input(I), State(H)
    w, w_z, b = Weight(I, H), Weight(I, 1), Bias(H)
    scale, context = Scalar(0.7, gradient=True), Static(H, gradient=True)

    z = sigmoid(x @ w_z + b)
    h = h_prev + z * (tanh(scale * (x @ w) + context) + b - h_prev)


class Neurons(Cell):
    """Leaky neurons that do not read each other, in two layers of state."""

    x, v_prev, m_prev = Input(I), State(H), State(H)
    w, leak, gain = Weight(I, H), Weight(H), Weight(H)

    v = sigmoid(leak) * v_prev + x @ w - m_prev
    m = 0.5 * m_prev + gain * tanh(v)
    outputs = m, v


class FewerAxes(Cell):
    """Parameters with fewer axes than the matrix that they meet; a name with a ``_`` at its end."""

    x, s_prev = Input(I), State(D, K)
    w_v, w_k, k, d, lambda_ = Weight(I, D), Weight(I, K), Weight(K), Weight(D, 1), Weight(1)

    s = sigmoid(k + d) * s_prev + lambda_ * outer(x @ w_v, x @ w_k) * tanh(k)


class NumberAlone(Cell):
    """A number that learns, as a term of its own beside a matrix."""

    x, s_prev, a = Input(D, K), State(D, K), Scalar(0.5, gradient=True)

    s = s_prev / 2 + tanh(a * x - a)


class RowWeights(Cell):
    """Weights with an axis of length 1 before their units, and what is made of them alone."""

    x, h_prev, w, r, q = Input(I), State(H), Weight(I, H), Weight(1, H), Weight(1, 1)

    g = tanh(r) * q
    h = tanh(x @ w + g) * r + h_prev * sigmoid(g)


@pytest.mark.parametrize(
    "cell", [FusedGates, JoinedGates, SharedGate, Neurons, FewerAxes, NumberAlone, RowWeights]
)
def test_parts_joins_and_broadcast_values_have_exact_traces(cell: type[Cell]) -> None:
    agree(cell, online(cell), *series(cell))


def test_what_reaches_no_state_has_no_trace() -> None:
    states = {str(state.name) for state in online(QRNN).definition.states}
    assert "trace_w_f_prev" in states
    assert "grad_w_o_prev" in states
    assert "trace_w_o_prev" not in states  # the output gate


def test_parameters_and_outputs_are_chosen_by_name() -> None:
    made = online(IndRNN, by=("w",))
    assert dict(gradients_of(made)) == {"w": "grad_w"}
    given, upstream = series(IndRNN)
    whole, one = (step_by_step(c, given, upstream)["w"] for c in (online(IndRNN), made))
    assert np.array_equal(whole, one)

    read = online(LRU, outputs="y")
    declared = {str(value.name) for value in read.definition.declared}
    assert "grad_y" in declared
    assert "grad_h_re" not in declared
    given, upstream = series(LRU)
    quiet = {n: a if n == "y" else 0 * a for n, a in upstream.items()}
    found, expected = step_by_step(read, given, upstream), through_time(LRU, given, quiet)
    for name, rows in found.items():
        assert relative(rows.sum(0), expected[name]) < ACCURACY, name


# --- approximations ------------------------------------------------------------------------------


def with_diagonals(value: Value, array: np.ndarray) -> np.ndarray:
    """A weight whose square blocks, of the last rows, are diagonal."""
    if len(value.shape) < 2 or value.shape[0] == I:
        return array
    columns = array.shape[-1]
    rows = SIZES["H"] if array.ndim == 2 else array.shape[-2]
    if columns % rows or array.shape[-2] < rows:
        return array
    made = array.copy()
    made[..., array.shape[-2] - rows :, :] *= np.tile(np.eye(rows), columns // rows)
    return made


@pytest.mark.parametrize("cell", named(["gru_block_cell", *OWN_UNITS], 1))
def test_snap_1_is_exact_where_no_weight_mixes_units(cell: type[Cell]) -> None:
    given, upstream = series(cell)
    for value in cell.definition.parameters:
        given[str(value.name)] = with_diagonals(value, given[str(value.name)])
    agree(cell, online(cell, approximation="snap-1"), given, upstream)


def test_snap_1_of_the_elman_network_is_that_of_its_paper() -> None:
    """Menick et al. 2021, section 3: the diagonal of the Jacobian carries what a unit's own
    weights did, by hand."""
    given, upstream = series(Elman)
    h, u = given["h_prev"], given["u"]
    traces = {"w": 0.0, "u": 0.0, "b": 0.0}
    sums = {"w": 0.0, "u": 0.0, "b": 0.0}
    for step in range(STEPS):
        x, before = given["x"][step], h
        h = np.tanh(x @ given["w"] + before @ u + given["b"])
        slope = 1 - h**2
        own = (slope * np.diag(u))[:, None]
        reads = {"w": x[:, :, None], "u": before[:, :, None], "b": np.ones((len(x), 1, 1))}
        for name, read in reads.items():
            traces[name] = own * traces[name] + read * slope[:, None]
            sums[name] = sums[name] + upstream["h"][step][:, None] * traces[name]
    found = step_by_step(online(Elman, approximation="snap-1"), given, upstream)
    for name, rows in found.items():
        assert relative(rows, np.squeeze(sums[name], 1) if name == "b" else sums[name]) < ACCURACY


def test_e_prop_of_neurons_that_spike_is_that_of_its_paper() -> None:
    """Bellec et al. 2020, methods: traces of membranes and thresholds, without the recurrent
    weights, by hand; the reset counts, as it does in this cell's gradients."""
    given, upstream = series(ALIF)
    given["threshold"], given["x"] = np.array(0.3), 2 * given["x"]
    v, a, s = (given[f"{name}_prev"] for name in "vas")
    decay, rho, beta, threshold = (given[n] for n in ("decay", "rho", "beta", "threshold"))
    names = ("w", "u", "b")
    e_v, e_a, e_s, sums = (dict.fromkeys(names, 0.0) for _ in range(4))
    for step in range(STEPS):
        x, spikes = given["x"][step], s
        v = decay * v + x @ given["w"] + spikes @ given["u"] + given["b"] - threshold * spikes
        a = rho * a + spikes
        excess = (v - (threshold + beta * a)) / threshold
        s = (excess > 0).astype(float)
        slope = (0.3 * np.maximum(0, 1 - abs(excess)) / threshold)[:, None]
        reads = {"w": x[:, :, None], "u": spikes[:, :, None], "b": np.ones((len(x), 1, 1))}
        for n in names:
            e_a[n] = rho * e_a[n] + e_s[n]
            e_v[n] = decay * e_v[n] - threshold * e_s[n] + reads[n]
            e_s[n] = slope * (e_v[n] - beta * e_a[n])
            along = {"s": e_s[n], "v": e_v[n], "a": e_a[n]}
            for output, trace in along.items():
                sums[n] = sums[n] + upstream[output][step][:, None] * trace
    found = step_by_step(online(ALIF, approximation="e-prop"), given, upstream)
    for n in names:
        expected = np.squeeze(sums[n], 1) if n == "b" else sums[n]
        assert relative(found[n], np.broadcast_to(expected, found[n].shape)) < ACCURACY, n


@pytest.mark.slow
@pytest.mark.parametrize("approximation", ["e-prop", "snap-1"])
@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
def test_every_cell_has_approximations(cell: type[Cell], approximation: str) -> None:
    if cell is AntisymmetricRNN:
        with pytest.raises(DeclarationError, match="forms an expression of u"):
            online(cell, approximation=approximation)
        return
    made = online(cell, approximation=approximation)
    found = step_by_step(made, *series(cell))
    assert all(np.isfinite(array).all() for array in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "approximation"),
    [*((SHIPPED_BY_NAME[name], "") for name in EXACT), (LSTM, "e-prop"), (GRU, "snap-1")],
    ids=str,
)
def test_an_online_cell_is_a_cell_like_any_other(cell: type[Cell], approximation: str) -> None:
    report = check(online(cell, approximation=approximation))
    assert report.ok, str(report)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "words", "message"),
    [
        (GRU, {}, r"online\(GRU\): units of h read other units of h_prev \(`h_prev @ u_z`\)"),
        (GRU, {}, r"pass approximation='e-prop', or approximation='snap-1'"),
        (Mamba, {}, r"units of s read other units of w_r \(`x_w_r @ w_t`\).*leave w_r out of by="),
        (AntisymmetricRNN, {}, "forms an expression of u before an input meets it"),
        (IndRNN, {"approximation": "uoro"}, "approximation is 'uoro', expected one of 'e-prop'"),
        (IndRNN, {"by": "x"}, "by lists 'x', expected names among w, u, b"),
        (IndRNN, {"outputs": "y"}, "outputs lists 'y', expected names among h"),
        (IndRNN, {"by": ()}, "by is empty, expected names among w, u, b"),
        (IndRNN, {"by": 3}, "by is 3, expected names, in a tuple"),
        (IndRNN, {"name": 3}, "name"),
    ],
)
def test_what_is_refused_is_told(cell: type[Cell], words: dict[str, object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        online(cell, **words)  # type: ignore[arg-type]


def test_gradients_are_told_of_online_cells_alone() -> None:
    with pytest.raises(DeclarationError, match="IndRNN is no online cell"):
        gradients_of(IndRNN)


def test_approximations_are_marked() -> None:
    made = online(LIF, approximation="e-prop")
    assert made.definition.name == "lif_online_e_prop"
    assert made.__name__ == "OnlineEPropLIF"
    assert made.definition.doc.startswith("Approximate online gradients (e-prop, Bellec et al.")
    assert online(LIF, approximation="snap-1").definition.name == "lif_online_snap_1"
    said = str(explain(online(Elman, approximation="snap-1", by="b")))
    assert "gradients that states hold are approximate: snap-1" in said
    assert online(IndRNN).definition.doc.startswith("Online gradients of:")


def test_a_matrix_memory_learns_online() -> None:
    """States of heads with matrices: the trace of a weight has the axes of both."""
    traces = {str(s.name): s.shape[1:] for s in online(MLSTM, by="w_k").definition.states}
    n, d, k, i = (value for value in ("N", "D", "K", "I"))
    assert [str(axis) for axis in traces["trace_c_w_k_prev"]] == [i, n, d, k]


def test_some_parameters_of_a_cell_that_mixes_others_learn() -> None:
    agree_by = online(RWKV4, by=("w_k", "w_v", "w_o", "w_r", "decay", "u"), outputs="h")
    given, upstream = series(RWKV4)
    quiet = {n: a if n == "h" else 0 * a for n, a in upstream.items()}
    expected = through_time(RWKV4, given, quiet)
    for name, rows in step_by_step(agree_by, given, upstream).items():
        assert relative(rows.sum(0), expected[name]) < ACCURACY, name


class TakenNames(Cell):
    """Weights named as online cells name traces and gradients."""

    x, h_prev, w, grad_w_prev = Input(I), State(H), Weight(I, H), Bias(H)
    u, trace_w_prev = Weight(H), Weight(H)

    h = tanh(x @ w + u * h_prev) * trace_w_prev + grad_w_prev


def test_names_that_are_taken_are_left_to_their_owners() -> None:
    made = online(TakenNames)
    assert gradients_of(made)["w"] == "grad_w_2"
    agree(TakenNames, made, *series(TakenNames))
