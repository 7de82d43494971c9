"""`check` is green for what is right, and red, with figures, for what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NoReturn

import numpy as np
import pytest
from sympy import sympify

from cellgen import Bias, Cell, H, I, Input, State, Weight, log, pipeline, sqrt, tanh
from cellgen.cells import GRU, LIF, SHIPPED, Elman, ElmanRelu, LSTMBlockCell
from cellgen.errors import ArgumentError, BuildError, Failure
from cellgen.language import ops
from cellgen.language.cell import definition_of
from cellgen.language.ops import POINTWISE
from cellgen.language.value import B, Role, Value
from cellgen.pipeline import programs_of
from cellgen.program.derive import forward as forward_program
from cellgen.program.differentiate import differentiate
from cellgen.program.interpret import STEP, interpret, shape_sizes
from cellgen.program.ssa import Program, Statement
from cellgen.proof import check
from cellgen.proof.check import (
    C_BARS,
    FLOAT64_BAR,
    Report,
    Row,
    gradients,
    judged,
    points,
    roundings,
    several,
)
from cellgen.proof.check import cell as cell_proof
from cellgen.proof.goldens import PEERS
from cellgen.proof.rounding import Nudge, scales_of
from cellgen.proof.truths import TRUTHS, truth_of
from cellgen.runtime import system
from cellgen.targets.c_expressions import c_expression
from tests.awkward_cells import AWKWARD
from tests.conftest import SIZES, shipped_cell
from tests.cover import each_of, of_all


def row(report: Report, start: str) -> Row:
    return next(r for r in report.rows if r.name.startswith(start))


# --- green ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", each_of(of_all))
def test_every_shipped_cell_is_proved_without_a_gap(cell: type[Cell]) -> None:
    report = check.check(cell, seed=1)
    assert report.ok, f"\n{report}"
    skipped = [r.name for r in report.rows if r.verdict != "ok"]
    assert skipped == ([] if definition_of(cell).name in PEERS else ["goldens of the real peers"])
    for program in programs_of(cell).functions:
        if program.function != "forward":
            proved = row(report, f"{program.function} by complex step")
            assert all(str(result.name) in proved.note for result in program.results)
        for dtype in C_BARS:
            assert row(report, f"C {dtype} {program.function}").ok


@pytest.mark.parametrize("cell", AWKWARD, ids=lambda cell: cell.definition.name)
def test_cells_of_ones_own_are_proved_but_for_what_is_not_there(cell: type[Cell]) -> None:
    report = check.check(cell)
    assert report.ok, f"\n{report}"
    skipped = [r.name for r in report.rows if r.verdict == "skipped"]
    assert skipped == ["hand-written forward, float64", "goldens of the real peers"]


def test_shapes_hold_none_one_and_seventeen() -> None:
    note = row(check.check(Elman), "C float32 forward").note
    for dimension in "BIH":
        sizes = note.split(f"{dimension} ")[1].split(";")[0].split(",")
        assert {"1", "17"} <= set(sizes)
    assert "B 0," in note


def test_equal_seeds_give_equal_figures() -> None:
    assert check.check(Elman, seed=3) == check.check(Elman, seed=3)
    assert check.check(Elman, seed=3).rows != check.check(Elman, seed=4).rows


def test_progress_names_each_part_before_it_starts() -> None:
    said: list[str] = []
    check.check(Elman, progress=said.append)
    assert said == [
        "elman: build",
        "elman: hand-written forward",
        "elman: complex-step gradients",
        "elman: tangent",
        "elman: compiled kernels",
        "elman: functions over time",
        "elman: goldens",
    ]


def test_a_report_is_text_and_json() -> None:
    report = check.check(Elman)
    assert str(report).startswith("elman: ok (seed 0)\n  ok ")
    record = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert record["ok"] is True
    assert set(record["rows"][0]) == {"name", "figure", "bar", "verdict", "note"}


# --- red -----------------------------------------------------------------------------------------


def no_compiler(cell: type[Cell]) -> None:
    raise BuildError("no C compiler: none of cc, gcc, clang is on PATH")


@pytest.fixture
def _no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove the mathematics only: compiling takes seconds."""
    monkeypatch.setattr(cell_proof, "compile_cell", no_compiler)


