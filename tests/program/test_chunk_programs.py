"""Programs of whole chunks agree with the steps: forward, gradients, all options, any gates."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from cellgen import (
    Bias,
    Cell,
    Dim,
    I,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    exp,
    expand_dims,
    l2_normalise,
    log,
    log_sigmoid,
    maximum,
    outer,
    sigmoid,
    softplus,
    sqrt,
    tanh,
)
from cellgen import sum as units_sum
from cellgen.cells import LSTM, MLSTM, RWKV4, RWKV7, DeltaNet, GatedLinearAttention, MinGRU, RetNet
from cellgen.cli.commands import app
from cellgen.errors import ArgumentError, DerivationError
from cellgen.language.value import Apply, Role
from cellgen.program.chunks import Memory, form_over_time, lines_of
from cellgen.program.chunks.programs import NO_FORM, chunk_programs
from cellgen.program.derive import tangent
from cellgen.program.interpret import STEP, interpret, shape_sizes
from cellgen.program.ssa import Statement
from cellgen.proof.check import check
from cellgen.proof.check.chunks import prove_chunks
from cellgen.proof.over_chunks import ChunkRun
from cellgen.proof.over_time import run_steps
from cellgen.runtime.options import Options
from cellgen.views.chunks import as_data, as_latex, as_text, sections
from tests.cover import Traits, each_of, operators_of
from tests.program.test_chunks import QUALIFY, AskedByALater, Fed, KeptRest, names

D, K, N, P = Dim("D"), Dim("K"), Dim("N"), Dim("P")


class ErasedTwice(Cell):
    """Two reads are erased at once, keys decay, a query reads the matrix before the step too."""

    x, s_prev = Input(I), State(N, K, D)
    w_q, w_p, w_k, w_l = Weight(I, N, K), Weight(I, N, K), Weight(I, N, K), Weight(I, N, K)
    w_v, w_b, w_g, w_a = Weight(I, N, D), Weight(I, N, 1), Weight(I, N, 1), Weight(I, N, K)
    k, l = l2_normalise(x @ w_k, epsilon=1e-6), l2_normalise(x @ w_l, epsilon=1e-6)
    beta, gamma = sigmoid(x @ w_b), sigmoid(x @ w_g)
    alpha = exp(-softplus(x @ w_a))
    s = (
        expand_dims(alpha, -1) * s_prev
        - outer(beta * k, k @ s_prev)
        - outer(gamma * l, l @ s_prev)
        + outer(k, x @ w_v)
    )
    h = tanh((x @ w_q) @ s) + (x @ w_p) @ s_prev
    outputs = h, s


class Chained(Cell):
    """A running maximum gates a memory; what is read gates coupled states and a second memory."""

    x, ctx = Input(I), Static(D)
    m_prev, s_prev = State(1, initial=-math.inf), State(D, K)
    a_prev, b_prev, c_prev = State(D, initial=0.5), State(D), State(D)
    t_prev = State(D, K)
    gain = Scalar(0.7, gradient=True)
    w_m, w_k, w_v, w_q, f_m = Weight(I, 1), Weight(I, K), Weight(I, D), Weight(I, K), Bias(1)
    turn, drift = Weight(D), Weight(D)

    k, q, v = x @ w_k, x @ w_q, x @ w_v
    rise = log_sigmoid(f_m)
    m = maximum(x @ w_m, m_prev + rise)
    kept = exp(m_prev + rise - m)
    s = expand_dims(kept, -1) * s_prev + outer(v, k)
    y = tanh(s @ q)
    a = turn * a_prev - y * b_prev + v
    b = y * a_prev + turn * b_prev + drift * c_prev
    c = c_prev + gain * (a_prev + ctx)
    t = expand_dims(sigmoid(m), -1) * t_prev + outer(y, k)
    h = t @ q + a * c
    outputs = h, a, b, c, m, s, t


class Counted(Cell):
    """No heads; a product of gates decays a vector and a matrix by one number, written two ways."""

    x, n_prev, s_prev = Input(I), State(K), State(D, K)
    w_a, w_b, w_k, w_v = Weight(I, 1), Weight(I, 1), Weight(I, K), Weight(I, D)
    a, b, k = sigmoid(x @ w_a), sigmoid(x @ w_b), softplus(x @ w_k)
    n = (1 - a) * b * n_prev + k
    s = expand_dims((1 - a) * b, -1) * s_prev + outer(x @ w_v, k)
    h = (s @ k) / (1 + units_sum(n * k))
    outputs = h, n, s


OWN = (ErasedTwice, Chained, Counted, Fed, KeptRest, AskedByALater)


def of_chunks(cell: type[Cell]) -> Traits:
    """What a chunk's programs depend on: the form over time beside operators of the equations."""
    layers = names(cell)
    forms = {
        ("layers", *(kind for kind, *_ in layers)),
        *(("layer", *layer[:1]) for layer in layers),
    }
    return operators_of(cell) | forms


