"""Let Ctrl-C end a long call.

Python handles signals on its main thread, between bytecodes, so not while that thread is in C. A
long call therefore runs on a thread of its own while the main one waits; what a handler raises
there (as a rule KeyboardInterrupt) sets a flag that the kernel reads every few steps. Handlers may
call kernels too: what the long call has borrowed from its thread is its own until it ends. From two
seconds on, the thread that waits shows a bar; before that nothing is done for it.
"""

from __future__ import annotations

import _thread
import math
import os
import threading
import time
from collections.abc import Callable, MutableSequence
from contextlib import suppress

from cellgen.errors import CellgenError
from cellgen.runtime.progress import DELAY_SECONDS, progress

LONG = 1 << 32
"""Multiply-adds from which a call counts as long: 30 ms on two fast cores, 2 s on a slow one. A
thread of its own takes 0.1 ms."""

LOOK = 0.05
"""Seconds after which the main thread looks for signals itself: one that came just before it began
to wait, or to another thread, does not wake it."""


class _Interruptions(threading.local):
    """How many long calls a thread waits for: more than one where a handler makes another."""

    waiting = 0


_per_thread = _Interruptions()


def calls_waiting() -> int:
    """Count the long calls of this thread that run while it is in Python, within their handlers."""
    return _per_thread.waiting


def heeding_signals(
    call: Callable[[], int], stop: MutableSequence[int], label: str = "a long call"
) -> int:
    """Return what ``call`` returns; where a signal's handler raises meanwhile, raise that.

    ``call`` is a function in C behind a lambda: it raises nothing itself, and lets go of the lock
    of the interpreter.
    Then ``stop[0]`` has been set to 1 and ``call`` has ended, or has never begun. On another than
    the main thread, which gets no signals, and where no thread can be made, this is ``call()``.
    ``label``: what a bar says that the call is.

    Raises:
        CellgenError: a handler forked, in the child, which has no thread that could end the call.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    codes: list[int] = []
    claimed, ended = _thread.allocate_lock(), _thread.allocate_lock()
    ended.acquire()
    process, waiting = os.getpid(), _per_thread.waiting

    def run() -> None:
        if claimed.acquire(blocking=False):
            codes.append(call())
            ended.release()

    # A handler may raise after any instruction, in the midst of starting the thread too.
    try:
        _per_thread.waiting = waiting + 1
        if not _starts(run):
            return call()
        began = time.monotonic()
        if not _ends(ended, process, began + DELAY_SECONDS):
            with progress(label, began=began):
                _ends(ended, process, math.inf)
    except BaseException:
        stop[0] = 1
        if os.getpid() == process and not claimed.acquire(blocking=False):
            while not codes:
                with suppress(BaseException):  # the first one counts
                    ended.acquire()
        raise
    finally:
        _per_thread.waiting = waiting
    return codes[0]


def _ends(ended: _thread.LockType, process: int, until: float) -> bool:
    """Wait until a call ends, or until a time by ``time.monotonic``; tell whether it has ended."""
    while not ended.acquire(timeout=LOOK):
        if os.getpid() != process:
            raise CellgenError(
                "a signal's handler forked within a long call, whose thread this child does "
                "not have; end the child within the handler, or make the call again",
                code="kernel",
            )
        if time.monotonic() > until:
            return False
    return True


def _starts(run: Callable[[], None]) -> bool:
    """Start a thread, or tell that none can be made."""
    try:
        _thread.start_new_thread(run, ())
    except (RuntimeError, MemoryError) as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is None:
            return False
        raise  # of a handler
    return True