@pytest.mark.usefixtures("_no_kernel")
def test_why_a_cell_was_not_built_is_said_once() -> None:
    report = check.check(Elman)
    unbuilt = [row for row in report.rows if row.name.startswith("C ")]
    assert len(unbuilt) > 5
    assert all("no C compiler" in row.note and not row.ok for row in unbuilt)
    assert str(report).count("no C compiler") == 1
    assert str(report).count("as above") >= len(unbuilt) - 1


@pytest.fixture
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was derived and spelled, before and after: the operator table is to change."""
    anew = differentiate.__wrapped__
    monkeypatch.setattr("cellgen.program.step.differentiate", anew)
    pipeline.programs_of.cache_clear()
    c_expression.cache_clear()
    yield
    pipeline.programs_of.cache_clear()
    c_expression.cache_clear()


def replace_derivative(
    monkeypatch: pytest.MonkeyPatch, name: str, slope: Callable[..., object]
) -> None:
    row = POINTWISE[name].row
    changed = ops.PointwiseRow(row.name, row.numpy, (slope,), row.c, row.stated, row.kinks)
    monkeypatch.setattr(POINTWISE[name], "row", changed)


@pytest.mark.usefixtures("_forgetful")
def test_a_wrong_derivative_row_goes_red_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_derivative(monkeypatch, "tanh", lambda y, x: 1 - y)
    report = check.check(Elman)
    assert not report.ok
    failed = row(report, "backward by complex step")
    assert failed.verdict == "failed"
    assert failed.figure > 0.01
    assert "d_x " in failed.note
    assert "d_h_prev " in failed.note
    assert row(report, "weight_gradients by complex step").verdict == "failed"
    assert row(report, "hand-written forward").ok  # the forward is right
    assert row(report, "C float64 backward").ok  # and C does what the wrong equations say
    assert not row(report, "float64 torch.nn.RNNCell bwd").ok  # as PyTorch knows
    assert "FAILED" in str(report)


class Apart(Cell):
    """Terms that cancel in the forward pass, and gradients that divide by what is left."""

    x, n_prev, h_prev = Input(H), State(H), State(H)
    w, u = Weight(H, H), Weight(H, H)
    n = x @ w - n_prev @ u
    h = h_prev / n


def test_roundings_of_the_forward_pass_count_and_points_where_they_grow_are_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where n is 1e-4 of its terms, one of their roundings is 1e4 of n's, and 2e4 of 1 / n^2."""
    programs = programs_of(Apart)
    subject = points.Subject(Apart, programs, forward_program(programs.definition), None)
    draw = points.draw_point

    def spread(cancelling: int) -> tuple[float, int]:
        """Of d_x, where so many of the first points have terms that cancel; and points drawn."""
        drawn = []

        def near(*given: object) -> object:
            drawn.append(point := draw(*given))
            if len(drawn) <= cancelling:
                point.arguments["x"] = point.arguments["n_prev"] + 1e-4
                point.arguments["u"] = point.arguments["w"]
            return point

        monkeypatch.setattr(gradients, "draw_point", near)
        rng = np.random.default_rng(3)
        _, known, scales = gradients.tame_point(subject, [programs["backward"]], rng, 1.0)
        return scales["d_x"] / np.abs(known["d_x"]).max(), len(drawn)

    def note() -> str:
        return gradients.prove_gradients(subject, np.random.default_rng(3))[0].note

    grown, most = spread(10 * gradients.DRAWS)
    assert grown > 1e4
    assert most == gradients.DRAWS
    assert "terms cancel: a rounding spreads" in note()
    tame, drawn = spread(2)
    assert tame < gradients.CONDITION
    assert 3 <= drawn <= gradients.DRAWS
    assert "cancel" not in note()


@pytest.mark.usefixtures("_forgetful")
def test_a_small_slip_in_a_derivative_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_derivative(monkeypatch, "tanh", lambda y, x: (1 - y**2) * (1 + sympify(1e-9)))
    failed = row(check.check(Elman), "backward by complex step")
    assert 1e-10 < failed.figure < 1e-8
    assert failed.verdict == "failed"


