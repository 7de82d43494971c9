"""The benchmark: its floor, its check of results, its records; never a time.

Whole runs use tiny shapes, the NumPy peer and peers that are made here to be wrong in some way.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import statistics
import xml.etree.ElementTree as ET
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import cellgen
from benchmarks import figures, plans, two_checkouts, where
from cellgen.bench import measure as measuring
from cellgen.bench import memory
from cellgen.bench.case import TOLERANCE, compare, difference
from cellgen.bench.claims import between
from cellgen.bench.floor import Floor, Rates, floor_of
from cellgen.bench.measure import measure
from cellgen.bench.peers import OWN, PEERS, Peer, parse_peers
from cellgen.bench.peers import own as own_kernels
from cellgen.bench.plan import Plan, quick_plan
from cellgen.bench.plot import draw
from cellgen.bench.problem import Mode, problem_of
from cellgen.bench.process import Patience, Worker, WorkerError, environment, processors
from cellgen.bench.report import (
    BenchReport,
    Case,
    ContestantEntry,
    Status,
    as_data,
    from_data,
    interquartile_range,
)
from cellgen.bench.shapes import NAMED, BenchShape, parse_shapes
from cellgen.bench.table import print_report
from cellgen.cli import bench as command
from cellgen.cli import commands as cli
from cellgen.errors import UsageError
from cellgen.runtime.paths import PACKAGE
from tests.conftest import typical_cell

TINY = BenchShape(3, 2, 4, 5, "tiny")
SMALL = BenchShape(7, 3, 6, 18, "small")
BY_HAND = parse_peers("numpy")[0]
LAYERS = ("lstm", "gru", "gru_reset_before")

WRONG = """
from dataclasses import replace
from cellgen.bench.peers import by_hand

def prepare(problem, mode, threads):
    right = by_hand.prepare(problem, mode, threads)

    def results(found):
        named = right.results(found)
        print("chatter on stdout")
        return {**named, "d_b_f": named["d_b_f"] * 1.01} if "d_b_f" in named else named

    return replace(right, results=results)
"""
DYING = """
import os
from cellgen.bench.peers import Prepared

def prepare(problem, mode, threads):
    calls = []

    def run():
        calls.append(1)
        if len(calls) > 3:
            os._exit(7)

    return Prepared(run, lambda found: problem.draw())
