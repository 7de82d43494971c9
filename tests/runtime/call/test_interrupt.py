"""Ctrl-C ends a long call, at the next of its checkpoints, on any number of threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen.errors import CellgenError
from cellgen.runtime.abi import STOPPED, axis_length
from cellgen.runtime.call import bound as bound_calls
from cellgen.runtime.call import engine, workspace
from cellgen.runtime.call import over_time as call_over_time
from cellgen.runtime.host import interrupt
from cellgen.runtime.host import threads as host_threads
from cellgen.runtime.host.interrupt import LONG, LOOK, calls_waiting, heeding_signals
from tests.drawing import draw_arrays

SIZES = {"T": 40, "B": 5, "I": 3, "H": 18}
NAMES = ("lstm", "gru_reset_before", "min_gru")
PATIENCE = 60.0  # seconds after which a test gives up waiting for another thread

threads = pytest.mark.parametrize("threads", [1, 2, 3])
cells = pytest.mark.parametrize("name", NAMES)


@cache
def drawn(name):
    kernel = cellgen.load(name)
    return kernel, draw_arrays(kernel.sequence_forward.function, SIZES)


def both(name, **how):
    """The results of forward and backward, by name."""
    kernel, arguments = drawn(name)
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
    monkeypatch.setattr(engine, "LONG", 0)


@cells
@threads
def test_a_call_that_can_be_ended_gives_the_same_bits(name, threads, everything_is_long):
    found = both(name, threads=threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "LONG", LONG)
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

    def asked_at_once(call, stop, label):
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
    thread = threading.Thread(
        target=lambda: found.append(heeding_signals(threading.get_ident, [0]))
    )
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_ctrl_c_ends_a_long_call_and_the_next_one_is_right(interruptible, monkeypatch):
    """40000 steps that read 4 MB of weights each take seconds."""
    kernel = cellgen.load("lstm")
    sizes = {"T": 40000, "B": 1, "I": 16, "H": 512}
    arguments = draw_arrays(kernel.sequence_forward.function, sizes, scale=0.1, dtype="f")

    begun, codes = threading.Event(), []

    def watched(call, stop, label):
        def begins():
            begun.set()
            codes.append(call())
            return codes[0]

        return heeding_signals(begins, stop, label)

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


# --- handlers that call kernels ---------------------------------------------------------------


@pytest.fixture
def handling():
    """Run a function in a signal's handler; give back what it returned or raised."""
    found, before = [], signal.getsignal(signal.SIGUSR1)

    def install(function):
        signal.signal(signal.SIGUSR1, lambda *_: found.append(function()))
        return found

    yield install
    signal.signal(signal.SIGUSR1, before)


def signalled_once_begun(monkeypatch, module, times=1):
    """Send this process a signal when a long call is in C, and let that call end only after."""
    seen = []

    def watched(call, stop, label):
        if seen:  # a call of the handler's own
            return heeding_signals(call, stop, label)
        seen.append(True)
        begun, handled = threading.Event(), threading.Event()

        def begins():
            begun.set()
            code = call()
            handled.wait(PATIENCE)
            return code

        def send():
            begun.wait(PATIENCE)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(2 * LOOK)
            handled.set()

        sender = threading.Thread(target=send)
        sender.start()
        try:
            return heeding_signals(begins, stop, label)
        finally:
            sender.join()

    monkeypatch.setattr(module, "heeding_signals", watched)


@cells
@threads
@pytest.mark.parametrize("bound", [False, True])
def test_a_handler_may_call_kernels_within_a_long_call(
    name, threads, bound, everything_is_long, handling, monkeypatch
):
    """Each has its own workspace and its own team: nobody's numbers change, and nobody waits."""
    kernel, arguments = drawn(name)
    other = {n: 0.5 * a for n, a in arguments.items()}
    function = kernel.sequence_forward
    expected = function(**arguments, threads=threads).h.copy()
    expected_other = function(**other, threads=threads).h.copy()
    call = function.bind(**arguments, threads=threads) if bound else None
    workspaces, teams = [], []
    take, team = workspace.take_workspace, call_over_time.threads_team

    def taken(*given):
        workspaces.append((calls_waiting(), take(*given).pointer))
        return take(*given)

    def teamed(*given):
        teams.append((calls_waiting(), team(*given)))
        return teams[-1][1]

    for module in (bound_calls, call_over_time):
        monkeypatch.setattr(module, "take_workspace", taken)
    monkeypatch.setattr(call_over_time, "threads_team", teamed)
    signalled_once_begun(monkeypatch, bound_calls if bound else call_over_time)
    found = handling(lambda: function(**other, threads=threads).h)
    h = call().h if bound else function(**arguments, threads=threads).h
    assert np.array_equal(h, expected)
    assert np.array_equal(found[0], expected_other)
    for borrowed, without in ((workspaces, None), (teams, kernel.library().ffi.NULL)):
        by_depth = [{item for depth, item in borrowed if depth == d} - {without} for d in (0, 1)]
        assert not by_depth[0] & by_depth[1]
    assert calls_waiting() == 0


