"""Ctrl-C ends a long call, at the next of its checkpoints, on any number of threads."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen.errors import CellgenError
from cellgen.runtime.abi import STOPPED, axis_length
from cellgen.runtime.call import over_time as call_over_time
from cellgen.runtime.host.interrupt import LONG, heeding_signals

SIZES = {"T": 40, "B": 5, "I": 3, "H": 18}
NAMES = ("lstm", "gru_reset_before", "min_gru")
PATIENCE = 60.0  # seconds after which a test gives up waiting for another thread

threads = pytest.mark.parametrize("threads", [1, 2, 3])
cells = pytest.mark.parametrize("name", NAMES)


@cache
def drawn(name):
    kernel = cellgen.load(name)
    rng = np.random.default_rng(0)
    arguments = {
        a.name: rng.standard_normal([axis_length(axis, SIZES) for axis in a.shape]) * 0.5
        for a in kernel.sequence_forward.function.arguments
        if not a.is_scalar and a.used
    }
    return kernel, arguments


def both(name, **how):
    """The results of forward and backward, by name."""
    kernel, arguments = drawn(name)
    kernel.sequence_forward._plans.clear(), kernel.sequence_backward._plans.clear()
    forward = kernel.sequence_forward(**arguments, save=True, **how)
    inputs = {n: getattr(forward, n) for n in forward._fields if n in kernel_inputs(kernel)}
    upstream = {"d_h": np.ones_like(forward.h)}
    given = {n: a for n, a in (arguments | inputs | upstream).items() if n in kernel_inputs(kernel)}
    backward = kernel.sequence_backward(**given, saved=forward.saved, **how)
    found = {**forward._asdict(), **backward._asdict()}
    del found["saved"]
    return found


def kernel_inputs(kernel):
    return {a.name for a in kernel.sequence_backward.function.arguments if not a.saved}


@pytest.fixture
def everything_is_long(monkeypatch):
    monkeypatch.setattr(call_over_time, "LONG", 0)
    yield
    for name in NAMES:
        kernel, _ = drawn(name)
        kernel.sequence_forward._plans.clear(), kernel.sequence_backward._plans.clear()


@cells
@threads
def test_a_call_that_can_be_ended_gives_the_same_bits(name, threads, everything_is_long):
    found = both(name, threads=threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_over_time, "LONG", LONG)
        expected = both(name, threads=threads)
    assert all(np.array_equal(found[n], expected[n]) for n in found if n != "saved")


@cells
@threads
@pytest.mark.parametrize("which", ["sequence_forward", "sequence_backward"])
@pytest.mark.parametrize("by_units", [False, True])
def test_a_call_ends_at_its_next_checkpoint(
    name, threads, which, by_units, everything_is_long, monkeypatch
):
    """Asked before it begins, it ends before its first step: nothing of the results is written."""
    kernel, arguments = drawn(name)
    kept = kernel.sequence_forward(**arguments, save=True, threads=threads)
    given = arguments | {n: a for n, a in kept._asdict().items() if n in kernel_inputs(kernel)}
    if which == "sequence_backward":
        given = {n: a for n, a in given.items() if n in kernel_inputs(kernel)}
        given |= {"d_h": np.ones_like(kept.h), "saved": kept.saved}
    else:
        given = arguments
    function = getattr(kernel, which)
    plan = function.plan(threads=threads, dtype=np.float64, **SIZES)
    if name != "min_gru":  # its threads always share units
        plan = replace(plan, by_units=by_units and threads > 1)
    over_time = next(r for r in function.function.results if r.over_time)
    out = np.full([axis_length(axis, SIZES) for axis in over_time.shape], 7.0)

    def asked_at_once(call, stop):
        stop[0] = 1
        return call()

    monkeypatch.setattr(call_over_time, "heeding_signals", asked_at_once)
    with pytest.raises(CellgenError, match=f"{which}: the compiled function returned 6: the call"):
        function(**given, out={over_time.name: out}, threads=threads, plan=plan)
    assert np.all(out == 7.0)


def press_ctrl_c(when):
    """Send this process an interrupt from another thread once ``when()`` holds."""

    def press():
        for _ in range(int(PATIENCE * 1000)):
            if when():
                break
            threading.Event().wait(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_raised_once_the_call_has_ended(interruptible):
    stop, begun, ended = [0], threading.Event(), []

    def call():
        begun.set()
        for _ in range(int(PATIENCE * 1000)):
            if stop[0]:
                break
            threading.Event().wait(0.001)
        ended.append(stop[0])
        return 6

    pressed = press_ctrl_c(begun.is_set)
    with pytest.raises(KeyboardInterrupt):
        heeding_signals(call, stop)
    pressed.join()
    assert ended == [1]


def test_other_threads_call_directly():
    found = []
    where = threading.Thread(target=lambda: found.append(heeding_signals(threading.get_ident, [0])))
    where.start()
    where.join()
    assert found == [where.ident]


def test_ctrl_c_ends_a_long_call_and_the_next_one_is_right(interruptible, monkeypatch):
    """40000 steps that read 4 MB of weights each take seconds."""
    kernel = cellgen.load("lstm")
    sizes = {"T": 40000, "B": 1, "I": 16, "H": 512}
    rng = np.random.default_rng(1)
    arguments = {
        a.name: rng.standard_normal([axis_length(axis, sizes) for axis in a.shape], np.float32)
        * 0.1
        for a in kernel.sequence_forward.function.arguments
    }

    begun, codes = threading.Event(), []

    def watched(call, stop):
        def begins():
            begun.set()
            codes.append(call())
            return codes[0]

        return heeding_signals(begins, stop)

    monkeypatch.setattr(call_over_time, "heeding_signals", watched)
    pressed = press_ctrl_c(begun.is_set)
    with pytest.raises(KeyboardInterrupt):
        kernel.sequence_forward(**arguments)
    pressed.join()
    assert codes == [STOPPED]
    short = arguments | {"x": arguments["x"][:3]}
    assert np.array_equal(
        kernel.sequence_forward(**short).h, kernel.sequence_forward(**short, threads=1).h
    )