"""
RAISING = "def prepare(problem, mode, threads):\n    raise ValueError('no such layer')\n"


def peers_of(folder):
    """Write the modules of peers that are wrong in some way."""
    for name, text in (("wrong", WRONG), ("dying", DYING), ("raising", RAISING)):
        (folder / f"{name}_peer.py").write_text(text, encoding="utf-8")
    (folder / "broken_peer.py").write_text("import nowhere_at_all\n", encoding="utf-8")
    made = [Peer(name, f"{name}_peer") for name in ("wrong", "raising", "broken")]
    absent = Peer("absent", "absent_peer", ("no_module_of_this_name",), "absent-package")
    return (BY_HAND, *made, absent)


def tiny_plan(**changes):
    small = {"rounds": 2, "sgemm_size": 64, "copy_bytes": 1 << 16, "timed_seconds": 1e-4}
    chosen = {"cells": ("lstm",), "shapes": (TINY,), "threads": (1,)}
    return Plan(**{**small, **chosen, **changes})


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        said, done = [], []
        plan = tiny_plan(peers=peers_of(folder), memory=True)
        found = measure(plan, said.append, done.append)
        seen = found._repr_html_()  # as a notebook shows what was just measured
    assert [case.entries for case in done] == [case.entries for case in found.cases]
    assert any("timing" in text for text in said)
    assert "lstm" in seen
    assert "bar own" in seen
    return found


def test_a_program_runs_a_plan_with_a_bar_that_says_what_is_timed(monkeypatch):
    said = []

    class Bar:
        say, step = said.append, lambda self: said.append("over")

    monkeypatch.setattr(measuring, "progress_between", lambda what, total: nullcontext(Bar()))
    monkeypatch.setattr(measuring, "measure", lambda plan, say, done: (say("gru"), done(None)))
    measuring.run(tiny_plan())
    assert said == ["gru", "over"]


def case_of(report, mode):
    return next(case for case in report.cases if case.mode is mode)


def entry_of(report, mode, name):
    return next(entry for entry in case_of(report, mode).entries if entry.name == name)


# --- a run ---------------------------------------------------------------------------------------


def test_every_round_times_every_contestant_that_agrees(report):
    for mode in Mode:
        for name in ("cellgen", "numpy"):
            entry = entry_of(report, mode, name)
            assert entry.status is Status.TIMED
            assert len(entry.seconds) == 2
            assert all(seconds > 0 for seconds in entry.seconds)
            assert entry.error <= TOLERANCE


def test_a_peer_whose_gradient_differs_is_reported_and_not_timed(report):
    assert entry_of(report, Mode.FORWARD, "wrong").status is Status.TIMED
    entry = entry_of(report, Mode.BOTH, "wrong")
    assert entry.status is Status.DIFFERS
    assert entry.seconds == ()
    assert "d_b_f differs by 1.0e-02" in entry.text


def test_a_peer_that_raises_is_reported_and_disturbs_nobody(report):
    entry = entry_of(report, Mode.FORWARD, "raising")
    assert entry.status is Status.FAILED
    assert entry.text == "ValueError: no such layer"


def test_a_peer_that_an_extra_brings_names_that() -> None:
    named = {peer.name: peer.bringer for peer in PEERS}
    assert named["torch"] == "'cellgen-compiler[torch]'"
    assert named["onnxruntime"] == "'cellgen-compiler[onnx]'"
    assert named["mygrad"] == "mygrad numba"


def test_peers_that_cannot_take_part_are_listed_with_the_reason(report):
    missing = {item.name: item.text for item in report.missing}
    assert missing["absent"] == "not installed: pip install absent-package"
    assert "nowhere_at_all" in missing["broken"]
    assert set(missing) == {"absent", "broken"}


def test_floors_are_positive_and_the_rates_come_from_the_run(report):
    (rates,) = report.rates
    assert {"cellgen", "numpy"} <= set(rates.sgemm)
    assert all(rate > 0 for rate in (*rates.sgemm.values(), rates.copy))
    for case in report.cases:
        assert case.floor.seconds > 0
        assert case.floor.bound in ("products", "memory")
        assert len(case.sgemm) == report.rounds
        assert 0 < max(case.sgemm) <= rates.best


def test_multiples_are_taken_round_by_round():
    """A machine that is half as fast in one round is no slowness of a kernel's."""
    floor = Floor(flops=100, bytes=40, copy=10.0, seconds=4.0, bound="memory")
    entry = ContestantEntry("cellgen", Status.TIMED, seconds=(20.0, 11.0, 30.0))
    case = Case("any", Mode.BOTH, TINY, 1, floor, (entry,), sgemm=(10.0, 20.0, 50.0))
    assert case.multiple(entry) == statistics.median((20 / 10, 11 / 5, 30 / 4))
    assert case.least_multiple(entry) == 11 / 4
    assert replace(case, sgemm=()).multiple(entry) == 20 / 4


def test_what_a_training_step_cannot_do_without_is_counted():
    """100, 64, 512, 512: h, c, i, f, g, o over time and d_x; matrices and their gradients."""
    problem = problem_of(cellgen.load("lstm").interface, "lstm", NAMED["W3"])
    series, state, matrix = 100 * 64 * 512, 64 * 512, 512 * 512
    results = 7 * series + 4 * state + 8 * matrix + 4 * 512
    assert problem.necessary_bytes(Mode.BOTH) == 4 * (results + 8 * matrix)
    assert problem.necessary_bytes(Mode.FORWARD) == 4 * (2 * series + 2 * state + 8 * matrix)
    given = series + 2 * state + 8 * matrix + 4 * 512
    assert problem.argument_bytes(Mode.FORWARD) == 4 * given
    assert problem.argument_bytes(Mode.BOTH) == 4 * (given + series)


def test_peak_memory_is_measured_for_forward_and_backward(report):
    assert entry_of(report, Mode.BOTH, "cellgen").memory >= 0
    assert entry_of(report, Mode.BOTH, "wrong").memory is None
    assert entry_of(report, Mode.FORWARD, "cellgen").memory is None


