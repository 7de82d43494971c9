"""Let Ctrl-C end a long call.

Python handles signals on its main thread, between bytecodes, so not while that thread is in C. A
long call therefore runs on a thread of its own while the main one waits; what a handler raises
there (as a rule KeyboardInterrupt) sets a flag that the kernel reads every few steps.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, MutableSequence
from contextlib import suppress

LONG = 1 << 32
"""Multiply-adds from which a call counts as long: 30 ms on two fast cores, 2 s on a slow one. A
thread of its own takes 0.1 ms."""

LOOK = 0.05
"""Seconds after which the main thread looks for signals itself: one that came just before it began
to wait, or to another thread, does not wake it."""


def heeding_signals(call: Callable[[], int], stop: MutableSequence[int]) -> int:
    """Return what ``call`` returns; where a signal's handler raises meanwhile, raise that.

    ``call`` is a function in C behind a lambda: it raises nothing itself, and lets go of the lock
    of the interpreter.
    Then ``stop[0]`` has been set to 1 and ``call`` has ended, or has never begun. On another than
    the main thread, which gets no signals, this is ``call()``.

    Raises:
        RuntimeError: no thread can be made.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    codes: list[int] = []
    claimed, ended = _thread.allocate_lock(), _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        if claimed.acquire(blocking=False):
            codes.append(call())
            ended.release()

    # A handler may raise after any instruction, in the midst of starting the thread too.
    try:
        _thread.start_new_thread(run, ())
        while not ended.acquire(timeout=LOOK):
            pass
    except BaseException:
        stop[0] = 1
        if not claimed.acquire(blocking=False):
            while not codes:
                with suppress(BaseException):  # the first one counts
                    ended.acquire()
        raise
    return codes[0]
