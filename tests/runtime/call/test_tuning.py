"""Measured plans: asked for, kept on disk, never a change of results."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.host import tuning
from cellgen.runtime.host.plans import Constants, SequencePlan
from cellgen.runtime.paths import include_folder
from tests.drawing import draw_arrays

PLAN = SequencePlan(2, True, False, False, 192, 768, 1, 1000)
OTHER = replace(PLAN, by_units=False)
KEY = [("what", "a test")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without plans; kernels are those of other tests."""
    kernel().build()
    kernel("sru").build()
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))


@cache
def kernel(name: str = "gru_block_cell") -> cellgen.Kernel:
    return cellgen.load(name)


def test_windows_that_are_tried_are_those_that_calls_on_amx_take() -> None:
    header = (include_folder() / "cellgen_plan.h").read_text(encoding="utf-8")
    assert f"#define CELLGEN_AMX_WINDOW_STEPS {tuning.WINDOW_STEPS}\n" in header


class Clock:
    """Stands in for ``time``: running a plan takes as long as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[SequencePlan, float]) -> None:
        self.now, self.seconds, self.runs = 0.0, seconds, 0
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)

    def run(self, plan: SequencePlan) -> None:
        self.runs += 1
        self.now += self.seconds[plan]


@pytest.mark.parametrize(
    ("seconds", "best"), [((1.0, 0.5), OTHER), ((1.0, 2.0), PLAN), ((1.0, 0.98), PLAN)], ids=str
)
def test_the_fastest_wins_if_by_more_than_noise(monkeypatch, seconds, best):
    clock = Clock(monkeypatch, dict(zip((PLAN, OTHER), seconds, strict=True)))
    assert tuning.measured(KEY, (PLAN, OTHER), clock.run, "here") == best


def test_what_was_found_is_not_measured_again(monkeypatch):
    clock = Clock(monkeypatch, {PLAN: 1.0, OTHER: 0.5})
    first = tuning.measured(KEY, (PLAN, OTHER), clock.run, "here")
    before = clock.runs
    assert tuning.measured(KEY, (PLAN, OTHER), clock.run, "here") == first
    assert clock.runs == before == 2 * (tuning.ROUNDS + 1)
    tuning.measured([("what", "another")], (PLAN, OTHER), clock.run, "here")
    assert clock.runs == 2 * before


def test_a_plan_that_does_not_fit_is_left_out():
    def run(plan: SequencePlan) -> None:
        if plan == OTHER:
            raise CellgenError(f"returned 5: {tuning.UNFIT}", code="kernel")

    assert tuning.measured(KEY, (PLAN, OTHER), run, "here") == PLAN


def test_another_fault_is_not_swallowed():
    def run(plan: SequencePlan) -> None:
        raise CellgenError("returned 1", code="kernel")

    with pytest.raises(CellgenError, match="returned 1"):
        tuning.measured(KEY, (PLAN, OTHER), run, "here")


def test_few_plans_come_into_question():
    one = replace(PLAN, threads=1, by_units=False)
    assert tuning.candidates(one, 100, 192) == (one,)
    assert tuning.candidates(one, 100, 2) == (one, replace(one, hoist=True))
    assert tuning.candidates(one, 1, 2) == (one,)
    far = replace(one, hoist=True, window_rows=192)
    assert replace(far, window_rows=4 * 192) in tuning.candidates(far, 100, 192)
    assert far.window_rows == max(p.window_rows for p in tuning.candidates(far, 100, 48))
    found = tuning.candidates(PLAN, 100, 2)
    assert found == (PLAN, OTHER, replace(PLAN, hoist=True))


def test_nothing_is_timed_twice_where_no_product_is_formed_ahead():
    found = tuning.candidates(PLAN, 100, 2, chunked=True)
    assert PLAN in found
    assert not any(plan.hoist for plan in found)


def test_chunks_of_other_lengths_come_into_question():
    plan = replace(PLAN, threads=1, chunk_rows=200, by=Constants(chunk_rows=300))
    found = tuning.candidates(plan, 100, 200, chunked=True)
    assert found == (plan, *(replace(plan, chunk_rows=n) for n in (600, 1200)))  # whole steps
    few = tuning.candidates(plan, 4, 200, chunked=True)
    assert [p.chunk_rows for p in few] == [200, 600, 800]  # no longer than the sequence
    assert tuning.candidates(replace(plan, chunk_rows=0), 4, 0, chunked=True)


def test_plans_of_row_blocks_come_into_question_by_their_rows():
    """Whole steps of the longest row block; threads that have blocks of their own share nothing."""
    plan = replace(PLAN, by_units=False, row_blocks=2, chunk_rows=180, by=Constants(chunk_rows=100))
    found = tuning.candidates(plan, 100, 19, chunked=True)
    assert found == (plan, *(replace(plan, chunk_rows=n) for n in (100, 200, 400)))
    more = tuning.candidates(replace(plan, threads=3), 100, 19, chunked=True)
    assert [p.by_units for p in more] == [False, True, False, False, False]


def test_a_measured_plan_gives_the_same_bits():
    sizes = {"T": 6, "B": 2, "I": 3, "H": 17}
    run = kernel().sequence_forward
    given = draw_arrays(run.function, sizes, scale=1.0)
    plan = run.measure(**given, threads=2)
    assert plan in tuning.candidates(run.plan(**sizes, threads=2, dtype=np.float64), 6, 2)
    expected = run(**given, threads=2, save=True)
    np.testing.assert_array_equal(run(**given, threads=2, plan=plan).h, expected.h)
    outputs = {n: getattr(expected, n) for n in ("r", "u", "c", "h")}
    back = kernel().sequence_backward
    found = back.measure(**given, **outputs, saved=expected.saved, threads=1)
    own = back.plan(**sizes, threads=1, dtype=np.float64)
    assert found in tuning.candidates(own, 6, 2, chunked=True)
    transposed = {**given, "x": np.ascontiguousarray(given["x"].swapaxes(0, 1))}
    assert run.measure(**transposed, batch_first=True, threads=1).threads == 1


def test_wrong_arguments_are_answered_before_anything_is_timed():
    with pytest.raises(ArgumentError, match="argument x is missing"):
        kernel().sequence_forward.measure(h_prev=np.zeros((2, 3)))


def test_packed_weights_and_scalars_are_measured_as_they_are_called():
    k = kernel("sru")
    sizes = {"T": 6, "B": 2, "H": 17}
    forward, backward = k.sequence_forward, k.sequence_backward
    given = draw_arrays(forward.function, sizes, scale=1.0)
    weights = {a.name for a in forward.function.arguments if a.is_weight}
    packed = k.pack(**{n: a for n, a in given.items() if n in weights}, alpha=1.5)
    rest = {n: a for n, a in given.items() if n not in weights}
    own = tuning.candidates(forward.plan(**sizes, threads=1, dtype=np.float64), 6, 2)
    assert forward.measure(**given, alpha=1.5, threads=1) in own
    assert forward.measure(**rest, packed=packed, alpha=1.5, threads=1) in own
    y = forward(**rest, packed=packed, save=True)
    back = {**rest, "h": y.h, "c": y.c, "saved": y.saved, "packed": packed}
    own = tuning.candidates(backward.plan(**sizes, threads=1, dtype=np.float64), 6, 2, chunked=True)
    assert backward.measure(**back, threads=1) in own
    with pytest.raises(ArgumentError, match="saved is missing"):
        backward.measure(**{**back, "saved": None})
    with pytest.raises(ArgumentError, match="packed is dict, expected what sru"):
        forward.measure(**rest, packed=given)
