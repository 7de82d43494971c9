"""Say what goes on in a call that takes longer than two seconds, on a terminal or in a notebook.

Input: what the call does, in words. Output: a bar on stderr that is gone when the call ends. There
is one bar at a time: what a call does within another says nothing of its own. Where nobody looks
on, in a pipe or a file, nothing is said, and a call costs nothing. A bar has a thread that draws,
twice a second; that of a measurement is drawn between its parts, and nothing runs beside them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cellgen.runtime.system import after_fork_in_child

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

VARIABLE = "CELLGEN_PROGRESS"
"""0 in the environment: never a bar."""
DELAY_SECONDS = 2.0
DRAWN_PER_SECOND = 2

_alone = threading.Lock()
"""Held by the call whose bar it is."""
_off = False


def _after_fork() -> None:
    """Forget in a child whose bar it is: no thread of it draws there."""
    global _alone
    _alone = threading.Lock()


after_fork_in_child(_after_fork)


class CallProgress:
    """What a call tells of itself; nothing comes of it before the delay is over."""

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        began: float | None = None,
        alone: bool = False,
    ) -> None:
        self._what, self._total, self._over = what, total, 0
        self._alone = alone
        """Whether it draws on the thread that tells it something, and on no other."""
        self.began = time.monotonic() if began is None else began
        self._lock = threading.Lock()
        self._closed = False
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def say(self, what: str) -> None:
        """Tell what is going on."""
        with self._lock:
            self._what = what
            self._update()
        self._show_alone()

    def step(self) -> None:
        """Tell that one part of the total is over."""
        with self._lock:
            self._over += 1
            self._update()
        self._show_alone()

    def show(self) -> None:
        """Draw the bar, unless the call is over."""
        with self._lock:
            if self._closed:
                return
            if not _can_draw():
                print(f"cellgen: {self._what} ...", file=sys.stderr, flush=True)
                return
            self._bar = _bar(is_refreshed=not self._alone)
            self._task = self._bar.add_task(self._what, total=self._total, completed=self._over)
            self._bar.tasks[0].start_time = self.began
            self._bar.start()

    def close(self) -> None:
        """Take the bar away."""
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _show_alone(self) -> None:
        """Draw on this thread, where no other does, once the delay is over."""
        if self._alone and self._bar is None and time.monotonic() - self.began > DELAY_SECONDS:
            self.show()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, description=self._what, completed=self._over, refresh=self._alone
            )


def _bar(*, is_refreshed: bool) -> Progress:
    """A bar; one that is refreshed has a thread."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=is_refreshed,
        refresh_per_second=DRAWN_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def progress(
    what: str, total: int | None = None, *, began: float | None = None
) -> Iterator[CallProgress]:
    """Show a bar while the body runs, from two seconds on; ``total`` are its parts, if known.

    ``began``: when, by ``time.monotonic``, what the bar is for did, if before the body.
    """
    call = CallProgress(what, total, began=began)
    lock, process = _alone, os.getpid()
    if not _is_watched() or not lock.acquire(blocking=False):
        yield call
        return
    timer = threading.Timer(max(call.began + DELAY_SECONDS - time.monotonic(), 0), call.show)
    timer.daemon = True
    try:
        timer.start()
        yield call
    finally:
        if (
            os.getpid() == process
        ):  # a child that a signal's handler forked has no thread that draws
            timer.cancel()
            call.close()
            lock.release()


@contextmanager
def progress_between(what: str, total: int) -> Iterator[CallProgress]:
    """Show a bar as ``progress`` does, drawn by ``step`` alone: no thread runs beside the body.

    Calls within the body draw nothing either. For what is being timed.
    """
    call = CallProgress(what, total, alone=True)
    lock = _alone
    if not _is_watched() or not lock.acquire(blocking=False):
        yield CallProgress(what, total)
        return
    try:
        yield call
    finally:
        call.close()
        lock.release()


@contextmanager
def without_bars() -> Iterator[None]:
    """Let no call of the body draw: somebody else shows what goes on."""
    lock = _alone
    is_mine = lock.acquire(blocking=False)
    try:
        yield
    finally:
        if is_mine:
            lock.release()


def turn_off() -> None:
    """Draw nothing in this process any more: another one draws for it."""
    global _off
    _off = True


def _is_watched() -> bool:
    if _off or os.environ.get(VARIABLE) == "0":
        return False
    return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def _in_notebook() -> bool:
    """Whether IPython runs here as the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _can_draw() -> bool:
    """Whether a bar can be drawn again in its place; a notebook needs widgets for that."""
    return not _in_notebook() or importlib.util.find_spec("ipywidgets") is not None
