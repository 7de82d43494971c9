"""The zoo's benchmark: loops written from equations, contestants, files, claims; never a time."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os

import numpy as np
import pytest

import cellgen
from cellgen.bench import claims, zoo
from cellgen.bench.case import TOLERANCE, VANISHING, compare
from cellgen.bench.floor import Floor
from cellgen.bench.measure import measure
from cellgen.bench.peers import Peer, own
from cellgen.bench.plan import Plan
from cellgen.bench.problem import Mode, problem_of
from cellgen.bench.process import Patience, Worker, WorkerError
from cellgen.bench.report import BenchReport, Case, ContestantEntry, Status
from cellgen.bench.shapes import NAMED, BenchShape
from cellgen.cells import SHIPPED
from cellgen.errors import UsageError
from cellgen.language.cell import Cell, Input, Scalar, State, Weight
from cellgen.language.ops import (
    clip,
    concat,
    cummax,
    cumprod,
    cumsum,
    logcumsumexp,
    part,
    stop_gradient,
    tanh,
    transpose,
    units_max,
    where,
)
from cellgen.language.value import H, I, Role
from cellgen.program.interpret import shape_sizes
from cellgen.proof.over_time import run_steps
from cellgen.runtime.paths import PACKAGE
from cellgen.targets.python.loop import LIBRARY, loop_of
from tests.conftest import VARIANTS
from tests.cover import each_of, of_all, of_equations

TINY = BenchShape(3, 2, 4, 8, "tiny")
RESULTS = PACKAGE.parent / "benchmarks" / "results" / "zoo.json"
DOCUMENT = PACKAGE.parent / "docs" / "reference" / "every-cell.md"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def first_max(a, axes):
    flat = a.reshape(*a.shape[: a.ndim - axes], -1)
    return np.eye(flat.shape[-1])[flat.argmax(-1)].reshape(a.shape)


NUMPY = {
    "cg_exp": np.exp,
    "cg_expm1": np.expm1,
    "cg_log": np.log,
    "cg_log1p": np.log1p,
    "cg_tanh": np.tanh,
    "cg_sigmoid": sigmoid,
    "cg_softplus": lambda x: np.log1p(np.exp(x)),
    "cg_log_sigmoid": lambda x: np.log(sigmoid(x)),
    "cg_erf": np.vectorize(math.erf),
    "cg_sqrt": np.sqrt,
    "cg_sin": np.sin,
    "cg_cos": np.cos,
    "cg_pow": np.power,
    "cg_abs": np.abs,
    "cg_sign": np.sign,
    "cg_floor": np.floor,
    "cg_round": np.round,
    "cg_atan2": np.arctan2,
    "cg_relu": lambda x: np.maximum(x, 0),
    "cg_hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "cg_maximum": np.maximum,
    "cg_minimum": np.minimum,
    "cg_clip": np.clip,
    "cg_gt": np.greater,
    "cg_ge": np.greater_equal,
    "cg_lt": np.less,
    "cg_le": np.less_equal,
    "cg_where": lambda condition, a, b: np.where(condition != 0, a, b),
    "cg_stop": lambda x: x,
    "cg_concat": np.concatenate,
    "cg_sum": lambda a, axes: a.sum(axis=axes, keepdims=True),
    "cg_first_max": first_max,
    "cg_cumsum": lambda a, axis: a.cumsum(axis=axis),
    "cg_cumprod": lambda a, axis: a.cumprod(axis=axis),
    "cg_cummax": lambda a, axis: np.maximum.accumulate(a, axis=axis),
    "cg_logcumsumexp": lambda a, axis: np.logaddexp.accumulate(a, axis=axis),
    "cg_into_heads": lambda a, w: np.tensordot(a, w, axes=1),
    "cg_heads": lambda a, w: np.einsum("...kd,kde->...ke", a, w),
}


class Rare(Cell):
    """Operators that no cell that ships uses: maxima, running sums, parts of weights."""

    x, h_prev, w, u = Input(I), State(H), Weight(I, 2 * H), Weight(H, H)
    limit = Scalar(0.4)

    a = x @ part(w, 1, 0, H) - x @ part(w, 1, H, H) + h_prev @ transpose(u)
    along = cumprod(1 + a) - cummax(a) + logcumsumexp(a)
    e = tanh(cumsum(a) - units_max(a) * stop_gradient(h_prev) + along)
    limited = where(limit > 0, clip(e, -limit, limit, gradient="straight_through"), e)
    both = concat(limited, h_prev)
    h = part(both, 1, H, H) - part(both, 1, 0, H)


def sizes_of(cell):
    return TINY.sizes_of(str(dim) for dim in cell.definition.dims)


# --- loops from equations ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", [*each_of(of_equations), *VARIANTS, Rare], ids=lambda cell: cell.definition.name
)
def test_a_loop_computes_what_the_equations_say(cell):
    definition, sizes = cell.definition, sizes_of(cell)
    rng = np.random.default_rng(2)
    values = [v for v in definition.declared if v.shape]
    arrays = {}
    for value in values:
        steps = (TINY.T,) if value.role is Role.INPUT else ()
        size = (*steps, *shape_sizes(value, sizes))
        arrays[str(value.name)] = rng.uniform(0.2, 0.8, size)  # positive: no denominator is near 0
    loop = loop_of(definition, sizes)
    before, step = loop.functions(NUMPY)
    made = before(*(arrays[name] for name in loop.arguments))
    each, fixed = made[: len(loop.each)], made[len(loop.each) :]
    states, outputs = [arrays[name] for name in loop.states], []
    for t in range(TINY.T):
        found = step(*(value[t] for value in each), *states, *fixed)
        outputs.append(found[: len(loop.outputs)])
        states = found[len(loop.outputs) :]
    expected = run_steps(definition, arrays, sizes)
    for index, name in enumerate(loop.outputs):
        over_time = np.array([found[index] for found in outputs])
        # float64 sums of some ten terms in another order: 1e-15 each, grown over three steps.
        np.testing.assert_allclose(over_time, expected.outputs[name], rtol=1e-11, atol=1e-12)


def test_what_waits_for_no_state_and_shares_its_input_is_one_product_beforehand():
    loop = loop_of(cellgen.cells.GRU.definition, TINY.sizes)
    before, step = loop.source.split("def step")
    assert before.count("@") == 1
    assert step.count("@") == 1
    assert loop.states == ("h_prev",)
    assert loop.following == loop.outputs == ("h",)


def test_a_stated_derivative_is_written_out_and_scalars_are_numbers():
    source = loop_of(cellgen.cells.LIF.definition, TINY.sizes).source
    assert "cg_stop(1 / (10 *" in source
    assert "threshold" not in source
    clipped = loop_of(cellgen.cells.LSTMBlockCell.definition, TINY.sizes).source
    assert "cg_where" not in clipped


def test_a_library_that_lacks_functions_is_refused():
    loop = loop_of(cellgen.cells.Elman.definition, TINY.sizes)
    with pytest.raises(UsageError, match="cg_tanh"):
        loop.functions({name: NUMPY[name] for name in LIBRARY if name != "cg_tanh"})


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("cell", each_of(of_all))
def test_a_library_computes_what_the_kernel_does_with_every_gradient(library, cell):
    pytest.importorskip(library)
    module = importlib.import_module(f"cellgen.bench.peers.{library}_loop")
    name = cell.definition.name
    problem = problem_of(cellgen.load(name).interface, name, TINY)
    for mode in Mode:
        reference, loop = own.prepare(problem, mode, 1), module.prepare(problem, mode, 1)
        found, expected = loop.results(loop.run()), reference.results(reference.run())
        peer = Peer(library, "", cells=None)
        entry = compare(peer, found, expected, VANISHING.get(name, ()))
        # float32 on both sides over three steps: some 1e-6, a hundredth of what a run allows.
        assert entry.status is Status.TIMED, entry.text
        assert entry.error <= TOLERANCE / 50, entry


# --- contestants ---------------------------------------------------------------------------------


def test_a_vanishing_gradient_is_judged_beside_the_others():
    peer, reference = Peer("p", ""), {"d_b_i": np.array([1e-9]), "d_w": np.array([1.0])}
    found = {"d_b_i": np.array([-1e-8]), "d_w": np.array([1.0])}
    assert compare(peer, found, reference).status is Status.DIFFERS
    assert compare(peer, found, reference, ("d_b_i",)).status is Status.TIMED
    found["d_b_i"] = np.array([1e-2])
    assert compare(peer, found, reference, ("d_b_i",)).status is Status.DIFFERS


@pytest.mark.slow
def test_yardsticks_are_timed_and_compete_with_nobody():
    plan = Plan(
        cells=("min_gru",),
        peers=(*zoo.kernels(["min_gru"]), zoo.GEMM),
        shapes=(TINY,),
        rounds=2,
        sgemm_size=64,
        copy_bytes=1 << 16,
        timed_seconds=1e-4,
        limit=60,
    )
    report = measure(plan, lambda text: None, lambda case: None)
    for case in report.cases:
        by_name = {entry.name: entry for entry in case.entries}
        assert set(by_name) == {"cellgen", "cellgen lstm", "input GEMM"}
        assert by_name["cellgen lstm"].status is by_name["input GEMM"].status is Status.YARDSTICK
        assert len(by_name["input GEMM"].seconds) == 2
        assert case.best_peer is None
    run = zoo.ZooRun("uniform", "command", ("a",), report)
    found = zoo.Zoo((), {}).with_runs([run])
    assert zoo.zoo_from(json.loads(json.dumps(zoo.zoo_data(found)))) == found
    figures = claims.Figures(found)
    assert figures.by_work("min_gru", TINY.text, Mode.BOTH) > 0
    assert {claim.text for claim in claims.claims(found)} == {
        "`min_gru` by its bare input products"
    }


def test_a_peer_that_takes_too_long_is_ended_and_may_try_again(tmp_path, monkeypatch):
    text = (
        "import time\n"
        "from cellgen.bench.peers import Prepared\n"
        "def prepare(problem, mode, threads):\n"
        "    if mode == 'forward':\n"
        "        time.sleep(600)\n"
        "    return Prepared(lambda: None, lambda found: {})\n"
    )
    (tmp_path / "slow_peer.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    problem = problem_of(cellgen.load("lstm").interface, "lstm", TINY)
    with Worker(Peer("slow", "slow_peer"), 1, Patience(limit=60)) as worker:
        worker.wait_until_imported()
        worker.patience = Patience(0.2)
        with pytest.raises(WorkerError, match="took longer than"):
            worker.prepare(problem, Mode.FORWARD)
        worker.patience = Patience(60)
        worker.prepare(problem, Mode.BOTH)
        assert worker.results() == {}


# --- plans, files, claims ------------------------------------------------------------------------


def test_multiply_adds_count_every_product_of_every_step():
    shape = NAMED["W2"]
    forward = shape.T * shape.B * 4 * (shape.I + shape.H) * shape.H
    lstm = zoo.work_of("lstm")
    assert lstm.products[f"forward {shape.text}"] == forward
    assert lstm.products[f"forward+backward {shape.text}"] == 3 * forward
    heads = zoo.work_of("slstm_heads").products
    units = shape.H // 4
    by_head = shape.T * shape.B * 4 * (shape.I * shape.H + shape.H * units)
    assert heads[f"forward {shape.text}"] == by_head
    assert heads[f"forward+backward {shape.text}"] == 3 * by_head


def test_parts_have_plans_and_unknown_names_are_refused():
    every = zoo.plans(["uniform"], [], zoo.LOOPS, 1)["uniform"]
    assert len(every.cells) == len(SHIPPED)
    assert {peer.name for peer in every.peers} == {
        "cellgen lstm",
        "cellgen gru_reset_before",
        "input GEMM",
    }
    assert zoo.plans(["loops"], [], [Peer("x", "x", ("no_such_module",))], 1) == {}
    with pytest.raises(UsageError, match="nosuch"):
        zoo.plans(["uniform"], ["nosuch"], zoo.LOOPS, 1)


def made(cell, mode, shape, **seconds):
    """A case in which contestants took so many seconds."""
    yardsticks = ("cellgen lstm", "cellgen gru_reset_before", "input GEMM")
    entries = [
        ContestantEntry(
            name.replace("_by_", " "),
            Status.YARDSTICK if name.replace("_by_", " ") in yardsticks else Status.TIMED,
            (time, time),
        )
        for name, time in seconds.items()
    ]
    floor = Floor(1, 1, 1.0, 1.0, "products")
    return Case(cell, mode, shape, 1, floor, tuple(entries))


def made_zoo():
    shape = NAMED["W2"]
    cases = (
        made("elman", Mode.FORWARD, shape, cellgen=0.4, cellgen_by_lstm=1.0),
        made("cifg", Mode.FORWARD, shape, cellgen=0.75, cellgen_by_lstm=1.0),
        made("min_gru", Mode.FORWARD, shape, cellgen=1.2, input_by_GEMM=1.0),
        made("slstm", Mode.BOTH, shape, cellgen=1.0, jax_by_scan=3.5, torch_by_loop=2.5),
    )
    late = ContestantEntry("torch compiled", Status.FAILED, text="took longer than 60 s")
    cases = (*cases[:3], dataclasses.replace(cases[3], entries=(*cases[3].entries, late)))
    device = {"processor": "a processor", "date": "2026-01-01T00:00", "versions": {"numpy": "2"}}
    report = BenchReport(device, 2, (), (), cases)
    run = zoo.ZooRun("uniform", "python -m benchmarks.zoo", ("all",), report)
    return zoo.Zoo((), {}).with_runs([run])


def test_claims_are_judged_by_work_products_and_the_best_loop():
    found = {claim.text: claim for claim in claims.claims(made_zoo())}
    uniform = found["dense cells by `lstm`, time per multiply-add, the worst"]
    assert uniform.figure == pytest.approx(1.6)  # 0.4 of the time for a quarter of the products
    assert not uniform.holds
    assert uniform.remark == "`elman`; 1 of 2 within"
    assert found["`min_gru` by its bare input products"].holds
    loops = found["`slstm`, times faster than the best loop"]
    assert loops.figure == pytest.approx(2.5)
    assert not loops.holds
    assert loops.remark.startswith("torch loop")


def test_a_later_run_of_the_same_contestants_replaces_the_earlier():
    first = made_zoo()
    other = dataclasses.replace(first.runs[0], command="again")
    assert [run.command for run in first.with_runs([other]).runs] == ["again"]
    third = dataclasses.replace(other, contestants=("jax scan",))
    assert len(first.with_runs([other, third]).runs) == 2


def test_the_section_holds_claims_cells_and_what_was_left_out():
    text = claims.in_document(f"before\n{claims.BEGIN}\nold\n{claims.END}\nafter\n", made_zoo())
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| 1.60 | at most 1.2 | **fail** | `elman`; 1 of 2 within |" in text
    assert "| `slstm` | dense, 1 | `lstm` |" in text
    assert "took longer than 60 s" in text
    with pytest.raises(UsageError, match="no <!-- zoo: begin -->"):
        claims.in_document("nothing", made_zoo())


def test_the_document_shows_the_figures_that_are_kept():
    text = DOCUMENT.read_text(encoding="utf-8")
    if not RESULTS.exists():
        assert claims.BEGIN in text
        return
    assert claims.in_document(text, zoo.read_zoo(RESULTS)) == text
