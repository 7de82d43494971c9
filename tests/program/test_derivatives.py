"""Derivatives of first, second and third order from compiled tangents, against complex steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import cellgen
from cellgen import ArgumentError, Cell, H, I, Input, Scalar, State, Weight, tangent, tanh
from cellgen.bench.problem import POSITIVE
from cellgen.cells import GRU, SHIPPED, Elman, LSTMBlockCell, MinGRU
from cellgen.derivatives import Second, directions, double_backward, hvp, jvp
from cellgen.language.value import Role
from cellgen.pipeline import programs_of
from cellgen.program.interpret import STEP, interpret, shape_sizes
from cellgen.proof.over_time import run_steps
from tests.conftest import Arrays, relative

SIZES = {"T": 4, "B": 3, "I": 2, "H": 5, "K": 2, "N": 2, "D": 3, "P": 3, "R": 2, "M": 4}
ACCURACY = 1e-12
"""As of ``sequence_backward`` in ``cellgen check``: sums over steps in another order."""

HANDFUL = (Elman, GRU, LSTMBlockCell, MinGRU)
a_few_cells = pytest.mark.parametrize("cell", HANDFUL, ids=lambda cell: cell.definition.name)
the_other_cells = pytest.mark.parametrize(
    "cell", [c for c in SHIPPED if c not in HANDFUL], ids=lambda cell: cell.definition.name
)


def drawn(cell: type[Cell], seed: int, steps: int | None = SIZES["T"]) -> Arrays:
    """Random arguments of a cell, those of a sequence or of one step; scalars at their defaults."""
    rng, arrays = np.random.default_rng(seed), {}
    for value in cell.definition.declared:
        shape = shape_sizes(value, SIZES)
        if value.role is Role.SCALAR:
            arrays[str(value.name)] = np.asarray(cell.definition.defaults[str(value.name)])
            continue
        if value.role is Role.INPUT and steps is not None:
            shape = (steps, *shape)
        arrays[str(value.name)] = 0.5 * rng.normal(size=shape)  # exponential gates stay small
        if str(value.name) in POSITIVE:
            arrays[str(value.name)] = 0.5 + np.abs(arrays[str(value.name)])
    return arrays


def gradients(cell: type[Cell], given: Arrays, upstream: Arrays, steps: bool = True) -> Arrays:
    """Interpret the gradients of sum(upstream * outputs), complex where arguments are: step by
    step, or of one step."""
    definition, programs = cell.definition, programs_of(cell)
    forward, *backward = programs.functions
    inputs = {str(v.name) for v in definition.with_role(Role.INPUT)} if steps else set()
    carried = {str(s.name): f"d_{definition.next_state(s).name}" for s in definition.states}
    tape, state = [], {name: given[name] for name in carried}
    for t in range(SIZES["T"] if steps else 1):
        now = {n: a[t] if n in inputs else a for n, a in given.items()} | state
        made = interpret(forward, now, SIZES)
        tape.append({**now, **made})
        state = {name: made[d.removeprefix("d_")] for name, d in carried.items()}
    carry = {d: upstream.get(f"{d}_last", 0) for d in carried.values()}
    named = {str(a.name): f"d_{v.name}" for v, a in programs.adjoints.items()}
    found: dict[str, list[np.ndarray]] = {}
    for t, known in reversed(list(enumerate(tape))):
        ups = {n: a[t] if steps else a for n, a in upstream.items() if not n.endswith("_last")}
        for name, array in carry.items():
            ups[name] = ups.get(name, 0) + array + 0 * known[name.removeprefix("d_")]
        known = {**known, **ups}
        for program in backward:
            known |= interpret(program, known, SIZES)
        now = {named[n]: a for n, a in known.items() if n in named}
        carry = {d: now.get(f"d_{name}", 0) for name, d in carried.items()}
        for value in definition.declared:
            if f"d_{value.name}" in now:
                found.setdefault(f"d_{value.name}", []).append(now[f"d_{value.name}"])
    timed = {f"d_{name}" for name in inputs}
    return {
        n: np.array(a[::-1]) if n in timed else a[-1] if n.removeprefix("d_") in carried else sum(a)
        for n, a in found.items()
    }


def plain(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | float]:
    """Arguments as a call takes them: scalars are numbers."""
    return {name: array if array.ndim else float(array) for name, array in arrays.items()}


def agree(cell: type[Cell], *, steps: bool = True) -> None:
    """Compare every recipe with complex steps through the cell's outputs and gradients."""
    kernel = cellgen.compile(tangent(cell))
    moves = directions(kernel)
    given = drawn(cell, 0, SIZES["T"] if steps else None)
    other = drawn(cell, 1, SIZES["T"] if steps else None)
    along = {name: other[name] for name in given if name in moves}
    moved = {n: a + 1j * STEP * along[n] if n in along else a for n, a in given.items()}
    outputs = _outputs(cell, moved, steps)
    rng = np.random.default_rng(2)
    upstream, turn = (
        {f"d_{n}": rng.normal(size=a.shape) for n, a in outputs.items()} for _ in "ab"
    )

    first = jvp(kernel, plain(given), plain(along), over_time=steps)
    assert first.outputs.keys() == outputs.keys()
    for name, array in outputs.items():
        assert relative(first.outputs[name], array.real) < ACCURACY, name
        assert relative(first.tangents[name], array.imag / STEP) < ACCURACY, name

    for change in ({}, turn):
        second = hvp(kernel, plain(given), plain(along), upstream, change, over_time=steps)
        ups = {n: a + 1j * STEP * change.get(n, 0 * a) for n, a in upstream.items()}
        _second_agrees(second, gradients(cell, moved, ups, steps))

    cotangents = {f"d_{name}": array for name, array in plain(along).items()}
    back = double_backward(kernel, plain(given), upstream, cotangents, over_time=steps)
    _second_agrees(back, gradients(cell, moved, upstream, steps))
    for name, array in outputs.items():
        assert relative(back.tangents[name], array.imag / STEP) < ACCURACY