def test_the_record_is_json_and_is_read_back(report):
    data = json.loads(json.dumps(as_data(report)))
    assert set(data) == {"format", "device", "rounds", "rates", "missing", "cases"}
    device = data["device"]
    assert {"processor", "instruction_set", "compiler", "versions", "date"} <= set(device)
    assert "numpy" in device["versions"]
    case = next(case for case in data["cases"] if case["mode"] == "forward+backward")
    assert case["shape"] == {"T": 3, "B": 2, "I": 4, "H": 5, "name": "tiny"}
    peer = next(entry for entry in case["entries"] if entry["name"] == "numpy")
    assert len(case["sgemm"]) == 2
    assert peer["minimum_multiple"] == pytest.approx(peer["minimum"] / case["floor"]["seconds"])
    assert set(peer["own_by_this"]) == {"median", "spread"}
    assert from_data(data) == report
    with pytest.raises(UsageError, match="format 1"):
        from_data({"format": 0})


def test_the_table_shows_multiples_differences_and_missing_peers(report):
    text = io.StringIO()
    print_report(report, Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert "lstm forward+backward, 1 thread" in lines
    assert "lstm: peak memory, MiB, 1 thread" in lines
    case = case_of(report, Mode.BOTH)
    (beside,) = [line for line in lines if line.startswith("necessary beside")]
    assert beside.split()[-1] == f"{case.necessary / 2**20:.1f}"
    assert any(line.split() == ["wrong", "differs"] for line in lines)
    assert "absent: not installed: pip install absent-package" in lines
    assert any(line.startswith("wrong, lstm forward+backward tiny: d_b_f") for line in lines)


def test_a_picture_is_written(report, tmp_path):
    draw(report, tmp_path / "out.svg")
    draw(report, tmp_path / "out.png")
    assert ET.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "out.png").stat().st_size > 0
    with pytest.raises(cellgen.BuildError, match="cannot be written"):
        draw(report, tmp_path / "nowhere" / "out.svg")


