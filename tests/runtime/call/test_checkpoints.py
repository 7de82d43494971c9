"""Memory over time: gradients from checkpoints are those of a run that saves, to the bit."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen.cells import SHIPPED
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call.checkpoints import checkpoints, step_bytes
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import NONE
from cellgen.runtime.stacks import Layers
from tests.conftest import Contexts
from tests.cover import each_time

Arrays = dict[str, Any]


class Sequence:
    """Arguments and upstream gradients of a cell, random, and runs on them with some options."""

    def __init__(self, kernel: Kernel, sizes: dict[str, int], dtype: str, **options: Any) -> None:
        self.kernel, self.sizes, self.options = kernel, sizes, options
        self.forward, self.backward = kernel.sequence_forward, kernel.sequence_backward
        self._rng, self._dtype = np.random.default_rng(len(repr(sizes))), dtype
        self.given = {a.name: self._drawn(a) for a in self.forward.function.arguments}
        every = options.get("every", 1)
        self.upstream = {
            a.name: self._drawn(a, every) for a in self.backward.function.arguments if a.optional
        }

    def _drawn(self, item: Any, every: int = 1) -> Any:
        if item.is_scalar:
            return 0.3
        shape = tuple(axis_length(axis, self.sizes) for axis in item.shape)
        array = (0.5 * self._rng.normal(size=shape)).astype(self._dtype)
        if not item.over_time:
            return array
        array = array[every - 1 :: every]
        first = self.options.get("batch_first")
        return np.ascontiguousarray(array.swapaxes(0, 1) if first else array)

    def run(self, threads: int = 1, **how: Any) -> Any:
        return self.forward(**self.given, **self.options, **how, threads=threads, save=True)

    def gradients(self, result: Any, **how: Any) -> Arrays:
        reads = {a.name for a in self.backward.function.arguments}
        outputs = {n: a for n, a in result._asdict().items() if n in reads and a is not None}
        if result.saved.run.checkpoint:
            outputs = {}
        given = {**self.given, **outputs, **self.upstream}
        return self.backward(**given, saved=result.saved, **how)._asdict()


def equal(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        same = array is other[name] or array.tobytes() == other[name].tobytes()
        assert same, (name, np.max(np.abs(array - other[name])))


def drawn(seed: int, steps: int, rows: int) -> tuple[Arrays, Arrays]:
    """Options of a run and of its backward pass."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    run: Arrays = {}
    if pick.random() < 0.2:
        run["batch_first"] = True
    shape = (rows, steps) if run else (steps, rows)
    if pick.random() < 0.4:
        run["lengths"] = rng.integers(0, steps + 1, rows)
    if pick.random() < 0.4:
        run["mask"] = rng.random(shape) < 0.7
    if pick.random() < 0.4:
        run["reset"] = rng.random(shape) < 0.1
    for name in ("reverse", "zero_output_for_mask", "flush_denormals"):
        if pick.random() < 0.3:
            run[name] = True
    if pick.random() < 0.25:
        run["every"] = pick.choice([2, 3, 7])
    elif pick.random() < 0.25:
        run["last_only"] = True
    back: Arrays = {"window": pick.choice([0, 3, 20])} if pick.random() < 0.4 else {}
    back |= pick.choice([{}, {"per_row": True}, {"per_row": "norms"}, {"bp_lim": 3}])
    return run, back