def _outputs(cell: type[Cell], given: Arrays, steps: bool) -> Arrays:
    if steps:
        return run_steps(cell.definition, given, SIZES).results
    return interpret(programs_of(cell)["forward"], given, SIZES)


def _second_agrees(second: Second, expected: Arrays) -> None:
    assert second.derivatives.keys() == expected.keys()
    for name, array in expected.items():
        scale = np.max(np.abs(array.real)) + np.max(np.abs(array.imag / STEP)) or 1.0
        error = np.max(np.abs(second.derivatives[name] - array.imag / STEP)) / scale
        assert error < ACCURACY, name
        if name in second.gradients:
            assert relative(second.gradients[name], array.real) < ACCURACY, name


@a_few_cells
def test_recipes_over_time_agree_with_complex_steps(cell: type[Cell]) -> None:
    agree(cell)


@a_few_cells
def test_recipes_of_one_step_agree_with_complex_steps(cell: type[Cell]) -> None:
    agree(cell, steps=False)


@pytest.mark.slow
@the_other_cells
def test_recipes_agree_with_complex_steps_for_every_cell(cell: type[Cell]) -> None:
    agree(cell)
    agree(cell, steps=False)


def test_third_derivatives_by_the_tangent_of_a_tangent() -> None:
    once = tangent(Elman)
    twice = cellgen.compile(tangent(once))
    given, along = drawn(once, 0), drawn(once, 1)
    shapes = run_steps(once.definition, given, SIZES).results
    rng = np.random.default_rng(2)
    upstream = {f"d_{n}": rng.normal(size=a.shape) for n, a in shapes.items()}
    found = hvp(twice, given, along, upstream)
    moved = {n: a + 1j * STEP * along[n] for n, a in given.items()}
    _second_agrees(found, gradients(once, moved, upstream))


def test_a_tangent_along_inputs_alone_gives_a_gradient_penalty() -> None:
    """The gradients of |d_x|^2 / 2 by every weight: a double backward with the cotangent d_x."""
    kernel = cellgen.compile(tangent(Elman, by=("x", "h_prev")))
    given = drawn(Elman, 0)
    upstream = {"d_h": np.random.default_rng(1).normal(size=(4, 3, 5))}
    first = gradients(Elman, given, upstream)
    penalty = double_backward(kernel, given, upstream, {"d_x": first["d_x"]})
    moved = {**given, "x": given["x"] + 1j * STEP * first["d_x"]}
    expected = gradients(Elman, moved, upstream)
    assert set(penalty.derivatives) == set(expected)
    assert set(penalty.gradients) == {"d_x", "d_h_prev"}
    _second_agrees(penalty, expected)


