"""Bound calls: checked once, on arrays that stay; the C function is what is left of a call."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import shlex
import threading
import tracemalloc
import weakref
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.call import engine
from cellgen.runtime.call import workspace as call
from cellgen.runtime.call.bound import BoundCall
from tests.drawing import draw_arrays
from tests.within import engine_of, lock_of, workspace_of

SIZES = {"T": 5, "B": 4, "I": 3, "H": 18}
drawn = partial(draw_arrays, sizes=SIZES, dtype="f")
RNG = np.random.default_rng(3)
MASK = RNG.random((5, 4)) < 0.6


@cache
def kernel(name: str = "gru") -> cellgen.Kernel:
    return cellgen.load(name)


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, tuple):
            same(one, other)
        elif one is None or other is None:
            assert one is other
        else:
            np.testing.assert_array_equal(one, other)


OPTIONS = {
    "none": {},
    "one thread": {"threads": 1},
    "saved": {"save": True},
    "lengths": {"lengths": np.array([5, 0, 2, 3])},
    "mask, last only": {"mask": MASK, "last_only": True},
    "reverse": {"reverse": True, "flush_denormals": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["gru", "sru", "lstm_block_cell"])
def test_a_bound_call_does_what_the_call_does(name, options):
    forward = kernel(name).sequence_forward
    arrays = drawn(forward.function)
    bound = forward.bind(**arrays, **options)
    assert isinstance(bound, BoundCall)
    same(bound(), forward(**arrays, **options))
    for array in arrays.values():
        array *= 0.5  # in place: the next run reads what is there by then
    found = bound()
    same(found, forward(**arrays, **options))
    assert found is bound.results


@pytest.mark.parametrize("options", [{}, {"window": 2}, {"mask": MASK, "reverse": True}], ids=str)
def test_a_bound_training_step(options):
    k = kernel("lstm")
    arrays, upstream = (
        drawn(k.sequence_forward.function),
        drawn(k.sequence_backward.function, optional=True),
    )
    given = {name: value for name, value in options.items() if name != "window"}
    forward = k.sequence_forward.bind(**arrays, **given, save=True, threads=2)
    y = forward.results
    taken = {**arrays, "h": y.h, "c": y.c, **upstream}
    backward = k.sequence_backward.bind(**taken, saved=y.saved, **options, threads=2)
    for _ in range(3):
        forward(), backward()
        once = k.sequence_forward(**arrays, **given, save=True, threads=1)
        taken |= {"h": once.h, "c": once.c}
        same(
            backward.results,
            k.sequence_backward(**taken, saved=once.saved, **options, threads=1),
        )
        for name, gradient in backward.results._asdict().items():
            arrays[name.removeprefix("d_")] -= np.float32(0.01) * gradient


def test_a_step_can_be_bound():
    forward = kernel().forward
    arrays = drawn(forward.function)
    out = np.empty_like(arrays["h_prev"])
    bound = forward.bind(**arrays, out=(out,))
    for _ in range(3):
        assert bound().h is out
        same([out], forward(**arrays))
        arrays["h_prev"][...] = out


def test_batch_first_and_strided_arrays_are_written_where_they_are():
    forward = kernel().sequence_forward
    arrays = drawn(forward.function)
    transposed = {**arrays, "x": np.ascontiguousarray(arrays["x"].swapaxes(0, 1))}
    room = np.zeros((4, 10, 18), np.float32)
    bound = forward.bind(**transposed, batch_first=True, out={"h": room[:, ::2]})
    assert np.shares_memory(bound().h, room)
    same([room[:, ::2].swapaxes(0, 1)], [forward(**arrays).h])
    assert not room[:, 1::2].any()


def test_packed_weights_and_scalars_are_bound():
    k = cellgen.load("sru")
    arrays = drawn(k.sequence_forward.function)
    weights = {a.name for a in k.sequence_forward.function.arguments if a.is_weight}
    packed = k.pack(**{name: arrays[name] for name in weights if name in arrays}, alpha=1.5)
    rest = {name: array for name, array in arrays.items() if name not in weights}
    bound = k.sequence_forward.bind(**rest, packed=packed)
    same(bound(), k.sequence_forward(**arrays, alpha=1.5))


def test_nothing_is_allocated_but_by_binding():
    """A call's results are 9 kB here, those of tracemalloc's own bookkeeping left out."""
    forward = kernel("lstm").sequence_forward
    arrays = drawn(forward.function)
    bound = forward.bind(**arrays, threads=1)

    def peak(call):
        call()
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            call()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    results = sum(array.nbytes for array in bound.results if array is not None)
    assert peak(lambda: forward(**arrays, threads=1)) > results
    assert peak(bound) < results / 4


def test_arrays_live_as_long_as_what_is_bound():
    forward = kernel().sequence_forward
    arrays = drawn(forward.function)
    expected = forward(**arrays)
    bound = forward.bind(**{name: array.copy() for name, array in arrays.items()})
    gc.collect()
    same(bound(), expected)
    owned = np.zeros(SIZES["B"] * SIZES["H"], np.float32)
    second = forward.bind(**{**arrays, "h_prev": owned.reshape(4, 18)})
    with pytest.raises(ValueError, match="resize"):
        owned.resize(1)
    second()


def test_other_calls_between_take_the_same_workspace(monkeypatch):
    # Without what the thread keeps of earlier tests, which may be as large already.
    monkeypatch.setattr(
        call.per_thread, "memory", call.AlignedBytes(None, -1, np.empty(0, np.uint8))
    )
    small, large = kernel("gru"), kernel("lstm")
    arrays = drawn(small.sequence_forward.function)
    expected = small.sequence_forward(**arrays)
    bound = small.sequence_forward.bind(**arrays)
    same(bound(), expected)
    before = workspace_of(bound)
    wide = {**SIZES, "T": 50, "B": 64, "H": 200}
    large.sequence_forward(**draw_arrays(large.sequence_forward.function, wide, dtype="f"))
    same(bound(), expected)
    assert workspace_of(bound) is not before  # the thread's has grown; what it was is gone


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"mask": MASK}], ids=str)
def test_a_workspace_too_large_to_keep_lives_through_the_call(options, long, monkeypatch):
    monkeypatch.setattr(call, "KEPT_WORKSPACE", 0)
    if long:
        monkeypatch.setattr(engine, "LONG", 0)
    owners, made = [], call.new_memory

    def recorded(*given):
        memory = made(*given)
        owners.append(weakref.ref(memory.owner))
        return memory

    monkeypatch.setattr(call, "new_memory", recorded)
    # Without what the thread keeps of earlier tests; a new kernel has no plans yet.
    monkeypatch.setattr(
        call.per_thread, "memory", call.AlignedBytes(None, -1, np.empty(0, np.uint8))
    )
    fresh = cellgen.load("lstm")
    calls = 0

    def watch(function):
        bind = engine_of(function).bind

        def watched(*given, **how):
            call = bind(*given, **how)
            run = call.run

            def counted(*arguments):
                nonlocal calls
                calls += 1
                alive = owners[-1]() is not None  # raising would leave a long call's thread
                return run(*arguments) if alive else 99

            call.run = counted
            return call

        monkeypatch.setattr(engine_of(function), "bind", watched)

    forward, backward = fresh.sequence_forward, fresh.sequence_backward
    watch(forward), watch(backward)
    arrays, upstream = drawn(forward.function), drawn(backward.function, optional=True)
    y = forward(**arrays, **options, save=True)
    given = {**arrays, "h": y.h, "c": y.c, **upstream, "saved": y.saved, **options}
    expected = backward(**given)
    bound = backward.bind(**given)
    count = len(owners)
    for _ in range(3):
        same(bound(), expected)
    assert calls == 5
    assert len(owners) == count + 1  # its own, made once
    del bound
    gc.collect()
    assert all(owner() is None for owner in owners)


def test_arrays_live_as_long_as_a_call_on_them_that_has_gaps() -> None:
    """NumPy lends no buffer of such an array: nobody else may hold it."""
    forward = kernel().sequence_forward
    arrays = drawn(forward.function)
    apart = np.repeat(arrays["x"], 2, axis=1)[:, ::2]
    out = {"h": np.zeros((10, 4, SIZES["H"]), np.float32)[::2]}
    expected = forward(**arrays).h
    alive = [weakref.ref(array) for array in (apart, out["h"])]
    bound = forward.bind(**{**arrays, "x": apart}, out=out)
    del apart, out
    gc.collect()
    assert all(array() is not None for array in alive)
    assert np.array_equal(bound().h, expected)
    del bound
    gc.collect()
    assert all(array() is None for array in alive)


def test_lengths_stay_as_they_were_and_masks_are_read():
    forward = kernel().sequence_forward
    arrays, lengths, mask = drawn(forward.function), np.array([5, 4, 3, 2]), MASK.copy()
    expected = forward(**arrays, lengths=[5, 4, 3, 2])
    bound = forward.bind(**arrays, lengths=lengths)
    lengths[:] = 9
    same(bound(), expected)
    masked = forward.bind(**arrays, mask=mask)
    mask[:] = True
    same(masked(), forward(**arrays))


def test_two_threads_bind_for_themselves():
    forward = kernel().sequence_forward
    arrays = drawn(forward.function)
    expected = forward(**arrays)
    bound, failures = forward.bind(**arrays, threads=2), []

    def run():
        own = forward.bind(**arrays, threads=2)
        for _ in range(20):
            try:
                same(own(), expected)
            except AssertionError as error:
                failures.append(error)

    workers = [threading.Thread(target=run) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    same(bound(), expected)
    assert lock_of(bound).acquire(blocking=False)  # as another thread has it while it runs
    try:
        with pytest.raises(CellgenError, match=r"gru.sequence_forward: this bound call is running"):
            bound()
    finally:
        lock_of(bound).release()
    same(bound(), expected)


def _in_child(bound, expected, queue):
    same(bound(), expected)
    queue.put("done")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs_it_on_threads_of_its_own():
    forward = kernel().sequence_forward
    arrays = drawn(forward.function)
    bound = forward.bind(**arrays, threads=2)
    expected = tuple(a if a is None else a.copy() for a in bound())
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(bound, expected, queue))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == "done"
    same(bound(), expected)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["forward", "sequence_forward"])
def test_a_forked_child_runs_what_a_thread_of_its_parent_is_running(name):
    function = getattr(kernel(), name)
    bound = function.bind(**drawn(function.function))
    expected = tuple(a if a is None else a.copy() for a in bound())
    lock_of(bound).acquire()  # as a thread that is within it
    child = os.fork()
    if not child:
        try:
            same(bound(), expected)
        except BaseException:
            os._exit(1)
        os._exit(0)
    with pytest.raises(CellgenError, match="is running already"):
        bound()
    lock_of(bound).release()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("given", ["x", "slice", "out", "mask"])
def test_the_memory_of_what_is_bound_stays(given):
    """NumPy is asked not to look whether anyone else refers to it."""
    forward = kernel().sequence_forward
    arrays, out, mask = drawn(forward.function), np.empty((5, 4, 18), np.float32), MASK.copy()
    whole = np.concatenate([arrays["x"], arrays["x"]])
    arrays["x"] = whole[:5] if given == "slice" else arrays["x"]
    bound = forward.bind(**arrays, out={"h": out}, mask=mask)
    array = {"x": arrays["x"], "slice": whole, "out": out, "mask": mask}[given]
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize((1000, 1000), refcheck=False)
    del bound
    array.resize((1000, 1000), refcheck=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((5, 4), np.float32)}, "gru.sequence_forward: x has 2 axes"),
        ({"nonsense": 1}, "unknown argument 'nonsense'"),
        ({"lenghts": [1]}, "unknown argument 'lenghts'; did you mean 'lengths'?"),
        ({"window": 2}, "window is no option of this function"),
        ({"threads": 0}, "threads is 0, expected a number from 1"),
        ({"lengths": np.array([9, 0, 0, 0])}, r"lengths\[0\] is 9, expected 0 to T = 5"),
        ({"out": {"h": None, "g": None}}, "out has an unknown result 'g'"),
    ],
)
def test_binding_checks_what_a_call_checks(change, message):
    forward = kernel().sequence_forward
    with pytest.raises(ArgumentError, match=message):
        forward.bind(**{**drawn(forward.function), **change})


def test_results_may_not_share_memory_with_arguments():
    forward = kernel().sequence_forward
    arrays = drawn(forward.function)
    with pytest.raises(ArgumentError, match="out h_last shares memory with the argument h_prev"):
        forward.bind(**arrays, out={"h_last": arrays["h_prev"]})


def test_truncation_term_by_term_is_no_single_call():
    k = kernel()
    arrays = drawn(k.sequence_forward.function)
    y = k.sequence_forward(**arrays, save=True)
    with pytest.raises(ArgumentError, match=r"sequence_backward.bind: bp_lim is given, expected"):
        k.sequence_backward.bind(**arrays, h=y.h, saved=y.saved, d_h=y.h, bp_lim=2)


def test_an_unfit_plan_is_the_callers():
    forward = kernel().sequence_forward
    plan = forward.plan(**SIZES, threads=2)
    bound = forward.bind(
        **drawn(forward.function),
        threads=2,
        plan=replace(plan, by_units=False, hoist=True, unpacked=True),
    )
    with pytest.raises(ArgumentError, match="plan is"):
        bound()


def test_it_says_what_it_is():
    forward = kernel().sequence_forward
    assert repr(forward.bind(**drawn(forward.function))) == (
        "<bound call of gru.sequence_forward, dimensions 5, 4, 3, 18, float32>"
    )


ENTERED = shlex.quote(str(Path(__file__).with_name("entered.h")))


@pytest.fixture
def entered(monkeypatch):
    """A kernel that notes which functions of C it enters; a function that gives those of a call."""
    monkeypatch.setenv("CELLGEN_CFLAGS", f"-O0 -finstrument-functions -include {ENTERED}")
    noting = cellgen.load("gru")
    library = ctypes.CDLL(str(noting.build().path))
    count = ctypes.c_int64.in_dll(library, "cellgen_enters")
    addresses = (ctypes.c_size_t * (1 << 17)).in_dll(library, "cellgen_entered")

    def entered_by(call, *arguments):
        count.value = 0
        call(*arguments)
        assert 0 < count.value < 1 << 17
        return addresses[: count.value]

    return noting, entered_by


@pytest.mark.slow  # it compiles a driver of its own
def test_one_thread_gives_its_workspace_out_without_asking_how_much_that_is(entered):
    """It tells as arrays take their places; a team asks, since its plan may take less."""
    k, entered_by = entered
    arrays, upstream = (
        drawn(k.sequence_forward.function),
        drawn(k.sequence_backward.function, optional=True),
    )
    y = k.sequence_forward(**arrays, save=True)
    of_backward = {**arrays, **upstream, "h": y.h, "saved": y.saved}
    for function, given in ((k.sequence_forward, arrays), (k.sequence_backward, of_backward)):
        name, dims = function.function.name, [SIZES[dim] for dim in function.function.dims]
        size = getattr(k.library().lib, f"gru_{name}_workspace_size_f32")
        _, asks, *_ = entered_by(size, *dims, k.library().ffi.NULL)
        alone, together = (function.bind(**given, threads=threads) for threads in (1, 2))
        assert entered_by(alone).count(asks) == 0
        assert entered_by(together).count(asks) == 1