@pytest.mark.usefixtures("_forgetful")
def test_a_wrong_c_spelling_goes_red_in_the_c_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    old = POINTWISE["relu"].row
    changed = ops.PointwiseRow(
        old.name, old.numpy, old.derivatives, "cg_abs({0})", kinks=True, transcendental=False
    )
    monkeypatch.setattr(POINTWISE["relu"], "row", changed)
    report = check.check(ElmanRelu)
    proofs = {r.name for r in report.failures if "torch" not in r.name}
    assert proofs == {
        "C float32 forward",
        "C float64 forward",
        "C float32 sequence_forward",
        "C float64 sequence_forward",
        "C sequence_backward",
        "C sequence_forward with options",
        "C sequence_backward with options",
    }
    assert not row(report, "float64 torch.nn.RNNCell fwd").ok


class WrongReference(Cell, name="wrong_reference"):
    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    h = tanh(x @ w + h_prev @ u + b)

    def reference(x, h_prev, w, u, b):  # noqa: N805 - no method: arguments are the cell's values
        return np.tanh(x @ w + h_prev @ u - b)


@pytest.mark.usefixtures("_no_kernel")
def test_an_own_reference_that_disagrees_goes_red() -> None:
    failed = row(check.check(WrongReference), "hand-written forward")
    assert failed.verdict == "failed"
    assert failed.figure > 0.1


class OwnReference(WrongReference, name="own_reference"):
    def reference(x, h_prev, w, u, b):  # noqa: N805
        return {"h": np.tanh(x @ w + h_prev @ u + b)}


class Inherits(OwnReference, name="inherits"):
    h = OwnReference.h_prev * tanh(OwnReference.x @ OwnReference.w + OwnReference.b)


@pytest.mark.usefixtures("_no_kernel")
def test_an_own_reference_is_used_and_not_inherited() -> None:
    assert row(check.check(OwnReference), "hand-written forward").verdict == "ok"
    assert truth_of(Inherits) is None


class Lacking(Cell, name="lacking"):
    x, h_prev, c_prev, w = Input(I), State(H), State(H), Weight(I, H)
    c = tanh(x @ w) * c_prev
    h = c + h_prev

    def reference(**arguments):
        return {"h": arguments["h_prev"]}


@pytest.mark.usefixtures("_no_kernel")
class Misread(Cell, name="misread"):
    x, h_prev, w = Input(I), State(H), Weight(I, H)
    h = tanh(x @ w) + h_prev

    def reference(x, h, w):  # noqa: N805
        return {"h": h}


@pytest.mark.usefixtures("_no_kernel")
def test_a_reference_of_other_arguments_is_told_so() -> None:
    with pytest.raises(ArgumentError, match=r"reference\(...\) cannot be called .*x, h_prev, w by"):
        check.check(Misread)


def test_a_reference_that_lacks_an_output_is_told_so() -> None:
    with pytest.raises(ArgumentError, match=r"reference\(...\) does not return c"):
        check.check(Lacking)


@pytest.mark.usefixtures("_no_kernel")
@pytest.mark.parametrize("name", ["elman", "lstm_block_cell"])
def test_without_a_compiler_the_mathematics_is_proved_and_the_c_rows_fail(name: str) -> None:
    cell = next(c for c in SHIPPED if definition_of(c).name == name)
    report = check.check(cell)
    for r in report.rows:
        needs_c = r.name.startswith(("C ", "goldens"))
        assert r.verdict == ("failed" if needs_c else "ok"), r
        assert ("no C compiler" in r.note) == needs_c
    assert not report.ok


def test_a_figure_that_is_not_a_number_fails() -> None:
    none = judged("name", {}, FLOAT64_BAR)
    assert (none.verdict, none.figure, none.note) == ("failed", None, "nothing was compared")
    assert judged("name", {"a": 1e-15, "b": float("nan")}, FLOAT64_BAR).verdict == "failed"
    infinite = judged("name", {"a": float("inf"), "b": 0.0}, FLOAT64_BAR)
    record = Report("cell", 0, (infinite,)).as_dict()
    assert json.loads(json.dumps(record, allow_nan=False))["rows"][0]["figure"] == "inf"


# --- where points are drawn ----------------------------------------------------------------------


class NeedsPositive(Cell, name="needs_positive"):
    x, h_prev, w = Input(I), State(H), Weight(I, H)
    h = log(x @ w) + sqrt(h_prev)


class NeverFinite(Cell, name="never_finite"):
    x, h_prev, w = Input(I), State(H), Weight(I, H)
    h = log(-(h_prev**2)) + x @ w