@pytest.mark.parametrize("steps", [True, False])
def test_derivatives_that_nobody_wants_are_left_out(steps: bool) -> None:
    kernel = cellgen.compile(tangent(GRU))
    given, along = (drawn(GRU, seed, SIZES["T"] if steps else None) for seed in (0, 1))
    upstream = {"d_h": np.ones((4, 3, 5) if steps else (3, 5))}
    every = hvp(kernel, given, along, upstream, over_time=steps)
    some = hvp(kernel, given, along, upstream, gradients=("d_w_n", "d_x"), over_time=steps)
    assert list(some.derivatives) == ["d_w_n", "d_x"]
    assert not some.gradients
    for name, array in some.derivatives.items():
        np.testing.assert_array_equal(array, every.derivatives[name])
    with pytest.raises(ArgumentError, match="unknown 'd_dot_x' in gradients"):
        hvp(kernel, given, along, upstream, gradients=("d_dot_x",), over_time=steps)


def test_options_over_time_mean_the_same_for_derivatives() -> None:
    """Against differences of gradients, whose error is some 1e-9 of their size."""
    kernel, own = cellgen.compile(tangent(GRU)), cellgen.load("gru")
    given, along = drawn(GRU, 0), drawn(GRU, 1)
    upstream = {"d_h": np.random.default_rng(3).normal(size=(4, 3, 5))}
    rng = np.random.default_rng(4)
    options = {
        "lengths": np.array([4, 0, 2]),
        "mask": rng.random((4, 3)) < 0.7,
        "reset": rng.random((4, 3)) < 0.3,
        "reverse": True,
        "threads": 2,
    }

    def gradient(by: float) -> Arrays:
        moved = {n: a + by * along[n] for n, a in given.items()}
        made = own.sequence_forward(**moved, **options, save=True)
        back = own.sequence_backward(**moved, **options, h=made.h, saved=made.saved, **upstream)
        return back._asdict()

    second = hvp(kernel, given, along, upstream, **options)
    high, low = gradient(1e-5), gradient(-1e-5)
    for name, array in second.derivatives.items():
        assert relative(array, (high[name] - low[name]) / 2e-5) < 1e-7, name
    transposed = {**given, "x": np.ascontiguousarray(given["x"].swapaxes(0, 1))}
    flipped = {**along, "x": np.ascontiguousarray(along["x"].swapaxes(0, 1))}
    rows = jvp(kernel, transposed, flipped, batch_first=True)
    np.testing.assert_array_equal(
        rows.tangents["h"].swapaxes(0, 1), jvp(kernel, given, along).tangents["h"]
    )


def test_float32_in_gives_float32_out() -> None:
    kernel = cellgen.compile(tangent(Elman))
    given = {n: a.astype(np.float32) for n, a in drawn(Elman, 0).items()}
    second = hvp(kernel, given, {"w": given["w"]}, {"d_h_last": given["h_prev"]})
    arrays = [*second.tangents.values(), *second.derivatives.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}


def test_a_scalar_that_learns_has_a_direction() -> None:
    class Leaky(Cell):
        x, h_prev, rate, w = Input(I), State(H), Scalar(0.5, gradient=True), Weight(I, H)
        h = (1 - rate) * h_prev + rate * tanh(x @ w)

    agree(Leaky)


def test_directions_of_a_kernel_are_those_of_the_last_tangent() -> None:
    twice = cellgen.compile(tangent(tangent(Elman)))
    assert directions(twice)["dot_x"] == "dot2_dot_x"
    assert "dot2_x" not in directions(twice)
    assert directions(cellgen.compile(tangent(Elman)))["h_last"] == "dot_h_last"


def test_wrong_questions_are_answered_by_name() -> None:
    kernel = cellgen.compile(tangent(Elman, by="x"))
    given = drawn(Elman, 0)
    up = {"d_h": np.zeros((4, 3, 5))}
    for call, message in (
        (lambda: jvp(cellgen.load("elman"), given, {}), "elman is of no tangent"),
        (lambda: jvp(Elman, given, {}), "expected that of a tangent"),
        (lambda: jvp(kernel, given, {"w": given["w"]}), r"jvp: unknown 'w' in along"),
        (lambda: hvp(kernel, given, {}, {"h": up["d_h"]}), r"hvp: unknown 'h' in upstream"),
        (lambda: hvp(kernel, given, {}, up, {"d_x": up}), r"unknown 'd_x' in d_upstream"),
        (lambda: double_backward(kernel, given, up, {"x": up["d_h"]}), "such as d_x"),
        (lambda: hvp(kernel, given, {}, up, window=2), "unknown option 'window'"),
        (lambda: jvp(kernel, given, {}, over_time=False, threads=1), "unknown option 'threads'"),
        (lambda: jvp(kernel, {**given, "y": 1}, {}), "'y'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