@pytest.mark.parametrize("cell", each_of(of_chunks, (*OWN, *QUALIFY)))
def test_chunks_agree_with_steps(cell: type[Cell]) -> None:
    report = check(cell, form="chunk")
    assert report.ok, str(report)
    figures = [row.figure for row in report.rows]
    assert all(figure is not None for figure in figures)
    assert max(figures) > 0  # another order of sums: not the step's own numbers


def drawn(cell: type[Cell], steps: int, scale: float = 1.0, seed: int = 0):
    """Arguments of a cell and the lengths of its dimensions."""
    definition, rng = cell.definition, np.random.default_rng(seed)
    lengths = {"B": 2, "I": 3, "H": 4, "N": 2, "D": 3, "K": 4, "P": 3, "R": 2}
    sizes = {str(dim): lengths[str(dim)] for dim in definition.dims} | {"T": steps}
    arguments = {}
    for value in definition.declared:
        if value.role is Role.SCALAR:
            continue
        shape = shape_sizes(value, sizes)
        timed = (steps, *shape) if value.role is Role.INPUT else shape
        arguments[str(value)] = scale * rng.standard_normal(timed)
    return arguments, sizes


def largest(found, expected) -> float:
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


def test_rows_with_strong_gates_are_done_again_and_others_are_not() -> None:
    """Plain products hold for the weak row; for the strong one they overflow, and are not taken."""
    arguments, sizes = drawn(GatedLinearAttention, 40)
    arguments["w_a"] *= 0
    arguments["b_a"] = np.array([[4.0] * 4, [-1600.0, 4.0, 4.0, 4.0]])  # of the second head's keys
    arguments["b_a"][1, 0] = -16000.0
    exact = run_steps(GatedLinearAttention.definition, arguments, sizes)
    run = ChunkRun(GatedLinearAttention.definition, arguments, sizes, length=40)
    chunks = run.forward()
    (memory,) = run.passes
    assert memory.marked is not None
    assert memory.marked.tolist() == [[0, 1], [0, 1]]
    assert largest(chunks.outputs["h"], exact.outputs["h"]) < 1e-13
    factored = interpret(
        run.programs.layers[0].factored,
        memory.arguments(memory.starts[0][0], slice(0, 40)),
        {**sizes, "C": 40},
    )
    assert not np.isfinite(factored["s_read"]).all()
    gradients = run.backward({f"d_{n}": np.ones_like(a) for n, a in chunks.results.items()})
    assert all(np.isfinite(array).all() for array in gradients.values())


def test_a_proven_bound_says_how_long_a_chunk_of_plain_products_may_be() -> None:
    layer = chunk_programs(RWKV7.definition).layers[1]
    assert layer.safe_steps == 98  # 60 / exp(-1/2)
    assert chunk_programs(GatedLinearAttention.definition).layers[0].safe_steps == 0
    arguments, sizes = drawn(RWKV7, 64)
    run = ChunkRun(RWKV7.definition, arguments, sizes, length=64)
    run.forward()
    assert run.passes[1].programs == (layer.factored,)


def test_a_decay_that_is_a_weight_must_not_be_negative() -> None:
    arguments, sizes = drawn(RetNet, 5)
    arguments["gamma"] = np.full_like(arguments["gamma"], 0.9)
    arguments["gamma"][1] = -0.25
    with pytest.raises(ArgumentError, match=r"retnet: gamma is -0.25 somewhere, expected num"):
        ChunkRun(RetNet.definition, arguments, sizes)


def test_a_decay_of_zero_forgets() -> None:
    arguments, sizes = drawn(RetNet, 20)
    arguments["gamma"] = np.array([0.0, 0.5]).reshape(2, 1, 1)
    exact = run_steps(RetNet.definition, arguments, sizes)
    chunks = ChunkRun(RetNet.definition, arguments, sizes, length=8).forward()
    assert largest(chunks.outputs["h"], exact.outputs["h"]) < 1e-13


class Begun(Cell):
    """A memory that does not start from zeros."""

    x, s_prev = Input(I), State(D, K, initial=1.0)
    w_k, w_v = Weight(I, K), Weight(I, D)
    k = x @ w_k
    s = s_prev + outer(x @ w_v, k)
    h = s @ k
    outputs = h, s