def test_a_handler_that_runs_the_same_bound_call_is_told_so(
    everything_is_long, handling, monkeypatch
):
    kernel, arguments = drawn("lstm")
    bound = kernel.sequence_forward.bind(**arguments)

    def again():
        with pytest.raises(CellgenError, match="is running already"):
            bound()
        return True

    signalled_once_begun(monkeypatch, bound_calls)
    found, expected = handling(again), kernel.sequence_forward(**arguments).h
    assert np.array_equal(bound().h, expected)
    assert found == [True]


def test_a_handler_cannot_resize_what_a_long_call_reads(everything_is_long, handling, monkeypatch):
    kernel, arguments = drawn("lstm")
    whole = np.concatenate([arguments["x"], arguments["x"]])

    def resize():
        with pytest.raises(ValueError, match="cannot resize"):
            whole.resize((1000, 1000), refcheck=False)
        return True

    signalled_once_begun(monkeypatch, call_over_time)
    found = handling(resize)
    kernel.sequence_forward(**(arguments | {"x": whole[: SIZES["T"]]}))
    assert found == [True]


def test_a_workspace_is_kept_for_the_next_call(everything_is_long, handling, monkeypatch):
    kernel, arguments = drawn("lstm")
    kernel.sequence_forward(**arguments)
    kept = workspace.per_thread.memory
    signalled_once_begun(monkeypatch, call_over_time)
    small = {n: a[:1] if n == "x" else a for n, a in arguments.items()}
    handling(lambda: kernel.sequence_forward(**small))
    kernel.sequence_forward(**arguments)
    assert workspace.per_thread.memory is kept


def test_a_team_can_be_made_while_one_is_made(monkeypatch):
    """A handler may come at any moment, also while a lock of its own thread is held."""
    kernel, arguments = drawn("lstm")
    expected = kernel.sequence_forward(**arguments, threads=1).h
    library, interface = kernel.library(), kernel.interface
    create = getattr(library.lib, interface.team_symbols[0])
    made = []

    class Interrupted:
        ffi = library.ffi

        class lib:  # cffi's name
            pass

    def interrupted(count):
        made.append(count)
        if len(made) == 1:  # a handler's call needs the same team
            assert np.array_equal(kernel.sequence_forward(**arguments, threads=7).h, expected)
        return create(count)

    setattr(Interrupted.lib, interface.team_symbols[0], staticmethod(interrupted))
    destroyed = []
    setattr(Interrupted.lib, interface.team_symbols[1], staticmethod(destroyed.append))
    monkeypatch.setattr(host_threads, "TEAMS", {})
    team = host_threads.threads_team(Interrupted, interface, 7)
    assert made == [7 | host_threads.ALWAYS]
    assert len(destroyed) == 1
    assert team == host_threads.threads_team(library, interface, 7)
    getattr(library.lib, interface.team_symbols[1])(destroyed[0])


def test_a_long_call_that_gets_no_thread_is_made_directly():
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            threading.Thread(target=int).start()
        assert heeding_signals(threading.get_ident, [0]) == threading.get_ident()
    finally:
        threading.stack_size(before)


def test_what_a_handler_raises_is_not_taken_for_a_missing_thread(monkeypatch):
    def start(*_):
        raise RuntimeError("of a handler")

    monkeypatch.setattr(interrupt._thread, "start_new_thread", start)
    with pytest.raises(RuntimeError, match="of a handler"):
        heeding_signals(threading.get_ident, [0])
    assert calls_waiting() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_handler_is_told_that_the_call_is_not_its_own(handling):
    parent = os.getpid()

    def call():
        for _ in range(int(PATIENCE * 1000)):
            if handled:
                break
            threading.Event().wait(0.001)
        return 0

    handled = handling(os.fork)
    timer = threading.Timer(0.1, os.kill, (parent, signal.SIGUSR1))
    timer.start()
    try:
        code = heeding_signals(call, [0])
    except CellgenError as error:
        os._exit(7 if "forked within a long call" in str(error) else 8)
    finally:
        if os.getpid() != parent:
            os._exit(9)
    timer.join()
    assert code == 0
    _, status = os.waitpid(handled[0], 0)
    assert os.waitstatus_to_exitcode(status) == 7
