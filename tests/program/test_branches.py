"""Branches that are not taken: they contribute exactly 0 to derivatives of every order.

Each function is met on both sides of its branch and, where that side is stated, on the edge, where
the derivative of what is not taken is infinite or no number. Expected are derivatives by complex
step, which follow what is taken only.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from sympy import Expr

import cellgen
from cellgen import (
    Bias,
    Cell,
    H,
    I,
    Input,
    State,
    Weight,
    clip,
    exp,
    log,
    log1p,
    maximum,
    minimum,
    norm,
    relu,
    sqrt,
    tanh,
    where,
)
from cellgen import sum as total
from cellgen.cells import LRU, RGLRU, SLSTM
from cellgen.language.ops import absolute, power
from cellgen.pipeline import programs_of
from cellgen.program.branches import Branches
from cellgen.program.derive import adjoint, tangent
from cellgen.program.differentiate import differentiate
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.program.ssa import Program
from cellgen.program.step import CellPrograms, derive_functions
from cellgen.proof.check import check
from tests.conftest import SIZES, Arrays, directional, draw
from tests.cover import each_time

ROUNDING = 1e-12
"""Complex step is exact; second derivatives of logarithms and roots near 0 spread roundings."""

Function = Callable[[Expr], Expr]

FUNCTIONS: dict[str, Function] = {
    "a root where it exists": lambda a: where(a > 0, sqrt(a), 0),
    "a root of a maximum": lambda a: sqrt(maximum(0, a)),
    "a root of relu": lambda a: sqrt(relu(a)),
    "a root, spelled as a power": lambda a: relu(a) ** 0.5,
    "a power of a maximum": lambda a: maximum(0, a) ** 0.3,
    "a rational power in one statement": lambda a: where(a > 0, relu(a) ** 1.5 / a, a),
    "a logarithm": lambda a: where(a > 0, log(a), -1),
    "a logarithm times a value": lambda a: where(a > 0, log(a) * a, a),
    "log1p": lambda a: where(a > -1, log1p(a), a),
    "a quotient": lambda a: where(a > 0, 1 / a, 0),
    "a named quotient": lambda a: where(a > 0, tanh(1 / a), 0),
    "an exponential that overflows": lambda a: where(a < 1, exp(200 * a), 1),
    "roots of logarithms": lambda a: where(a > 1, sqrt(log(a)) * a, relu(-a) ** 0.5),
    "branches within branches": lambda a: where(
        a > 0, where(a > 1, log(sqrt(a) + log(a)), sqrt(a) / a), sqrt(-minimum(a, -0.1))
    ),
    "a clipped root": lambda a: sqrt(clip(a, 0.25, 4)) + where(a > 0, sqrt(clip(a, 0, 9)), 0),
    "a root far within": lambda a: where(a > 0, tanh(sqrt(sqrt(a)) * log(a)), tanh(a)),
    "a root of a size": lambda a: where(absolute(a) > 0.1, sqrt(absolute(a)), a),
    "a length": lambda a: norm(a) * tanh(a),
    "a sum of two": lambda a: where(a > 0, sqrt(a), 0) * where(a > 0, log(a), 1),
}

EDGES = np.array([-1.5, 0.0, 0.3, 2.0, 6.0, -0.7])
"""Points on both sides of every branch, and 0 itself; not the edges 1 and 4 of some."""


def cell_of(function: Function) -> type[Cell]:
    class Branched(Cell, name="branched"):
        x, h_prev = Input(H), State(H)
        w, b = Weight(H, H), Bias(H)
        inner = function(x)
        h = tanh(inner @ w + b) + 0.5 * h_prev + inner

    return Branched


def drawn_function(rng: np.random.Generator, depth: int = 3) -> Function:
    """Branches in branches, of roots, logarithms, quotients and exponentials."""
    if depth == 0:
        return lambda a: a
    u, v = (
        drawn_function(rng, depth - 1),
        drawn_function(rng, max(0, depth - int(rng.integers(1, 3)))),
    )
    edge = float(rng.choice([0.0, 0.25, 0.5]))
    rows: list[Function] = [
        lambda a: where(u(a) > edge, sqrt(u(a)), v(a)),
        lambda a: where(u(a) > edge, log(u(a)) * v(a), v(a)),
        lambda a: where(edge >= v(a), tanh(v(a)), 1 / (0.1 + v(a))),
        lambda a: where(u(a) > edge, tanh(1 / u(a)), v(a)),
        lambda a: where(u(a) < 1, exp(300 * u(a) - 300), v(a)),
        lambda a: sqrt(maximum(0, u(a))) * v(a),
        lambda a: relu(u(a)) ** 0.5 - v(a),
        lambda a: power(maximum(edge, u(a)), 1.5) + tanh(v(a)),
        lambda a: log(clip(u(a), 0.5, 2)) * minimum(1, v(a)),
    ]
    return rows[int(rng.integers(len(rows)))]


def given_for(program: Program, seed: int = 0) -> Arrays:
    given = draw(program.arguments, seed)
    given["x"] = np.resize(EDGES, given["x"].shape)
    return given


def by_complex_step(program: Program, given: Arrays, upstream: Arrays) -> Arrays:
    found = {}
    for value in program.arguments:
        gradient = np.zeros(given[str(value)].shape)
        for index in np.ndindex(gradient.shape):
            along = np.zeros(gradient.shape)
            along[index] = 1
            slopes = directional(program, given, {str(value): along})
            gradient[index] = sum(np.sum(upstream[k] * slope) for k, slope in slopes.items())
        found[str(value)] = gradient
    return found


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.isfinite(expected).all()
    assert np.isfinite(found).all()
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= ROUNDING * (scale or 1)
    np.testing.assert_array_equal(found[expected == 0], 0)  # exactly: nothing is left of a product


def assert_derivatives(function: Function) -> None:
    """Gradients, their gradients, tangents, and tangents of gradients."""
    first, full = derive_functions(cell_of(function).definition).mathematics
    given, upstream = given_for(first), draw(full.optional, 1)
    expected = by_complex_step(first, given, {"h": upstream["d_h"]})
    found = interpret(full, {**given, **upstream}, SIZES)
    for name, array in expected.items():
        assert_close(found[f"d_{name}"], array)

    second, adjoints = adjoint(full, full.results, full.arguments)
    along = draw(full.results, 2)
    given = {**given, **upstream}
    optional = [value for value in second.optional if value not in full.optional]
    named = {str(v): along[str(r)] for v, r in zip(optional, full.results, strict=True)}
    expected = by_complex_step(full, given, along)
    values = interpret(second, {**given, **named}, SIZES, keep=True)
    for argument in full.arguments:
        assert_close(values[str(adjoints[argument])], expected[str(argument)])

    for program in (first, full):
        moving = draw(program.arguments, 1)
        expected = directional(program, given, moving)
        moved = {**given, **{f"t_{name}": array for name, array in moving.items()}}
        found = interpret(tangent(program, program.arguments), moved, SIZES)
        for result in program.results:
            assert_close(found[f"t_{result}"], expected[str(result)])


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_branch_that_is_not_taken_adds_nothing_in_any_order(function: Function) -> None:
    assert_derivatives(function)


@pytest.mark.parametrize("seed", each_time(range(8), range(24)))
def test_drawn_branches_add_nothing_where_they_are_not_taken(seed: int) -> None:
    assert_derivatives(drawn_function(np.random.default_rng(seed)))


def all_functions() -> type[Cell]:
    """Every function of the table, each of an input of its own, as outputs of one cell."""

    def body(names: Any) -> None:
        names["h_prev"] = State(H)
        names["h"] = 0.5 * names["h_prev"]
        for k, function in enumerate(FUNCTIONS.values(), start=1):
            names[f"x_{k}"] = Input(H)
            names[f"y_{k}"] = function(names[f"x_{k}"])
        names["outputs"] = (names["h"], *(names[f"y_{k + 1}"] for k in range(len(FUNCTIONS))))

    return cast("type[Cell]", types.new_class("AllBranches", (Cell,), {}, body))


@pytest.mark.usefixtures("compiled_as_by_users")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_c_adds_nothing_for_a_branch_that_is_not_taken(dtype: str) -> None:
    cell = all_functions()
    kernel, programs = cellgen.compile(cell), programs_of(cell)
    for points in (np.stack([EDGES, EDGES[::-1]]), np.zeros((2, EDGES.size))):
        assert_kernel(kernel, programs, points.astype(dtype))


def assert_kernel(kernel: cellgen.Kernel, programs: CellPrograms, points: np.ndarray) -> None:
    """Gradients of a step and over time, against the interpreter; what is 0 there is 0 in C."""
    dtype, sizes = points.dtype, {"B": 2, "H": EDGES.size}
    given = {str(v): points for v in programs["forward"].arguments}
    rng = np.random.default_rng(0)
    upstream = {
        f"d_{v}": rng.normal(size=points.shape).astype(dtype) for v in programs.definition.outputs
    }
    known = {**given, **upstream}
    expected = interpret(programs.mathematics[1], known, sizes)
    known |= kernel.forward(**given)._asdict()
    accepted = [item.name for item in kernel.backward.function.arguments]
    found = kernel.backward(**{n: known[n] for n in accepted})._asdict()
    steps = {f"x_{k + 1}": np.stack([points] * 3) for k in range(len(FUNCTIONS))}
    made = kernel.sequence_forward(h_prev=points, **steps, save=True)._asdict()
    steps |= {n: np.stack([a] * 3) for n, a in upstream.items()}
    whole = kernel.sequence_backward(
        h_prev=points, **steps, **{n: a for n, a in made.items() if n != "h_last"}
    )._asdict()
    for k, name in enumerate(FUNCTIONS, start=1):
        array = expected[f"d_x_{k}"]
        assert np.isfinite(array).all(), name
        # Roundings of 200 * a alone, in an exponent: 60 of them, 4 ulp of a function beside.
        bars = {"rtol": 128 * np.finfo(dtype).eps, "atol": np.finfo(dtype).tiny}
        np.testing.assert_allclose(found[f"d_x_{k}"], array, **bars, err_msg=name)
        for step in whole[f"d_x_{k}"]:
            np.testing.assert_allclose(step, array, **bars, err_msg=name)
        np.testing.assert_array_equal(found[f"d_x_{k}"][array == 0], 0)


# --- exponentials of exponentials, powers, lengths ------------------------------------------------


def first_gradient(function: Function, points: Sequence[float]) -> np.ndarray:
    """dy/dx at some points, with a second derivative that must be a number there as well."""
    _, full = derive_functions(cell_of(function).definition).mathematics
    given = {str(v): np.zeros(shape_sizes(v, SIZES)) for v in full.arguments}
    given |= {"x": np.resize(points, given["x"].shape), "d_h": np.ones(given["d_h"].shape)}
    by = [value for value in full.arguments if str(value) == "x"]
    moved = interpret(tangent(full, by), {**given, "t_x": given["d_h"]}, SIZES)
    assert np.isfinite(moved["t_d_x"]).all()
    return moved["d_x"].ravel()[: len(points)]


def test_an_exponential_of_an_exponential_that_overflows_has_the_derivative_zero() -> None:
    points = [-1.0, 3.0, 6.0, 720.0, 1e4]
    found = first_gradient(lambda a: exp(-exp(a)), points)
    with np.errstate(over="ignore"):
        expected = [-np.exp(a - np.exp(a)) for a in points]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_a_power_with_the_base_zero_has_the_limits_of_its_derivatives() -> None:
    class Powers(Cell):
        x, h_prev, p = Input(H), State(H), Input(H)
        h = x**p + h_prev

    first, full = derive_functions(Powers.definition).mathematics
    exponents = np.array([[3.0, 2.5, 2.0, 1.0]])
    given = {"x": np.zeros((1, 4)), "p": exponents, "h_prev": np.zeros((1, 4))}
    given["d_h"] = np.ones((1, 4))
    sizes = {"B": 1, "H": 4}
    found = interpret(full, given, sizes)
    np.testing.assert_array_equal(found["d_x"], [[0, 0, 0, 1]])
    np.testing.assert_array_equal(found["d_p"], 0)
    assert np.isnan(interpret(full, {**given, "x": np.full((1, 4), -1.0)}, sizes)["d_p"]).any()
    by = [value for value in full.arguments if str(value) in "xp"]
    along = dict.fromkeys(("t_x", "t_p"), exponents)
    moved = interpret(tangent(full, by), {**given, **along}, sizes)
    np.testing.assert_array_equal(moved["t_d_x"][:, :3], [[0, 0, 4]])  # p (p - 1) x^(p - 2)
    np.testing.assert_array_equal(moved["t_d_p"][:, :3], 0)
    assert first.results


def test_a_norm_has_the_derivative_zero_at_zero_and_a_written_root_of_a_sum_has_none() -> None:
    np.testing.assert_array_equal(first_gradient(lambda a: norm(a) * a + norm(a), [0.0]), 0)
    _, full = derive_functions(cell_of(lambda a: sqrt(total(a * a)) + a).definition).mathematics
    given = {str(v): np.zeros(shape_sizes(v, SIZES)) for v in full.arguments}
    given["d_h"] += 1
    assert np.isnan(interpret(full, given, SIZES)["d_x"]).all()
    excluded = first_gradient(lambda a: where(total(a * a) > 0, sqrt(total(a * a)), 0) + a, [0.0])
    np.testing.assert_array_equal(excluded, 1)


def test_a_norm_is_the_length_of_a_vector_with_its_derivatives_and_shows_nan() -> None:
    first, full = derive_functions(cell_of(lambda a: norm(a) * a).definition).mathematics
    given, upstream = draw(first.arguments), draw(full.optional, 1)
    expected = by_complex_step(first, given, {"h": upstream["d_h"]})
    found = interpret(full, {**given, **upstream}, SIZES)
    for name, array in expected.items():
        np.testing.assert_allclose(found[f"d_{name}"], array, rtol=1e-11)
    length = np.sqrt((given["x"] ** 2).sum(axis=-1, keepdims=True))
    inner = interpret(first, given, SIZES, keep=True)["inner"]
    np.testing.assert_allclose(inner, length * given["x"], rtol=1e-14)
    given["x"][0, 0] = np.nan
    assert np.isnan(interpret(first, given, SIZES, keep=True)["inner"][0]).all()


# --- what is left as it was -----------------------------------------------------------------------


def test_branches_that_meet_nothing_infinite_are_multiplied_as_before() -> None:
    for function in (relu, lambda a: maximum(a, 0.1 * a), lambda a: sqrt(relu(a) ** 2 + 1e-5)):
        _, full = derive_functions(cell_of(function).definition).mathematics
        assert not any("strong" in str(s) or "where" in str(s) for s in full.statements)


def test_a_gate_that_is_shut_leaves_the_derivatives_of_the_rg_lru_finite() -> None:
    """Its decay is 1 there, and the root of 0 that scales inputs has no derivative."""
    programs = derive_functions(RGLRU.definition)
    forward, full = programs.mathematics
    given = draw(full.arguments)
    given["b_a"] = np.full_like(given["b_a"], -800)
    found = interpret(full, given, SIZES)
    np.testing.assert_allclose(interpret(forward, given, SIZES)["h"], given["h_prev"], atol=1e-300)
    for name, array in found.items():
        assert np.isfinite(array).all(), name
    assert not found["d_w_a"].any()


@pytest.mark.parametrize("cell", [LRU, SLSTM, RGLRU], ids=["lru", "slstm", "rg_lru"])
def test_what_selects_is_equal_to_the_bit_to_the_product_where_that_is_a_number(
    cell: type[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = derive_functions(cell.definition).mathematics[1]
    given = draw(full.arguments)
    found = interpret(full, given, SIZES)
    monkeypatch.setattr(Branches, "product", lambda self, first, second: first * second)
    monkeypatch.setattr("cellgen.program.step.differentiate", differentiate.__wrapped__)
    plain = derive_functions(cell.definition).mathematics[1]
    assert [str(s) for s in plain.statements] != [str(s) for s in full.statements]
    for name, array in interpret(plain, given, SIZES).items():
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_the_report_names_the_kinks_and_checks_what_branches_do_not_take() -> None:
    class Rooted(Cell):
        x, h_prev = Input(I), State(H)
        w = Weight(I, H)
        a = x @ w
        h = where(a > 0.5, sqrt(a), relu(h_prev - 2 * tanh(a)))

    report = check(Rooted)
    assert report.ok, str(report)
    note = next(r.note for r in report.rows if r.name == "backward by complex step")
    assert "a = 0.5" in note
    assert "h_prev - 2 * tanh(a) = 0" in note