def test_a_memory_that_is_reset_to_a_number_is_refused() -> None:
    assert chunk_programs(Begun.definition).layers
    with pytest.raises(DerivationError, match=r"begun: s_prev starts from 1.0; in chunks a memory"):
        chunk_programs(Begun.definition, gaps=True)


def test_a_cell_without_a_form_over_time_is_refused_with_the_statement() -> None:
    with pytest.raises(DerivationError, match=r"lstm has no form over time: .*`h_prev @ u_o`") as e:
        chunk_programs(LSTM.definition)
    assert e.value.code == NO_FORM


def test_a_cell_with_a_dimension_of_that_name_has_chunks_of_another() -> None:
    class Channels(Cell):
        x, h_prev = Input(Dim("C")), State(Dim("C"))
        h = sigmoid(x) * h_prev + x

    assert str(chunk_programs(Channels.definition).length) == "L"
    assert check(Channels, form="chunk").ok


@pytest.mark.parametrize("cell", [DeltaNet, RWKV7, MLSTM, Chained], ids=lambda c: c.definition.name)
def test_tangents_of_chunk_programs_follow_the_complex_step(cell: type[Cell]) -> None:
    rng = np.random.default_rng(0)
    programs = chunk_programs(cell.definition)
    sizes = {"B": 2, "I": 3, "H": 4, "N": 2, "D": 3, "K": 4, "R": 2, str(programs.length): 5}
    for chunk in programs.layers:
        for program in (chunk.program, chunk.factored):
            if program is None:
                continue
            given = {str(v): rng.random(shape_sizes(v, sizes)) - 1 for v in program.arguments}
            along = {n: rng.standard_normal(a.shape) for n, a in given.items()}
            moved = {n: a + 1j * STEP * along[n] for n, a in given.items()}
            true = interpret(program, moved, sizes)
            moving = tangent(program, program.arguments)
            names = moving.arguments[len(program.arguments) :]
            directions = {str(t): along[n] for t, n in zip(names, given, strict=True)}
            derived = interpret(moving, given | directions, sizes)
            results = moving.results[len(program.results) :]
            for result, one in zip(program.results, results, strict=True):
                expected = np.imag(true[str(result)]) / STEP
                np.testing.assert_allclose(derived[str(one)], expected, rtol=1e-11, atol=1e-11)


WRONG = {
    "lower": "strictly_lower",
    "decayed_nt": "decayed_nt",
    "cumsum": "cumsum_reversed",
    "unit_lower_solve": "unit_lower_solve_transposed",
    "linear_scan": "linear_scan_transposed",
    "shifted": "shifted_back",
}