def test_a_peer_that_dies_while_it_is_timed_is_reported(tmp_path, monkeypatch):
    peers_of(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    problem = problem_of(cellgen.load("lstm").interface, "lstm", TINY)
    with Worker(Peer("dying", "dying_peer"), 1) as worker:
        worker.wait_until_imported()
        worker.prepare(problem, Mode.FORWARD)
        with pytest.raises(WorkerError, match="dying: its process ended with status 7"):
            worker.repeats(1.0)
        with pytest.raises(WorkerError, match="its process ended"):
            worker.release()


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("peer", [p for p in PEERS if p.installed], ids=lambda peer: peer.name)
@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_installed_peers_agree_with_the_kernels(peer, cell, mode):
    """The NumPy peer is always there; others where they are installed."""
    if not peer.takes(cell, mode):
        pytest.skip(f"{peer.name} has no {cell} {mode}")
    module = importlib.import_module(peer.module)
    problem = problem_of(cellgen.load(cell).interface, cell, SMALL)
    found, reference = (m.prepare(problem, mode, 1) for m in (module, own_kernels))
    entry = compare(peer, found.results(found.run()), reference.results(reference.run()))
    assert entry.status is Status.TIMED, entry.text
    again = compare(peer, found.results(found.run()), reference.results(reference.run()))
    assert again.error == entry.error  # a second call starts from nothing that the first left


@typical_cell
def test_cells_that_ship_can_be_timed(cell):
    name = cell.definition.name
    problem = problem_of(cellgen.load(name).interface, name, TINY)
    prepared = own_kernels.prepare(problem, Mode.BOTH, 2)
    named = prepared.results(prepared.run())
    assert {f"d_{v.name}" for v in cell.definition.parameters} <= set(named)
    assert "d_x" in named


def test_work_counts_products_three_times_and_each_array_once():
    T, B, I, H = 3, 2, 4, 5
    problem = problem_of(cellgen.load("lstm").interface, "lstm", TINY)
    assert problem.flops(Mode.FORWARD) == 2 * T * B * 4 * (I + H) * H
    assert problem.flops(Mode.BOTH) == 3 * problem.flops(Mode.FORWARD)
    arguments = T * B * I + 2 * B * H + 4 * (I * H + H * H + H)
    results = 2 * T * B * H + 2 * B * H
    assert problem.bytes(Mode.FORWARD) == 4 * (arguments + results)
    assert problem.bytes(Mode.BOTH) == 4 * (2 * arguments + results + T * B * H)


def test_the_floor_is_the_larger_of_products_and_memory():
    problem = problem_of(cellgen.load("lstm").interface, "lstm", TINY)
    flops, count = problem.flops(Mode.FORWARD), problem.bytes(Mode.FORWARD)
    slow_memory = floor_of(flops, count, 1.0, Rates(1, {"a": 1e12, "b": 2e12}, 9.0))
    assert (slow_memory.seconds, slow_memory.bound) == (count, "memory")
    slow_products = floor_of(flops, count, 1e12, Rates(1, {"a": 1.0, "b": 2.0}, 9.0))
    assert (slow_products.seconds, slow_products.bound) == (flops / 2, "products")


def test_equal_problems_draw_equal_arrays():
    problem = problem_of(cellgen.load("gru").interface, "gru", TINY)
    first, second = problem.draw(), problem.draw()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(array.dtype == np.float32 for array in first.values())
    assert not first["h_prev"].any()
    assert np.abs(first["u_z"]).max() <= 1 / math.sqrt(TINY.H)


def test_comparison_refuses_what_is_missing_misshapen_or_nan():
    reference = {"h": np.ones((2, 3), np.float32), "d_x": np.ones(3, np.float32)}
    assert compare(OWN, reference, reference).status is Status.TIMED
    assert compare(OWN, {"h": reference["h"]}, reference).text == "computes no d_x"
    excused = Peer("p", "m", lacks=("d_x",))
    assert compare(excused, {"h": reference["h"]}, reference).status is Status.TIMED
    assert difference(np.ones((2, 1)), reference["h"]) == math.inf
    assert difference(np.full((2, 3), np.nan), reference["h"]) == math.inf
    assert difference(np.zeros(0), np.zeros(0, np.float32)) == 0
    nearly = reference["h"] * np.float32(1 + 3 * TOLERANCE)
    assert compare(OWN, {**reference, "h": nearly}, reference).status is Status.DIFFERS


def test_shapes_are_names_or_four_lengths():
    assert parse_shapes(()) == tuple(NAMED.values())
    named, figures = parse_shapes(["w2,3,4,5,6", "W2"])
    assert named is NAMED["W2"]
    assert (figures.sizes, figures.name) == ({"T": 3, "B": 4, "I": 5, "H": 6}, "3,4,5,6")
    for text in ("W9", "1,2,3", "1,2,3,0", "1,2,3,W1"):
        with pytest.raises(UsageError, match="four positive lengths"):
            parse_shapes([text])


def test_peers_are_chosen_by_name():
    assert parse_peers("") == PEERS
    assert parse_peers("none") == ()
    assert [peer.name for peer in parse_peers("numpy,torch,numpy")] == ["numpy", "torch"]
    with pytest.raises(UsageError, match=r"no peer is named 'theano'; known: torch"):
        parse_peers("theano")


def test_workers_get_equal_threads():
    made = environment(3)
    assert {made[n] for n in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")} == {"3"}
    chosen = processors(1)
    assert chosen is None or len(chosen) == 1


def test_the_interquartile_range_is_the_spread_of_the_middle_half():
    assert interquartile_range([1.0]) == 0
    assert interquartile_range([1.0, 2.0, 3.0, 4.0, 100.0]) == 2


def test_memory_figures_are_of_this_process():
    memory.forget_peak()
    assert 0 < memory.resident() <= memory.peak() + (1 << 20)


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rounds", "3"), "at least 7"),
        (("--quick", "--rounds", "9"), "leave --rounds, --memory out"),
        (("--quick", "--memory"), "leave --rounds, --memory out"),
        (("--against", "theano"), "no peer is named"),
        (("--shapes", "W9"), "four positive lengths"),
        (("--shapes", f"1,2,3,{'9' * 5000}"), "four positive lengths"),
        (("--threads", "9" * 5000), "no number from 1"),
        (("--mode", "sideways"), "none of forward, forward+backward"),
        (("--threads", "0"), "no number from 1"),
        (("--from", "nowhere.json"), "cannot be read"),
        (("lsmt",), "did you mean 'lstm'"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(words, message):
    done = CliRunner().invoke(cli.app, ["bench", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_saved_run_is_shown_and_drawn_again(report, tmp_path):
    kept, picture = tmp_path / "results" / "run.json", tmp_path / "out.svg"
    command.save(report, kept)
    words = ["bench", "--from", str(kept), "--json", "--plot", str(picture)]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(kept.read_text())
    assert picture.exists()


def test_attention_scores_are_between_0_and_1():
    problem = problem_of(cellgen.load("augru").interface, "augru", SMALL)
    scores = problem.draw()["a"]
    assert scores.dtype == np.float32
    assert 0 < scores.min() < scores.max() < 1


# --- the figures in the documents ----------------------------------------------------------------


def test_the_table_of_figures_holds_every_kept_run():
    root = PACKAGE.parent
    runs = sorted((root / "benchmarks" / "results").glob("cpu-*.json"))
    text = (root / "docs" / "how-to" / "benchmarks.md").read_text(encoding="utf-8")
    section = figures.markdown(figures.reports_of(runs))
    assert runs
    assert between(text, *figures.MARKS, section) == text


def test_a_figure_is_the_case_in_short():
    floor = Floor(flops=100, bytes=0, copy=1.0, seconds=2.0, bound="products")
    own = ContestantEntry("cellgen", Status.TIMED, seconds=(4.0, 6.0, 8.0))
    peer = ContestantEntry("torch", Status.TIMED, seconds=(8.0, 8.0, 8.0))
    case = Case("any", Mode.BOTH, TINY, 2, floor, (own, peer), sgemm=(50.0, 50.0, 25.0))
    device = {"processor": "P", "date": "2000-01-02 x", "versions": {"torch": "1"}}
    report = BenchReport(device, 3, (Rates(2, {"torch": 50e9}, 1.0),), (), (case,))
    lines = figures.markdown([("a.json", report)]).splitlines()
    assert lines[0] == (
        "* `a.json`: P, 2000-01-02, 3 rounds; torch 1; a large product at best 50 GFLOP/s "
        "with 2 threads"
    )
    assert lines[-1] == "| `any` | forward+backward | 2 | **2.00** 2.00; 0.75±0.25 torch |"


def test_a_table_that_is_too_wide_becomes_several():
    """Nothing is cut: each shape stands in one of them, with every row."""
    floor = Floor(flops=100, bytes=0, copy=1.0, seconds=2.0, bound="products")
    own = ContestantEntry("cellgen", Status.TIMED, seconds=(4.0, 6.0, 8.0))
    peer = ContestantEntry("onnxruntime", Status.TIMED, seconds=(8.0, 8.0, 8.0))
    cases = tuple(
        Case("any", Mode.BOTH, parse_shapes([f"W{n}"])[0], 2, floor, (own, peer), sgemm=(50.0,) * 3)
        for n in range(1, 7)
    )
    device = {"processor": "P", "instruction_set": [], "compiler": "C", "date": "D"}
    report = BenchReport(device, 3, (Rates(2, {"torch": 50e9}, 1.0),), (), cases)
    for width, tables in ((200, 1), (80, 3), (40, 6)):
        text = io.StringIO()
        print_report(report, Console(file=text, width=width))
        lines = text.getvalue().splitlines()
        assert sum(line.startswith("by best") for line in lines) == tables
        assert text.getvalue().count("0.75±0.25") == text.getvalue().count(" W") == 6
        assert "…" not in text.getvalue()


def test_a_quick_look_is_small_and_has_an_end():
    plan = quick_plan(Plan(rounds=9), has_cells=False, has_shapes=False)
    assert (plan.cells, plan.rounds, plan.count) == (("lstm",), 3, 2)
    assert [shape.name for shape in plan.shapes] == ["W1"]
    assert plan.seconds is not None
    assert plan.seconds < 20
    two = quick_plan(Plan(cells=("gru", "lstm"), shapes=(TINY,), threads=(1, 2)))
    assert (two.shapes, two.seconds) == ((TINY,), 4 * plan.seconds)


@pytest.mark.slow
def test_when_the_time_is_over_no_peer_is_waited_for(tmp_path, monkeypatch):
    """One that hangs is ended and told; cellgen's own figures are there."""
    (tmp_path / "hanging_peer.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    peers = (Peer("hanging", "hanging_peer"), BY_HAND)
    tiny = {"cells": ("lstm",), "shapes": (TINY,), "modes": (Mode.FORWARD,)}
    plan = replace(quick_plan(Plan(**tiny, peers=peers)), seconds=0.5, sgemm_size=64)
    report = measure(replace(plan, copy_bytes=1 << 12), lambda _: None, lambda _: None)
    assert "was not ready in the time" in {m.name: m.text for m in report.missing}["hanging"]
    (case,) = report.cases
    assert case.own.seconds
    assert Patience.of(None, 0.0).over
    assert Patience(limit=3.0).seconds == 3.0
    assert Patience().seconds is None


def test_what_was_aimed_at_is_bold_where_it_holds():
    floor = Floor(flops=100, bytes=0, copy=1.0, seconds=2.0, bound="products")
    cases = []
    for name, threads, seconds in (("W1", 2, 4.0), ("W6", 2, 2.1), ("W6", 1, 9.0)):
        entry = ContestantEntry("cellgen", Status.TIMED, seconds=(seconds,) * 3)
        (shape,) = parse_shapes([name])
        cases.append(Case("any", Mode.BOTH, shape, threads, floor, (entry,), sgemm=(50.0,) * 3))
    device = {"processor": "P", "date": "2000-01-02 x", "versions": {}}
    rates = (Rates(1, {"torch": 50e9}, 1.0), Rates(2, {"torch": 50e9}, 1.0))
    lines = figures.markdown(
        [("a.json", BenchReport(device, 3, rates, (), tuple(cases)))]
    ).splitlines()
    assert lines[-4:] == [
        "| 2 threads | | aimed at | `any` |",
        "|---|---|---|---|",
        "| forward+backward | W1 | 1.75 | 1.14 |",
        "| forward+backward | W6 | 1.5 | **0.70** |",
    ]


@pytest.mark.parametrize(
    ("symbol", "kind"),
    [
        ("cellgen_tile_6x4_f32", "products"),
        ("cellgen_pack_slot_f32.constprop.0", "packing"),
        ("cellgen_gemm_packed_f32", "packing"),
        ("lstm_sequence_forward_forward_1_f32", "functions of a step"),
        ("lstm_sequence_backward_reverse_2_f32", "functions of a step"),
        ("lstm_sequence_backward_deferred_1_f32.constprop.0", "deferred, pointwise"),
        ("cellgen_team_barrier", "waiting"),
        ("lstm_sequence_backward_task_f32", "other of the kernel"),
        ("asm_exc_page_fault", "page faults"),
        ("_PyEval_EvalFrameDefault", "Python"),
        ("__memmove_evex_unaligned_erms", "rest"),
    ],
)
def test_samples_of_a_profile_belong_to_parts_of_a_kernel(symbol: str, kind: str) -> None:
    assert where.kind_of(symbol) == kind


def test_parts_of_a_kernel_are_shares_of_all_samples() -> None:
    symbols = Counter({"cellgen_tile_6x4_f32": 60, "cellgen_team_barrier": 30, "memcpy": 10})
    line = where.markdown([("`lstm` forward W1", 0.00025, symbols)]).splitlines()[-1]
    shares = ["60", "0", "0", "0", "30", "0", "0", "0", "10"]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "`lstm` forward W1", "0.25", *shares
    ]  # fmt: skip


# --- other plans than the chosen ones -------------------------------------------------------------


def test_every_plan_that_a_call_can_follow_is_timed_by_the_chosen_one():
    calls = list(plans.calls_of("elman", TINY, 2))
    assert [call.name for call in calls] == ["forward, packed", "forward, saving", "backward"]
    for call in calls:
        found = [plan for plan, _ in plans.runnable(call, TINY)]
        assert found[0] == call.chosen
        assert {plan.by_units for plan in found} == {False, True}
        assert len(set(found)) == len(found)
        lines = list(plans.rows_of("elman", TINY, call, rounds=2))
        assert len(lines) == len(found) - 1
        assert all(line.count("|") == plans.HEAD.count("|") for line in lines)


def test_two_checkouts_take_turns_and_ratios_are_summed_up_by_shape(monkeypatch):
    asked: list[tuple[int, object]] = []

    class Clock:
        def __init__(self, which: int, seconds: float) -> None:
            self.which, self.seconds = which, seconds

        def ask(self, what: object) -> float:
            asked.append((self.which, what))
            return self.seconds * (what if isinstance(what, int) else 1)

    monkeypatch.setattr(two_checkouts, "LEAST_ROUNDS", 2)
    case = two_checkouts.Case("gru", "W6", "forward", 1)
    clocks = [Clock(0, 2.0), Clock(1, 3.0)]
    assert two_checkouts.entry(clocks, case) == (2.0, 3.0)
    assert asked == [(0, vars(case)), (1, vars(case)), (1, 1), (0, 1), (0, 1), (1, 1)]
    both = two_checkouts.Case("gru", "W6", "forward+backward", 1)
    other = two_checkouts.Case("lstm", "W6", "forward", 1)
    *_, row, total = two_checkouts.table({case: 1.5, other: 1.0, both: 0.9})
    assert row == "| W6 | 1 | 1.250, 1.500 | 0.900, 0.900 |"
    assert total == "3 entries, median 1.000"
