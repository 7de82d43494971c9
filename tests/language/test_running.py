"""Operators that go along units: ``cumprod``, ``cummax``, ``logcumsumexp`` and what they derive to.

Each is a row of ``language/ops/running.py``; routines in C and CUDA are written from the rows.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from cellgen import Bias, Cell, Dim, H, Input, State, Weight, api, cummax, cumprod, tanh
from cellgen import logcumsumexp as log_sums
from cellgen import tangent as tangent_cell
from cellgen.errors import DeclarationError
from cellgen.language.notation import text
from cellgen.language.ops import OPERATORS
from cellgen.language.value import Apply, B, Role, Value
from cellgen.pipeline import generate, recurrence
from cellgen.program.derive import adjoint, tangent
from cellgen.program.interpret import interpret
from cellgen.program.recurrence import RecurrenceClass
from cellgen.proof import check
from cellgen.runtime.paths import PACKAGE, include_folder
from cellgen.targets.running import running_headers, running_rows
from tests.conftest import RunningHeads, RunningUnits
from tests.language.test_operator_rows import adjoint_error, tangent_error
from tests.language.test_ops import program_of

K, D = Dim("K"), Dim("D")
WRITTEN = ("cumprod", "cummax", "logcumsumexp")


def along_rows(op: str, rows: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """An operator of one operand: its result, and the gradient of ones above each unit by turns."""
    a = np.asarray(rows)
    sizes = {"B": a.shape[0], "H": a.shape[1]}
    value = Value("a", (B, H), Role.WEIGHT)
    program = program_of(Apply(op, (value,)), [value])
    back, _ = adjoint(program, program.results, [value])
    by_unit = []
    for unit in range(a.shape[1]):
        above = np.zeros_like(a)
        above[:, unit] = 1
        by_unit.append(interpret(back, {"a": a, "d_y": above}, sizes)["d_a"])
    return interpret(program, {"a": a}, sizes)["y"], np.stack(by_unit, axis=1)


# --- what they mean -------------------------------------------------------------------------------


def test_each_unit_is_of_those_up_to_it() -> None:
    a = np.random.default_rng(0).normal(size=(3, 6))
    for op, expected in (
        ("cumprod", np.cumprod(a, axis=1)),
        ("cummax", np.maximum.accumulate(a, axis=1)),
        ("logcumsumexp", np.log(np.cumsum(np.exp(a), axis=1))),
    ):
        np.testing.assert_allclose(along_rows(op, a.tolist())[0], expected, rtol=1e-14)


@pytest.mark.parametrize("name", ["cumsum", *WRITTEN])
def test_two_units_are_combined_as_the_row_goes_along_them(name: str) -> None:
    """What a graph of ONNX is written from, which has no rows that go along units."""
    running = OPERATORS[name].running
    assert running is not None
    assert running.combine is not None
    numbers = (-np.inf, -40.0, -1.5, 0.0, 0.25, 3.0, 40.0, np.inf)
    a = np.array([(one, other) for one in numbers for other in numbers if one != -other])
    both = [Value(name, (B, H), Role.WEIGHT) for name in ("before", "after")]
    program = program_of(running.combine(*both), both)
    given = {"before": a[:, :1], "after": a[:, 1:]}
    found = interpret(program, given, {"B": len(a), "H": 1})["y"]
    np.testing.assert_allclose(found, along_rows(name, a.tolist())[0][:, 1:], 1e-15, 1e-17)


def test_a_product_has_its_derivatives_at_zeros_too() -> None:
    a = [2.0, 0.0, 3.0, 0.0, 5.0]
    _, found = along_rows("cumprod", [a])
    others = [
        [np.prod([a[i] for i in range(k + 1) if i != j]) if j <= k else 0 for j in range(5)]
        for k in range(5)
    ]
    np.testing.assert_array_equal(found[0], others)


@pytest.mark.parametrize("zeros", [(), (1,), (0, 3), (2, 3)])
def test_a_product_has_second_derivatives_at_zeros_too(zeros: tuple[int, ...]) -> None:
    a = Value("a", (B, H), Role.WEIGHT)
    rng, sizes = np.random.default_rng(2), (3, 4)
    program = program_of(Apply("cumprod", (a,)), [a])
    back, _ = adjoint(program, program.results, [a])
    for once in (program, back, tangent(program, [a])):
        given = {str(v.name): rng.normal(size=sizes) for v in once.arguments}
        given["a"][:, list(zeros)] = 0
        along = {str(v.name): rng.normal(size=sizes) for v in once.arguments}
        assert tangent_error(once, once.arguments, given, along) < 1e-13
        assert adjoint_error(once, once.arguments, given, along) < 1e-13


def test_a_maximum_moves_with_the_last_of_equal_units_and_nan_is_the_largest() -> None:
    largest, found = along_rows("cummax", [[1.0, 3.0, 3.0, 2.0], [-np.inf, -np.inf, 0.0, -1.0]])
    np.testing.assert_array_equal(largest, [[1, 3, 3, 3], [-np.inf, -np.inf, 0, 0]])
    np.testing.assert_array_equal(found.argmax(axis=2), [[0, 1, 2, 2], [0, 1, 2, 2]])
    assert (found.sum(axis=2) == 1).all()
    np.testing.assert_array_equal(
        along_rows("cummax", [[1.0, np.nan, 2.0]])[0], [[1, np.nan, np.nan]]
    )


def test_a_logarithm_of_sums_neither_overflows_nor_loses_what_is_infinite() -> None:
    inf = np.inf
    rows = [[-inf, -inf, 1000.0, 1000.0], [0.0, inf, 1.0, inf], [-800.0, -800.0, 0.0, -inf]]
    found, slopes = along_rows("logcumsumexp", rows)
    log2 = np.log(2)
    expected = [[-inf, -inf, 1000, 1000 + log2], [0, inf, inf, inf], [-800, -800 + log2, 0, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    shares = [
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5]],
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]],
        [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]],
    ]
    np.testing.assert_allclose(slopes, shares, rtol=1e-12, atol=1e-300)
    assert np.isnan(along_rows("logcumsumexp", [[1.0, np.nan, 2.0]])[0][0, 1:]).all()


# --- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [RunningUnits, RunningHeads, tangent_cell(RunningUnits)])
def test_kernels_agree_with_the_equations_and_with_complex_steps(cell: type[Cell]) -> None:
    report = check.check(cell)
    judged = [row for row in report.rows if row.verdict != "skipped"]
    assert [row.name for row in judged if not row.ok] == []
    proved = {row.name for row in judged}
    assert proved >= {"backward by complex step", "C float32 forward", "C float64 weight_gradients"}
    assert proved >= {"C float32 sequence_forward", "C sequence_backward with options"}


def test_a_kernel_has_the_meaning_of_infinity_nan_and_ties() -> None:
    class Bare(Cell):
        x, h_prev, v = Input(H), State(H), Bias(H)
        p, m, s = cumprod(x), cummax(x), log_sums(x)
        h = h_prev * v
        outputs = h, p, m, s

    inf, nan = np.inf, np.nan
    rows = np.array(
        [[2, 0, -3, 1], [1, 3, 3, 2], [-inf, -inf, 100, 100], [0, inf, 1, 2], [1, nan, 0, 4]]
    )
    kernel = api.compile(Bare)
    for dtype, close in ((np.float32, 1e-6), (np.float64, 1e-15)):
        given = {"x": rows.astype(dtype), "h_prev": np.ones((5, 4), dtype), "v": np.ones(4, dtype)}
        found = kernel.forward(**given)
        for name, op in (("p", "cumprod"), ("m", "cummax"), ("s", "logcumsumexp")):
            expected = along_rows(op, rows.tolist())[0]
            np.testing.assert_allclose(getattr(found, name), expected, rtol=close)


def test_every_written_row_has_a_routine_in_c_and_in_cuda() -> None:
    headers = running_headers()
    assert set(WRITTEN) <= {row.name for row in running_rows() if row.running.is_written}  # type: ignore[union-attr]
    for name, made in headers.items():
        assert (include_folder() / name).read_text() == made, "run cellgen build"
    for row in running_rows():
        for suffix in ("f32", "f64"):
            assert f" cellgen_{row.name}_{suffix}(" in headers["cellgen_running.h"]
        assert f"void cg_{row.name}(cellgen_run *run" in headers["cellgen_cuda_running.cuh"]


def test_a_cell_with_them_calls_each() -> None:
    c = generate(RunningUnits, ("c",)).text(".c")
    assert all(f"cg_{name}(" in c for name in (*WRITTEN, "linear_scan_transposed"))


@pytest.mark.parametrize("name", WRITTEN)
def test_no_pass_and_no_target_knows_one_of_them(name: str) -> None:
    """Its row, what authors call and a list of names, as docs/explanation/architecture.md says."""
    word = re.compile(rf"\b(?:cg_)?{name}\b")
    paths = [path for path in PACKAGE.rglob("*.py") if word.search(path.read_text())]
    rooms = ("language/ops", "program", "schedule", "targets", "onnx", "runtime")
    found = {str(path.relative_to(PACKAGE)) for path in paths}
    assert {name for name in found if name.startswith(rooms)} == {
        *("language/ops/__init__.py", "language/ops/cumulative.py", "language/ops/running.py"),
    }


def test_units_that_an_operator_goes_along_depend_on_each_other_and_heads_do_not() -> None:
    assert recurrence(RunningUnits).kind is RecurrenceClass.DENSE

    class OneHead(Cell):
        x, h_prev, r = Input(K, D), State(K, D), Weight(K, D, D)
        h = tanh(log_sums(x + h_prev @ r))

    assert recurrence(OneHead).kind is RecurrenceClass.BLOCK_DIAGONAL


# --- what authors write ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_they_are_written_as_they_are_printed_and_refuse_what_has_no_units(name: str) -> None:
    function = {"cumprod": cumprod, "cummax": cummax, "logcumsumexp": log_sums}[name]
    x = RunningUnits.definition.declared[0]
    assert text(function(x)) == f"{name}(x)"
    with pytest.raises(DeclarationError, match=rf"{name} along the units of a scalar"):
        function(2 * H)
    with pytest.raises(DeclarationError, match=rf"{name}\(..., axis=all|goes along one axis"):
        function(Value("s", (B, K, D), Role.STATE), axis=(K, D))


def test_rows_that_only_derivatives_have_are_not_for_authors() -> None:
    derived = {n for n, row in OPERATORS.items() if row.running and not row.running.is_written}
    assert derived == {
        *("cumsum_reversed", "linear_scan", "linear_scan_transposed"),
        *("shifted", "shifted_from_1", "shifted_from_least", "shifted_back"),
    }
