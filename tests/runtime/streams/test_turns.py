"""Whose turn it is: one call at a time, and a stream goes on after Ctrl-C and after errors."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, KeysView, Mapping
from types import FrameType

import numpy as np
import pytest

from cellgen.errors import CellgenError
from cellgen.runtime.streams import frame as frames
from cellgen.runtime.streams.stream import CALLS, Stream
from tests.runtime.streams.test_streams import gru, saved, some
from tests.within import has_token, lose_token, turn_of

IN_USE = "another thread, or an outer call of this one, is using this stream"
USES: dict[str, Callable[[Stream], object]] = {
    "step": lambda stream: stream.step(some(2, 3)),
    "step of some": lambda stream: stream.step(some(1, 3), rows=[1]),
    "run": lambda stream: stream.run(some(2, 2, 3)),
    "join": lambda stream: stream.join("c"),
    "leave": lambda stream: stream.leave(0),
    "reset": lambda stream: stream.reset(),
    "states": lambda stream: stream.states(0),
    "to_bytes": lambda stream: stream.to_bytes(),
    "restore": lambda stream: stream.restore(saved()),
}


class Asking(Mapping[str, np.ndarray]):
    """Inputs that call a function when a step asks for their names."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def keys(self) -> KeysView[str]:
        self._call()
        return {"x": None}.keys()

    def __getitem__(self, name: str) -> np.ndarray:
        return some(2, 3)

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def test_every_method_that_takes_a_turn_is_known() -> None:
    methods = [m for m in vars(Stream).values() if hasattr(m, "__code__")]
    takes = {m.__code__ for m in methods if {"take", "_changing"} & set(m.__code__.co_names)}
    assert len(takes) == 8
    assert takes == CALLS


@pytest.mark.parametrize("use", USES)
def test_another_thread_and_an_inner_call_are_refused(use: str) -> None:
    stream, twin = (gru(rows=2, room=3, block=2)[2] for _ in range(2))

    def refused() -> None:
        for _ in range(2):
            with pytest.raises(CellgenError, match=IN_USE):
                USES[use](stream)

    stream.step(Asking(refused))
    steps, ends = threading.Event(), threading.Event()

    def wait() -> None:
        steps.set()
        assert ends.wait(60)

    thread = threading.Thread(target=stream.step, args=(Asking(wait),))
    thread.start()
    try:
        assert steps.wait(60)
        refused()
    finally:
        ends.set()
        thread.join()
    for _ in range(2):
        twin.step(some(2, 3))
    assert stream.to_bytes() == twin.to_bytes()
    for one in (stream, twin):
        USES[use](one)
    assert stream.to_bytes() == twin.to_bytes()


@pytest.mark.parametrize("use", USES)
def test_within_any_call_another_is_refused(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = gru(rows=2, room=3, block=2)[2]
    give, refusals = turn_of(stream).give, []

    def refused() -> None:
        with pytest.raises(CellgenError, match=IN_USE):
            stream.to_bytes()
        refusals.append(use)
        give()

    monkeypatch.setattr(turn_of(stream), "give", refused)
    USES[use](stream)
    assert refusals == [use]
    monkeypatch.undo()
    assert stream.to_bytes()


def test_another_stream_may_be_used_within_a_call() -> None:
    stream, other = gru(rows=2)[2], gru(rows=2)[2]
    lose_token(other)  # as Ctrl-C does
    stream.step(Asking(lambda: other.step(some(2, 3))))
    assert stream.to_bytes() == other.to_bytes()


def test_threads_never_use_a_stream_at_once() -> None:
    stream, inside, most, steps = gru(rows=2)[2], [], [], []

    def enters() -> None:
        inside.append(None)
        most.append(len(inside))
        sys._current_frames()
        inside.pop()

    def use() -> None:
        for n in range(1500):
            try:
                stream.step(Asking(enters))
                steps.append(None)
            except CellgenError:
                if n % 7 == 0:
                    lose_token(stream)  # as Ctrl-C does

    threads, interval = [threading.Thread(target=use) for _ in range(3)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert set(most) == {1}
    twin = gru(rows=2)[2]
    for _ in steps:
        twin.step(some(2, 3))
    assert stream.to_bytes() == twin.to_bytes()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_a_stream_goes_on_after_ctrl_c_at_any_time() -> None:
    """Each interrupted step is done or not begun; the token is lost in some of a hundred."""
    stream, twin, random = gru(rows=2)[2], gru(rows=2)[2], np.random.default_rng(0)
    x, done, replayed, lost = some(16, 2, 3), 0, 0, 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(600):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 2e-4))
                while True:
                    stream.step(x[done % 16])
                    done += 1
            except KeyboardInterrupt:
                pass
            lost += not has_token(stream)
            while replayed < done:
                twin.step(x[replayed % 16])
                replayed += 1
            if stream.to_bytes() != twin.to_bytes():
                twin.step(x[done % 16])
                done = replayed = done + 1
            assert stream.to_bytes() == twin.to_bytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert lost
    np.testing.assert_array_equal(stream.step(x[0]), twin.step(x[0]))


@pytest.mark.parametrize("use", USES)
def test_a_token_that_was_lost_is_there_again(use: str) -> None:
    stream, twin = (gru(rows=2, room=3, block=2)[2] for _ in range(2))
    lose_token(stream)  # as Ctrl-C does
    for _ in range(2):
        for one in (stream, twin):
            one.reset()
    for one in (stream, twin):
        USES[use](one)
    assert stream.to_bytes() == twin.to_bytes()


def test_a_stream_closed_within_a_call_stays_closed() -> None:
    stream = gru(rows=2)[2]
    stream.step(Asking(stream.close))
    for _ in range(2):
        with pytest.raises(CellgenError, match="the stream is closed"):
            stream.step(some(2, 3))


@pytest.mark.parametrize("use", ["join", "leave", "restore"])
def test_without_memory_for_other_rows_all_is_as_before(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, twin = (gru(rows=2, room=3, block=2)[2] for _ in range(2))
    for one in (stream, twin):
        one.step(some(2, 3))

    class Frame(frames.StreamFrame):
        def __init__(self, *words: object, step: bool) -> None:
            if step:
                super().__init__(*words, step=step)
            else:
                raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(frames, "StreamFrame", Frame)
        with pytest.raises(MemoryError):
            USES[use](stream)
    assert (stream.ids, stream.to_bytes()) == (twin.ids, twin.to_bytes())
    np.testing.assert_array_equal(stream.step(some(2, 3)), twin.step(some(2, 3)))
    for one in (stream, twin):
        USES[use](one)
    assert (stream.ids, stream.to_bytes()) == (twin.ids, twin.to_bytes())
