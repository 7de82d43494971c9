"""What a proof sees that small sizes, options given together or a single thread would hide."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen.cells import GRU, MLSTM, SHIPPED, Elman, SLSTMHeads
from cellgen.language.cell import definition_of
from cellgen.pipeline import programs_of
from cellgen.program.derive import forward
from cellgen.program.interpret import shape_sizes
from cellgen.proof.check import tangents
from cellgen.proof.check.kernels import prove_kernels
from cellgen.proof.check.options import prove_options
from cellgen.proof.check.over_time import FEW_UNITS, NARROW_BAR, WIDE_STEPS
from cellgen.proof.check.points import MOST_NUMBERS, Subject, draw_sequence, wide_lengths
from cellgen.proof.over_time import forward_errors, truth_over_time
from cellgen.proof.precisions import narrow_gradients
from cellgen.proof.threads import differing_bits
from cellgen.runtime.host.tuning import candidates
from tests.mutants import CELLS, ROOT, SHARES_OF_TESTS, drawn, named, named_for_tests
from tests.mutants import __main__ as judging
from tests.mutants.__main__ import main

KERNEL = cellgen.load("elman")
SUBJECT = Subject(Elman, programs_of(Elman), forward(definition_of(Elman)), KERNEL)


def altered(wrong: Callable[[dict[str, Any]], bool]) -> Any:
    """A kernel whose forward pass is off by a millionth where a call is of a kind."""

    class Forward:
        function = KERNEL.sequence_forward.function

        def __call__(self, **call: Any) -> Any:
            result = KERNEL.sequence_forward(**call)
            moved = {
                n: a * (1 + 1e-6) if n == "h" and a is not None else a
                for n, a in result._asdict().items()
            }
            return type(result)(**moved) if wrong(call) else result

    functions = {**KERNEL.functions, "sequence_forward": Forward()}
    return SimpleNamespace(functions=functions)


@pytest.mark.parametrize("name", ["lengths", "mask", "reset", "reverse", "every", "batch_first"])
def test_a_mistake_where_an_option_is_given_alone_is_seen(name: str) -> None:
    others = ("lengths", "mask", "reset", "reverse", "every", "batch_first", "last_only")

    def alone(call: dict[str, Any]) -> bool:
        return [option for option in others if call.get(option) is not None] == [name]

    rows = prove_options(SUBJECT, altered(alone), np.random.default_rng(0))
    assert not all(row.ok for row in rows), name
    rows = prove_options(SUBJECT, altered(lambda _: False), np.random.default_rng(0))
    assert all(row.ok for row in rows)


@pytest.mark.parametrize(("off", "is_seen"), [(1e-4, True), (0.0, False)])
def test_a_gradient_of_float32_that_is_off_is_seen(off: float, is_seen: bool) -> None:
    backward = KERNEL.functions["sequence_backward"]

    class Backward:
        function = backward.function

        def __call__(self, **call: Any) -> Any:
            result = backward(**call)
            if result.d_u.dtype == np.float32:
                result.d_u[...] *= 1 + off
            return result

    kernel = SimpleNamespace(functions={**KERNEL.functions, "sequence_backward": Backward()})
    lengths = wide_lengths(definition_of(Elman))
    _, arrays = draw_sequence(SUBJECT, lengths, WIDE_STEPS, np.random.default_rng(0))
    upstream = {"d_h": np.ones((WIDE_STEPS, 5, 37)), "d_h_last": np.ones((5, 37))}
    errors = narrow_gradients(kernel, arrays, upstream, np.random.default_rng(0))
    assert (errors["d_u"] > NARROW_BAR) == is_seen
    assert all(error <= NARROW_BAR for name, error in errors.items() if name != "d_u")


@pytest.mark.parametrize("mode", [None, True, "norms"])
def test_gradients_of_weights_that_stand_at_another_row_are_seen(mode: bool | str | None) -> None:
    """Their sums, and all gradients of a call for the whole batch, are right."""
    backward = KERNEL.functions["sequence_backward"]

    class Backward:
        function = backward.function

        def __call__(self, **call: Any) -> Any:
            result = backward(**call)
            if mode is None or call.get("per_row") != mode:
                return result
            weights = {n: a[[1, 0, *range(2, len(a))]] for n, a in result._asdict().items()}
            return type(result)(**{**weights, "d_x": result.d_x, "d_h_prev": result.d_h_prev})

    kernel = SimpleNamespace(functions={**KERNEL.functions, "sequence_backward": Backward()})
    _, gradients = prove_options(SUBJECT, kernel, np.random.default_rng(0))
    assert gradients.ok == (mode is None), gradients
    assert "per_row" in gradients.note


def test_a_mistake_beyond_two_vectors_is_seen() -> None:
    kernel = altered(lambda call: call["h_prev"].shape[1] > 32)
    for lengths, is_seen in ((wide_lengths(definition_of(Elman)), True), ((5, 2, 4), False)):
        sizes, arrays = draw_sequence(SUBJECT, lengths, WIDE_STEPS, np.random.default_rng(0))
        found = forward_errors(kernel, Elman.definition, arrays, sizes, "float64")
        assert (found["h"] > 1e-8) == is_seen


class Overwriting:
    """A function that is off, and writes to an argument of its caller when it has ended."""

    def __init__(self, of: Any) -> None:
        self._of, self.function = of, of.function

    def __call__(self, **call: Any) -> Any:
        result = self._of(**call)
        call["x"][...] = 1e30
        return result._replace(h=result.h * (1 + 1e-9))


def test_what_a_kernel_writes_to_its_arguments_is_no_measure_of_its_errors() -> None:
    wrong = {n: Overwriting(KERNEL.functions[n]) for n in ("forward", "sequence_forward")}
    kernel: Any = SimpleNamespace(functions={**KERNEL.functions, **wrong})
    rows = prove_kernels(replace(SUBJECT, kernel=kernel), np.random.default_rng(0))
    assert [row.name for row in rows if not row.ok] == ["C float64 forward"]
    assert all(row.ok for row in prove_kernels(SUBJECT, np.random.default_rng(0)))
    for is_known in (False, True):
        sizes, arrays = draw_sequence(SUBJECT, (5, 2, 4), WIDE_STEPS, np.random.default_rng(0))
        truth = truth_over_time(Elman.definition, arrays, sizes) if is_known else None
        found = forward_errors(kernel, Elman.definition, arrays, sizes, "float64", truth=truth)
        assert found["h"] > 1e-11


@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
def test_a_wide_point_is_beyond_two_vectors_with_a_remainder_and_of_few_numbers(cell: Any) -> None:
    """Of float32 with AVX-512, and so of all others."""
    definition = definition_of(cell)
    lengths = wide_lengths(definition)
    sizes = {str(dim): n for dim, n in zip(definition.dims, lengths, strict=True)}
    assert lengths[-1] > 32
    assert lengths[-1] % 4
    numbers = [math.prod(shape_sizes(value, sizes)) for value in definition.declared]
    assert max(numbers) <= MOST_NUMBERS
    assert all(steps * rows < 8 for steps, rows in FEW_UNITS)


def test_wide_points_are_those_of_the_dimensions() -> None:
    assert wide_lengths(definition_of(GRU)) == (5, 19, 37)
    assert wide_lengths(definition_of(MLSTM)) == (5, 19, 2, 37, 41)
    assert wide_lengths(definition_of(SLSTMHeads)) == (5, 19, 2, 41)


def test_threads_are_tried_by_rows_and_by_units() -> None:
    plan = KERNEL.sequence_forward.plan(T=WIDE_STEPS, B=5, I=19, H=37, threads=3)
    assert {one.by_units for one in candidates(plan, WIDE_STEPS, 5)} == {False, True}


def test_a_bit_that_differs_between_three_threads_and_one_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = wide_lengths(definition_of(Elman))
    sizes, arrays = draw_sequence(SUBJECT, lengths, WIDE_STEPS, np.random.default_rng(0))
    upstream = {"d_h": np.ones((WIDE_STEPS, 5, 37))}
    same = differing_bits(KERNEL, arrays, upstream, sizes, 3)
    assert {name.split()[0] for name in same} == {"float32", "float64"}
    assert {name.split()[1] for name in same} >= {"h", "h_last", "d_x", "d_w"}
    assert not any(same.values())
    call = type(KERNEL.sequence_forward).__call__

    def off(self: Any, **given: Any) -> Any:
        result = call(self, **given)
        if given.get("threads") == 3 and hasattr(result, "h_last"):
            result.h_last[0, 0] = np.nextafter(result.h_last[0, 0], 9)
        return result

    monkeypatch.setattr(type(KERNEL.sequence_forward), "__call__", off)
    share = differing_bits(KERNEL, arrays, upstream, sizes, 3)
    assert share["float64 h_last"] == 1 / (5 * 37)


def test_a_tangent_is_proved_along_each_direction_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    run = tangents.run_all

    def noted(programs: Any, point: Any, *nudges: Any) -> Any:
        moving = {n for n, a in point.arguments.items() if n.startswith("dot_") and np.any(a)}
        seen.append(moving)
        return run(programs, point, *nudges)

    monkeypatch.setattr(tangents, "run_all", noted)
    rows = tangents.prove_tangent(SUBJECT, np.random.default_rng(0))
    assert all(row.ok for row in rows)
    for name in ("dot_x", "dot_h_prev", "dot_w", "dot_u", "dot_b"):
        assert {name} in seen
    assert set() in seen  # upstream gradients alone


def test_mutants_are_the_same_for_the_same_seed_and_change_their_file() -> None:
    one, other = list(drawn(0)), list(drawn(0))
    assert one == other
    assert len(one) + len(named()) >= 44
    assert list(drawn(1)) != one
    for mutant in (*named(), *named_for_tests(), *one, *drawn(0, SHARES_OF_TESTS)):
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.applied(text) != text, str(mutant)


def test_tests_are_asked_of_kernels_that_the_mistake_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without their folders tests are not collected, which looks like a mistake that is noticed."""
    place, asked = judging.Workplace(tmp_path / "copy", tmp_path / "cache"), list[str]()
    mutant = next(m for m in drawn(0) if m.file.startswith("cellgen/program/"))
    folders = [f"tests/{name}" for name in ("program", "schedule", "proof")]
    shown = place.folder / "generated" / "gru" / "gru.c"
    shipped = shown.read_text()

    def run(*words: str, **limits: object) -> str:
        of_tests = Path(words[-1]).parent.relative_to(place.folder) if limits else words[-1]
        asked.append(str(of_tests))
        if words[-1] == "--write":
            shown.write_text("generated with the mistake")
        return ""

    monkeypatch.setattr(place, "run", run)
    monkeypatch.setattr(place, "sources", lambda mutant: "")
    place.verdict(mutant, proofs=True, suites=True)
    assert asked == [CELLS[-1], folders[0], "--write", *folders[1:]]
    assert shown.read_text() == shipped


STARTED = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"


@pytest.mark.parametrize(
    ("code", "limits", "verdict"),
    [
        ("print('proved')", {}, ""),
        ("print('elman: gradients'); exit(1)", {}, "elman: gradients"),
        ("raise SystemExit('of no cell')", {}, "of no cell"),
        ("while True: pass", {"LONGEST": 0.5}, "takes longer than 0.5 s"),
        (STARTED.format("while True: pass"), {"LONGEST": 0.5}, "takes longer than 0.5 s"),
        ("import time; time.sleep(60)", {"STILL": 1.0}, "stands still"),
    ],
)
def test_a_mutant_is_stopped_by_processor_time_alone(
    code: str, limits: dict[str, float], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded machine is not taken for a proof that has noticed a mistake."""
    for name, value in {"LOOK": 0.1, **limits}.items():
        monkeypatch.setattr(judging, name, value)
    assert judging.told([sys.executable, "-c", code], ROOT, dict(os.environ)) == verdict


@pytest.mark.slow
def test_the_named_mutants_that_change_numbers_are_noticed() -> None:
    assert main(["--named", "--jobs", "2"]) == 0
