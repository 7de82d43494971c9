"""Wait for work of threads and processes so that Ctrl-C is heeded, wherever it comes.

Python runs the handler of a signal in the main thread, between two of its steps. A signal that
comes after the last step before a wait, while the thread gives up the interpreter's lock, is seen
when the wait ends: a wait without a limit may last as long as what it waits for. So these wake up
at intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
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
