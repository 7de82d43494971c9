"""Wait for work of threads and processes so that Ctrl-C is heeded, wherever it comes.

Python runs the handler of a signal in the main thread, between two of its steps. A signal that
comes after the last step before a wait, while the thread gives up the interpreter's lock, is seen
when the wait ends: a wait without a limit may last as long as what it waits for. So these wake up
at intervals. Where a body must be done or not begun, Ctrl-C waits for its end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

WAKE_SECONDS = 0.5
"""How long Ctrl-C may be unheeded."""


def as_completed(futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
    """Yield futures as they are done, as ``concurrent.futures.as_completed``."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=WAKE_SECONDS, return_when=FIRST_COMPLETED)
        yield from done


def result_of(future: Future[T]) -> T:
    """Return a future's result once it is there; raises what its work raised."""
    while not future.done():
        wait([future], timeout=WAKE_SECONDS)
    return future.result()


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C wait until the body has ended; its handler is called then, once."""
    heed = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(heed):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heed)
        if came:
            heed(*came[0])