@pytest.mark.usefixtures("_no_kernel")
def test_points_are_positive_where_the_functions_need_it() -> None:
    report = check.check(NeedsPositive)
    proofs = [r for r in report.rows if "complex step" in r.name]
    assert proofs
    assert all(r.verdict == "ok" for r in proofs)


@pytest.mark.usefixtures("_no_kernel")
def test_a_cell_without_a_finite_point_is_told_so() -> None:
    with pytest.raises(ArgumentError, match="none of 40 drawn points gives finite values"):
        check.check(NeverFinite)


def test_points_keep_away_from_kinks_and_the_report_says_so() -> None:
    report = check.check(ElmanRelu)
    assert "away from kinks" in row(report, "backward by complex step").note
    assert "kinks" not in row(check.check(GRU), "backward by complex step").note


# --- the hand-written forwards -------------------------------------------------------------------


def test_every_shipped_cell_has_a_hand_written_forward() -> None:
    assert set(TRUTHS) == {definition_of(cell).name for cell in SHIPPED}
    assert all(truth_of(cell) is not None for cell in SHIPPED)


@shipped_cell
def test_derived_gradients_are_those_of_the_hand_written_forward(cell: type[Cell]) -> None:
    """A third account: complex steps of the hand-written forward, along one random direction."""
    programs, rng = programs_of(cell), np.random.default_rng(5)
    definition, sizes = programs.definition, SIZES
    arguments = {
        str(v.name): np.asarray(rng.normal(size=shape_sizes(v, sizes))) for v in definition.declared
    }
    for name, factor in {"forget_bias": 1.0, "cell_clip": 0.5}.items():
        if name in arguments:
            arguments[name] = np.asarray(factor)
    along = {
        str(v.name): rng.normal(size=arguments[str(v.name)].shape)
        for v in definition.declared
        if f"d_{v.name}" in {str(r.name) for p in programs.functions for r in p.results}
    }
    moved = {k: a + 1j * STEP * along[k] if k in along else a for k, a in arguments.items()}
    outputs = TRUTHS[definition.name](moved)
    upstream = {f"d_{k}": rng.normal(size=a.shape) for k, a in outputs.items()}
    expected = sum((upstream[f"d_{k}"] * a.imag).sum() for k, a in outputs.items()) / STEP

    known = {**arguments, **upstream}
    for program in programs.functions:
        known |= interpret(program, known, sizes)
    found = sum((known[f"d_{k}"] * a).sum() for k, a in along.items())
    # A sum of some hundred products of order 1, in float64.
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_stated_derivative_is_not_that_of_the_forward() -> None:
    """Where the clip bites, straight-through and exact differ: the statement is what is proved."""
    sizes, rng = {"B": 2, "I": 2, "H": 3}, np.random.default_rng(0)
    programs = programs_of(LSTMBlockCell)
    arguments = {
        str(v.name): np.asarray(rng.normal(size=shape_sizes(v, sizes)))
        for v in programs.definition.declared
    }
    arguments |= {"forget_bias": np.asarray(1.0), "cell_clip": np.asarray(0.01)}
    known = {**arguments, **interpret(programs["forward"], arguments, sizes)}
    assert np.abs(known["cs"]).max() == 0.01
    d_cs = rng.normal(size=(2, 3))
    found = interpret(programs["backward"], {**known, "d_cs": d_cs}, sizes)["d_cs_prev"]
    direct = d_cs * known["f"]
    assert np.abs(found).min() > 0
    assert np.sign(found) == pytest.approx(np.sign(direct))


# --- what errors are measured against -------------------------------------------------------------


FEW = Value("a", (B, H), Role.INPUT), Value("y", (B, H), Role.LOCAL, order=1)


def test_a_rounding_of_a_function_within_an_expression_counts() -> None:
    """1 - tanh(a)**2 at a = 9 is 6e-8: a rounding of the tanh is all of it, one of a nothing. Found
    by random cells whose weight gradients stood 4e-3 from the interpreter in float32."""
    a, y = FEW
    program = Program("cell", "forward", (a,), (Statement(y, 1 - tanh(a) ** 2),), (y,))
    given = {"a": np.full((2, 40), 9.0)}
    exact = interpret(program, given, {"B": 2, "H": 40})

    def run(nudge: Nudge, inner: Nudge) -> Mapping[str, np.ndarray]:
        moved = {"a": nudge(given["a"])}
        return interpret(program, moved, {"B": 2, "H": 40}, nudge=inner)

    (scale,) = scales_of(exact, run, np.random.default_rng(0)).values()
    assert 1.9 < scale < 2.1


