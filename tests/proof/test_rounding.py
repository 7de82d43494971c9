"""What errors are measured against: nudges of random sign, and programs that are run often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cellgen.cells import GRU
from cellgen.pipeline import programs_of
from cellgen.program.closures import prepare
from cellgen.program.interpret import interpret
from cellgen.proof.rounding import DRAWN, Scales, scales_of
from tests.conftest import SIZES, draw


def test_a_result_that_cancels_is_measured_by_its_terms() -> None:
    a = np.linspace(1, 2, 6).reshape(2, 3)
    exact = {"y": a - a, "z": 2 * a}
    found = scales_of(
        exact, lambda nudge, inner: {"y": nudge(a) - nudge(a), "z": 2 * a}, np.random.default_rng(0)
    )
    assert 2 < found["y"] <= 4 + 1e-5, "signs of both kinds, of each entry by itself"
    assert found["z"] == 4


def test_what_is_infinite_is_not_nudged() -> None:
    """As a running maximum begins: exp(m) is 0, and no nudge makes a sum beside it undefined."""
    a, m = np.full(3, 2.0), np.full(3, -np.inf)
    found = scales_of(
        {"y": a},
        lambda nudge, inner: {"y": 8 * nudge(a) - 7 * a + np.exp(nudge(m))},
        np.random.default_rng(0),
    )
    assert found["y"] == 16


def test_rounding_is_run_where_it_decides_alone() -> None:
    """And what is drawn after it does not depend on whether it was."""
    a, runs = np.linspace(1, 2, 6), []

    def run(nudge, inner):  # type: ignore[no-untyped-def]
        runs.append(1)
        return {"y": 8 * nudge(a) - 7 * a, "z": nudge(a)}

    drawn = []
    for difference, bar, scale, least in (
        (1e-16, 1e-16, 2.0, 0),
        (3e-16, 1e-16, 16.0, 1),
        (np.nan, 1e-16, 16.0, 1),
        (np.inf, 1e-16, 16.0, 1),
    ):
        runs.clear()
        rng = np.random.default_rng(0)
        scales = Scales({"y": a, "z": a}, run, rng)
        assert scales.of("y", difference, bar) == scale
        assert (len(runs) > 0) == least
        assert scales.of("z", 0.0, bar) == 2.0
        drawn.append(rng.integers(2**60))
    assert len(set(drawn)) == 1


def test_signs_of_large_arrays_and_of_many_small_ones_are_of_both_kinds() -> None:
    seen = []

    def run(nudge, inner):  # type: ignore[no-untyped-def]
        seen.append([np.sign(nudge(np.ones(n)) - 1) for n in (DRAWN + 1, *[7] * 1000)])
        return {}

    scales_of({}, run, np.random.default_rng(0))
    one, two, _ = ([np.concatenate(arrays) for arrays in (s[:1], s[1:])] for s in seen)
    for of_one, of_two in zip(one, two, strict=True):
        assert set(of_one) == {-1.0, 1.0}
        assert abs(of_one.mean()) < 0.08
        assert abs((of_one * of_two).mean()) < 0.08, "each run has signs of its own"


def test_a_program_is_prepared_once_and_again_where_it_is_another() -> None:
    program = programs_of(GRU)["forward"]
    assert prepare(program) is prepare(program)
    assert prepare(replace(program, function="other")) is not prepare(program)
    given = draw(program.arguments)
    larger = {**SIZES, "B": 5}
    for sizes in (SIZES, larger, SIZES):
        found = interpret(program, draw(program.arguments, 0, sizes), sizes)["h"]
        assert found.shape == (sizes["B"], sizes["H"])
    assert np.array_equal(found, interpret(program, given, SIZES)["h"])
