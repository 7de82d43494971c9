"""Waiting for threads: Ctrl-C is heeded although nothing wakes the main thread."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cellgen.runtime.waiting import as_completed, result_of


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    "waits",
    [lambda future: list(as_completed([future])), result_of],
    ids=["as_completed", "result_of"],
)
def test_an_interrupt_that_wakes_nobody_ends_a_wait(
    waits: Callable[[Future[int]], object],
) -> None:
    """``interrupt_main`` leaves the main thread asleep, as a signal does that comes just before."""
    future: Future[int] = Future()
    end = threading.Timer(20, future.set_result, [0])

    def interrupted() -> None:
        threading.Timer(0.1, _thread.interrupt_main).start()
        waits(future)

    end.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not future.done()
    finally:
        end.cancel()


def test_every_future_comes_once_and_a_result_is_its_own() -> None:
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(int, text) for text in ("1", "2", "none")]
        assert set(as_completed(futures)) == set(futures)
        assert [result_of(future) for future in futures[:2]] == [1, 2]
        with pytest.raises(ValueError, match="none"):
            result_of(futures[2])
    assert list(as_completed([])) == []
