"""Branches that are not taken: they contribute exactly 0 to derivatives of every order.

Each function is met on both sides of its branch and, where that side is stated, on the edge, where
the derivative of what is not taken is infinite or no number. Expected are derivatives by complex
step, which follow what is taken only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sympy import Expr

from cellgen import (
    Bias,
    Cell,
    H,
    Input,
    State,
    Weight,
    clip,
    exp,
    log,
    log1p,
    maximum,
    minimum,
    relu,
    sqrt,
    tanh,
    where,
)
from cellgen.language.ops import absolute, power
from cellgen.program.derive import adjoint, tangent
from cellgen.program.interpret import interpret
from cellgen.program.ssa import Program
from cellgen.program.step import derive_functions
from tests.conftest import SIZES, Arrays, directional, draw

ROUNDING = 1e-12
"""Complex step is exact; second derivatives of logarithms and roots near 0 spread their roundings."""

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


@pytest.mark.parametrize("seed", range(24))
def test_drawn_branches_add_nothing_where_they_are_not_taken(seed: int) -> None:
    assert_derivatives(drawn_function(np.random.default_rng(seed)))