def test_the_same_function_rounds_once_wherever_it_stands() -> None:
    """In C as well the same function of the same number is the same number."""
    a, y = FEW
    z = Value("z", (B, H), Role.LOCAL, order=2)
    statements = (Statement(y, 2 * tanh(a)), Statement(z, y + a * tanh(a)))
    program = Program("cell", "forward", (a,), statements, (z,))
    seen = []
    interpret(
        program, {"a": np.ones((1, 3))}, {"B": 1, "H": 3}, nudge=lambda v: seen.append(v) or v
    )
    assert [float(array[0, 0]) for array in seen] == [
        np.tanh(1.0),
        2 * np.tanh(1.0),
        3 * np.tanh(1.0),
    ]


# --- several -------------------------------------------------------------------------------------


def test_cells_side_by_side_are_proved_as_one_after_the_other() -> None:
    class Own(Cell):
        x, h_prev, w = Input(H), State(H), Weight(H, H)
        h = tanh(x @ w + h_prev)

    cells, over = (LIF, Own, ElmanRelu), []  # of which a landing has two compiled already

    def done(name: str, state: str) -> None:
        over.append((name, state))

    found = several.check_each(cells, jobs=2, say=str, done=done)
    assert found == several.check_each(cells, say=str, done=done)
    names = [cell.definition.name for cell in cells]
    assert [report.cell for report in found] == names
    assert sorted(over[:3]) == sorted(over[3:]) == sorted((name, "ok") for name in names)


@pytest.mark.parametrize(("is_windows", "most"), [(False, 100), (True, 61)])
def test_as_many_processes_prove_as_the_system_can_wait_for(
    is_windows: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pool(workers: int, *_: object) -> NoReturn:
        raise InterruptedError(workers)

    monkeypatch.setattr(system, "is_windows", lambda: is_windows)
    monkeypatch.setattr(several, "ProcessPoolExecutor", pool)
    with pytest.raises(InterruptedError, match=f"^{most}$"):
        several.check_each([Elman] * 100, jobs=200, say=str, done=lambda *_: None)


INTERRUPTED_EARLY = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)  # while a worker imports
from cellgen.proof.check.several import heed_interrupts
print("imported", flush=True)
heed_interrupts()
print("goes on")
"""


def test_a_worker_that_is_interrupted_while_it_begins_ends_without_a_word() -> None:
    with several.interrupts_wait():
        worker = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED_EARLY],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    output, errors = worker.communicate(timeout=60)
    assert (worker.returncode, output, errors) == (-signal.SIGINT, "imported\n", "")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_that_dies_is_said_and_the_others_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dies = partial(
        signal.raise_signal, signal.SIGKILL
    )  # as where a kernel writes where it must not
    monkeypatch.setattr(several, "begin_worker", dies)
    found = several.check_each((Elman, ElmanRelu), jobs=2, say=str, done=lambda *_: None)
    assert [failure.name for failure in found] == ["elman", "elman_relu"]
    for failure in found:
        assert isinstance(failure, Failure)
        assert f"by itself to see which: cellgen check {failure.name}" in str(failure.error)


@pytest.mark.parametrize(
    ("name", "errors", "is_proved"),
    [
        ("elman_relu", (1.0, 0.0), True),  # a kink that rounding crossed at the first point
        ("elman_relu", (1.0,) * roundings.KINKED_POINTS, False),  # what is wrong is so everywhere
        ("elman", (1.0, 0.0), False),  # nothing to cross: one point says it
    ],
)
def test_products_in_bfloat16_of_kinked_cells_are_proved_at_the_best_of_some_points(
    name: str, errors: tuple[float, ...], is_proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(errors)

    def one(*_: object) -> dict[str, dict[str, float]]:
        error = next(drawn)
        return {way: {"h": error} for way in ("sequence_forward", "sequence_backward")}

    monkeypatch.setattr(roundings, "bf16_errors", one)
    cell = {"elman": Elman, "elman_relu": ElmanRelu}[name]
    programs = programs_of(cell)
    subject = points.Subject(cell, programs, forward_program(programs.definition), None)
    rows = roundings.prove_bf16(subject, None, np.random.default_rng(0))
    assert [row.verdict == "ok" for row in rows] == [is_proved] * 2