@pytest.mark.parametrize("op", WRONG)
def test_a_wrong_statement_is_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One operator of a chunk program is another one: some row fails."""
    cells = {"linear_scan": MinGRU, "shifted": RWKV4, "decayed_nt": GatedLinearAttention}
    cell = cells.get(op, DeltaNet if op != "cumsum" else RetNet)

    def spoiled(expression):
        if not isinstance(expression, Apply) or expression.op != op:
            return expression
        flipped = [1 - n for n in expression.attributes] if op == "decayed_nt" else None
        return Apply(WRONG[op], expression.operands, flipped or expression.attributes)

    def wrong(definition, gaps=False):
        right = chunk_programs(definition, gaps)
        layers = []
        for layer in right.layers:
            program = layer.program
            spoilt = [Statement(s.target, spoiled(s.expression)) for s in program.statements]
            layers.append(replace(layer, program=program.with_statements(spoilt)))
        return replace(right, layers=tuple(layers))

    monkeypatch.setattr("cellgen.proof.over_chunks.chunk_programs", wrong)
    rows = prove_chunks(cell.definition, np.random.default_rng(0))
    assert any(row.verdict == "failed" for row in rows), op


class Rooted(Cell):
    """Its steps are numbers where its inputs are positive."""

    x, h_prev, f = Input(D), State(D), Bias(D)
    h = sigmoid(f) * h_prev + sqrt(x)


class NoNumber(Cell):
    x, h_prev, f = Input(D), State(D), Bias(D)
    h = sigmoid(f) * h_prev + log(-1 - x * x)


def test_cells_of_positive_numbers_are_compared_at_such() -> None:
    rows = prove_chunks(Rooted.definition, np.random.default_rng(0))
    assert {row.verdict for row in rows} == {"ok"}
    assert all("runs with positive arguments" in row.note for row in rows)
    assert not any("left out" in row.note for row in rows)
    assert all(row.figure > 0 for row in rows if "gradients" in row.name)


def test_steps_that_are_masked_are_zeros_whatever_an_equation_gives_there() -> None:
    options = Options(mask=np.array([[True], [False]]), zero_output_for_mask=True)
    arguments = {"x": np.ones((2, 1, 1)), "h_prev": np.zeros((1, 1)), "f": np.zeros(1)}

    class Logged(Cell):
        x, h_prev, f = Input(D), State(D), Bias(D)
        h = sigmoid(f) * h_prev + log(x)

    sizes = {"B": 1, "T": 2, "D": 1}
    assert run_steps(Logged.definition, arguments, sizes, options).outputs["h"].tolist() == [
        [[0.0]],
        [[0.0]],
    ]


def test_rows_that_compared_nothing_are_skipped_with_the_reason() -> None:
    rows = prove_chunks(NoNumber.definition, np.random.default_rng(0))
    assert len(rows) == 6
    assert {(row.verdict, row.figure) for row in rows} == {("skipped", None)}
    assert all("nothing was compared" in row.note for row in rows)


@pytest.mark.parametrize("name", ["x", "h_prev", "f"])
def test_a_gradient_that_is_not_formed_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ChunkRun.backward

    def without(self, upstream):
        return {n: array for n, array in whole(self, upstream).items() if n != name}

    monkeypatch.setattr(ChunkRun, "backward", without)
    rows = prove_chunks(Rooted.definition, np.random.default_rng(0))
    bad = [row for row in rows if row.verdict == "failed"]
    assert len(bad) == 3
    assert all(row.figure == math.inf and f"d_{name} inf" in row.note for row in bad)


def test_the_command_line_proves_chunks() -> None:
    done = CliRunner().invoke(
        app, ["check", "--form", "chunk", "min_gru", "lstm", "--json", "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    gru, lstm = json.loads(done.stdout)
    assert {row["verdict"] for row in gru["rows"]} == {"ok"}
    assert [row["verdict"] for row in lstm["rows"]] == ["skipped"]
    assert "`h_prev @ u_o` mixes units of a state" in lstm["rows"][0]["note"]
    wrong = CliRunner().invoke(app, ["check", "--form", "chunks", "min_gru"])
    assert wrong.exit_code == 2
    assert "--form chunks: expected one of step, chunk" in wrong.output


def test_outputs_that_are_memories_are_formed_at_the_end_alone() -> None:
    programs = chunk_programs(GatedLinearAttention.definition)
    assert [str(v) for v in programs.outputs] == ["h"]
    assert isinstance(form_over_time(GatedLinearAttention.definition).layers[0], Memory)


@pytest.mark.parametrize("cell", [*QUALIFY, *OWN], ids=lambda cell: cell.definition.name)
def test_every_form_over_time_is_shown(cell: type[Cell]) -> None:
    definition, programs = cell.definition, chunk_programs(cell.definition)
    text, data = as_text(definition), as_data(definition)
    assert all(line in text for line in lines_of(programs.form))
    functions = [section.name for section in sections(programs)]
    assert functions.count("streams") == len(programs.layers)
    assert [f["name"] for f in data["functions"]] == functions
    for chunk in programs.layers:
        for result in chunk.program.results:
            assert f"  {result} = " in text or result in chunk.program.arguments, result
    drawn = as_latex(definition)
    assert drawn.count("\\begin{align*}") == len(functions)
    assert drawn.count("{") == drawn.count("}")
    json.dumps(data)


def test_the_command_line_shows_chunks() -> None:
    run = CliRunner().invoke
    shown = run(app, ["show", "delta_net", "--form", "chunk"])
    assert shown.exit_code == 0
    assert "nu = solve(I + M, wanted)" in shown.stdout
    assert (
        json.loads(run(app, ["show", "rwkv7", "--form", "chunk", "--json"]).stdout)["layers"][1][
            "safe_steps"
        ]
        == 98
    )
    assert "\\begin{align*}" in run(app, ["show", "gla", "--form", "chunk", "--latex"]).stdout
    refused = run(app, ["show", "lstm", "--form", "chunk"])
    assert refused.exit_code == 1
    assert "lstm has no form over time: h_prev, c_prev: `h_prev @ u_o` mixes" in refused.output
    wrong = run(app, ["show", "gla", "--form", "chunk", "--schedule"])
    assert wrong.exit_code == 2