def holds(kernel: Kernel, seed: int) -> None:
    pick = random.Random(1000 + seed)
    sizes = {dim: pick.choice([1, 2, 3, 5, 8]) for dim in kernel.sequence_forward.function.dims}
    sizes |= {"T": pick.choice([1, 2, 17, 33, 50]), "B": pick.choice([1, 2, 3, 5, 16, 33])}
    options, back = drawn(seed, sizes["T"], sizes["B"])
    over_time = [a.name for a in kernel.sequence_forward.function.results if a.over_time]
    if pick.random() < 0.4:
        options["outputs"] = pick.sample(over_time, pick.randint(0, len(over_time)))
    case = Sequence(kernel, sizes, pick.choice(["float32", "float64"]), **options)
    back["threads"] = threads = pick.choice([1, 2, 3, 4])
    steps = pick.choice([1, 2, 5, 16, 20, 60])
    whole, kept = case.run(threads), case.run(threads, checkpoint=steps)
    for name, array in kept._asdict().items():
        other = getattr(whole, name)
        if name != "saved" and array is not None and array.shape == other.shape:
            assert array.tobytes() == other.tobytes(), name
    assert kept.saved.run.checkpoint == steps
    assert all(len(a) == checkpoints(sizes["T"], steps) for a in kept.saved)
    equal(case.gradients(kept, **back), case.gradients(whole, **back))


@pytest.mark.parametrize("seed", each_time(range(5), range(12)))
@pytest.mark.parametrize("name", ["gru", "min_gru", "gated_delta_net"])
def test_gradients_are_those_of_saving_to_the_bit(name: str, seed: int) -> None:
    holds(cellgen.load(name), seed)


def test_what_is_constant_over_time_learns_the_same() -> None:
    kernel = cellgen.compile(Contexts)
    for seed in range(12):
        holds(kernel, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", [cell.definition.name for cell in SHIPPED])
def test_gradients_of_every_cell_are_those_of_saving_to_the_bit(name: str) -> None:
    for seed in range(40):
        holds(cellgen.load(name), seed)


def case_of(name: str = "gru", **options: Any) -> Sequence:
    sizes = {"T": 40, "B": 3, "I": 2, "H": 5, "N": 2, "D": 3, "K": 2}
    dims = cellgen.load(name).sequence_forward.function.dims
    return Sequence(cellgen.load(name), {d: sizes[d] for d in dims}, "float64", **options)


def test_saved_holds_the_states_before_every_so_many_th_step() -> None:
    case = case_of()
    made = case.run(checkpoint=8)
    assert made.saved._fields == ("h_prev",)
    np.testing.assert_array_equal(made.saved.h_prev, made.h[7:-1:8])
    assert made.saved.h_prev.shape == (4, 3, 5)
    whole = case.run()
    equal(case.gradients(pickle.loads(pickle.dumps(made.saved)) and made), case.gradients(whole))


def test_outputs_that_are_no_states_are_kept_where_steps_repeat_them() -> None:
    mask = np.random.default_rng(0).random((40, 3)) < 0.5
    saved = case_of("gated_delta_net", mask=mask).run(checkpoint=8).saved
    assert saved._fields == ("s_prev", "h_prev")
    assert saved.h_prev.shape == (4, 3, 2, 3)
    assert case_of("gated_delta_net").run(checkpoint=8).saved._fields == ("s_prev",)


def test_a_pickle_of_what_was_kept_serves_another_call() -> None:
    case = case_of()
    made = case.run(checkpoint=8)
    saved = pickle.loads(pickle.dumps(made.saved))
    assert saved.run == made.saved.run
    found = case.backward(**case.given, **case.upstream, saved=saved)._asdict()
    equal(found, case.gradients(case.run()))


def test_a_limit_in_bytes_chooses_saving_or_checkpoints() -> None:
    case = case_of()
    sizes = step_bytes(case.forward.function, case.sizes, 8, NONE)
    assert sizes.whole == 40 * 4 * 3 * 5 * 8  # z, r, s, n
    assert sizes.total(8) == 4 * 3 * 5 * 8 + 9 * 5 * 3 * 5 * 8  # states, and a segment with h
    assert case.run(memory_limit=sizes.whole).saved._fields == ("z", "r", "s", "n")
    assert case.run(memory_limit=sizes.whole).saved.run.checkpoint == 0
    made = case.run(memory_limit=sizes.whole - 1)
    assert sizes.total(made.saved.run.checkpoint) < sizes.whole
    equal(case.gradients(made), case.gradients(case.run()))
    least = sizes.total(sizes.least)
    assert least == min(map(sizes.total, range(1, 41)))
    assert case.run(memory_limit=least).saved.run.checkpoint == sizes.least
    with pytest.raises(ArgumentError, match=rf"memory_limit is {least - 1:,} bytes.* {least:,} at"):
        case.run(memory_limit=least - 1)


def test_outputs_that_a_call_does_not_show_count_as_saved() -> None:
    function = case_of().forward.function
    sizes = case_of().sizes
    shown, hidden = (step_bytes(function, sizes, 8, NONE, a) for a in (None, ()))
    assert hidden.saved == shown.saved + 3 * 5 * 8
    case = case_of(last_only=True)
    assert case.run(memory_limit=shown.whole).h is None
    assert case.run(memory_limit=hidden.whole).h.shape == (40, 3, 5)


@pytest.mark.parametrize("how", [{}, {"every": 3}, {"last_only": True}, {"batch_first": True}])
@pytest.mark.parametrize("steps", ["all", "masked"])
def test_outputs_that_nobody_wants_are_not_formed(how: Arrays, steps: str) -> None:
    mask = np.random.default_rng(0).random((3, 40) if "batch_first" in how else (40, 3)) < 0.5
    options = how | ({} if steps == "all" else {"mask": mask, "lengths": np.array([40, 0, 7])})
    case = case_of("gated_delta_net", **options)
    for save in ({}, {"save": True}, {"save": True, "checkpoint": 7}):
        whole = case.forward(**case.given, **options, **save)
        for wanted in (("h",), ("s",), ()):
            found = case.forward(**case.given, **options, **save, outputs=wanted)
            np.testing.assert_array_equal(found.s_last, whole.s_last)
            for name in ("h", "s"):
                if name not in wanted or getattr(whole, name) is None:
                    assert getattr(found, name) is None
                else:
                    np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def test_outputs_by_other_names_are_refused() -> None:
    case = case_of()
    for outputs in ("h", ("c",), 3):
        with pytest.raises(ArgumentError, match=r"outputs is .*, expected a tuple of some of h;"):
            case.forward(**case.given, outputs=outputs)
    out = {"h": np.empty((40, 3, 5))}
    for save in (False, True):
        with pytest.raises(ArgumentError, match="out has h, expected outputs that are wanted"):
            case.forward(**case.given, outputs=(), out=out, save=save)


def test_segments_are_about_the_root_of_the_steps() -> None:
    case = case_of()
    sizes = {**case.sizes, "T": 100_000}
    found = step_bytes(case.forward.function, sizes, 4, NONE)
    assert abs(found.least - math.sqrt(100_000 / 5)) < 10
    assert found.total(found.least) < found.whole / 100


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"memory_limit": 1, "checkpoint": 2}, "memory_limit and checkpoint=2 are both given"),
        ({"memory_limit": "1 GB"}, "memory_limit is '1 GB', expected a number of bytes, or None"),
        ({"checkpoint": -1}, "checkpoint is -1, expected a number of steps, or 0 to keep"),
    ],
)
def test_what_is_no_limit_is_refused(how: Arrays, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        case_of().run(**how)


def test_an_argument_of_the_forward_pass_that_is_missing_is_named() -> None:
    case = case_of()
    saved = case.run(checkpoint=8).saved
    given = {n: a for n, a in case.given.items() if n != "b_z"}
    with pytest.raises(ArgumentError, match=r"computed once more: .* b_z"):
        case.backward(**given, **case.upstream, saved=saved)


def test_a_limit_says_nothing_of_a_run_that_does_not_save() -> None:
    case = case_of()
    for how in ({"memory_limit": 1}, {"checkpoint": 3}):
        found = case.forward(**case.given, **how)
        assert found.saved is None
        np.testing.assert_array_equal(found.h, case.forward(**case.given).h)


@pytest.mark.parametrize("checkpoint", [0, 7])
def test_bound_calls_and_packed_weights(checkpoint: int) -> None:
    case = case_of(last_only=True)
    weights = {n: a for n, a in case.given.items() if n not in ("x", "h_prev")}
    packed = case.kernel.pack(**weights)
    expected = case.gradients(case.run())
    given = {n: case.given[n] for n in ("x", "h_prev")}
    forward = case.forward.bind(
        **given, packed=packed, save=True, last_only=True, checkpoint=checkpoint
    )
    made = forward()
    given |= {} if checkpoint else {"h": made.h}
    call = {**given, **case.upstream, "packed": packed, "saved": made.saved}
    backward = case.backward.bind(**call)
    for _ in range(2):
        forward()
        equal(backward()._asdict(), expected)
    equal(case.backward(**call)._asdict(), expected)
    assert case.backward.measure(**call).threads


def test_gradients_that_nobody_wants_are_not_formed() -> None:
    case = case_of()
    made = case.run(checkpoint=7)
    found = case.gradients(made, gradients=("d_x",))
    assert {n for n, a in found.items() if a is not None} == {"d_x"}
    np.testing.assert_array_equal(found["d_x"], case.gradients(case.run())["d_x"])


def test_denormal_numbers_count_as_in_the_run() -> None:
    case = case_of()
    case.given["h_prev"] *= 1e-308
    for name in ("w_z", "w_n", "b_n", "x"):
        case.given[name] *= 1e-160
    for flush in (False, True):
        made = [case.run(checkpoint=k, flush_denormals=flush) for k in (0, 7)]
        for back in (False, True):
            equal(*(case.gradients(m, flush_denormals=back, threads=2) for m in made))


@pytest.mark.parametrize("name", ["gru", "gated_delta_net"])
@pytest.mark.parametrize("last_only", [False, True])
def test_layers_have_the_same_gradients(name: str, *, last_only: bool) -> None:
    kernel = cellgen.load(name)
    first, second = (case_of(name).given for _ in range(2))
    states = {n for n in first if n.endswith("_prev")}
    width = math.prod(case_of(name).run()[0].shape[2:])
    rng = np.random.default_rng(0)
    weights = [
        [
            {n: a for n, a in given.items() if n != "x" and n not in states}
            for given in (first, second)
        ]
    ]
    above = [
        {
            n: rng.normal(size=(2 * width, *a.shape[1:])) if n.startswith("w_") else a
            for n, a in one.items()
        }
        for one in weights[0]
    ]
    layers = Layers(kernel, [*weights, above])
    options = {"last_only": last_only, "lengths": np.array([40, 7, 0])}
    runs = [layers.forward(first["x"], save=True, **options, checkpoint=k) for k in (0, 9)]
    np.testing.assert_array_equal(*(run.output for run in runs))
    d_output = rng.normal(size=runs[0].output.shape)
    whole, kept = (layers.backward(run, d_output) for run in runs)
    np.testing.assert_array_equal(whole.d_input, kept.d_input)
    for one, other in zip(whole.d_weights, kept.d_weights, strict=True):
        for a, b in zip(one, other, strict=True):
            equal(a, b)
    limited = layers.forward(first["x"], save=True, **options, memory_limit=60_000)
    ran = {made.result.saved.run.checkpoint for calls in limited.tape for made in calls}
    assert 0 not in ran
    assert len(ran) <= 2


@pytest.mark.parametrize(("kept", "given"), [("float32", "float64"), ("float64", "float32")])
def test_checkpoints_of_another_precision_are_refused(kept: str, given: str) -> None:
    kernel, sizes = cellgen.load("gru"), {"T": 17, "B": 3, "I": 2, "H": 5}
    made = Sequence(kernel, sizes, kept).run(checkpoint=4)
    with pytest.raises(ArgumentError, match=f"saved is of a run with {kept} .* x is {given}"):
        Sequence(kernel, sizes, given).gradients(made)
