"""Get the module that makes calls in C: from the cache, else compiled beside the program.

Output: ``EXTENSION``. No call waits for a compiler, unless the environment asks for that. It runs
beside that of a kernel, once a processor is free (``compile_beside``), or on a thread of a process
that has the kernel and not this. What still runs when the process ends is stopped, what failed is
not tried again for a day. Until then Python makes all calls, with the same results.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from cellgen import accept
from cellgen.errors import CellgenError
from cellgen.runtime.build import extension, steps
from cellgen.runtime.host.processors import usable_processors
from cellgen.runtime.system import after_fork_in_child

VARIABLE = "CELLGEN_CALLS"
"""``python``: calls are never made in C. ``c``: from a function's second one on, compiled if need
be."""
WORDS = "python", "c"
SOURCE = Path(__file__).with_name("cellgen_door.c")
THREAD = "cellgen calls in C"
"""The name of the thread that compiles what makes them."""
GRACE_SECONDS = 1.0
"""How long a process has called before it compiles for calls alone: a short one would end first."""
END_SECONDS = 2.0
"""How long a process that ends waits at most for what it has stopped."""
PAUSE_SECONDS = 0.1
TRIES = 600
"""Looks, a pause apart, for what another process compiles: a minute."""

log = logging.getLogger("cellgen")


class Extension:
    """The module of C, None until there is one; ``look`` for it until it ``is_settled``."""

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self.renew()

    def renew(self) -> None:
        """Begin anew, as in a child that was forked: no thread of its parent goes on there."""
        self.is_settled = self.module is not None
        self._worker: threading.Thread | None = None
        self._ending = threading.Event()
        self._stoppable = steps.Stoppable()
        self._lock = threading.Lock()

    def get(self) -> ModuleType | None:
        """Return the module, if it is there by now. Raises CellgenError as ``look`` does."""
        return self.module if self.is_settled else self.look()

    def look(self) -> ModuleType | None:
        """Load the module if the cache has it; else let a thread compile it, and return None.

        It is settled then. Raises CellgenError for a variable that says neither.
        """
        if not self._lock.acquire(blocking=False):  # another thread, or what a signal interrupted
            return self.module
        try:
            if not self.is_settled and self._may_be_c():
                self._find()
            self.is_settled = True
        finally:
            self._lock.release()
        return self.module

    def require(self) -> ModuleType:
        """Load the module now, compiled if need be. Raises BuildError."""
        if self.module is None:
            self._load(extension.build(SOURCE))
        assert self.module is not None
        return self.module

    def compile_beside(self) -> None:
        """Compile the module while a kernel is compiled, unless somebody has."""
        if self.is_settled or not self._lock.acquire(blocking=False):
            return
        try:
            with _logged():
                if self._may_be_c():
                    self._begin(0.0)
        finally:
            self._lock.release()

    def _may_be_c(self) -> bool:
        return accept.word_from_environment(VARIABLE, WORDS) != "python"

    def _find(self) -> None:
        if self.module is not None:
            return
        with _logged():
            if accept.word_from_environment(VARIABLE, WORDS) == "c":
                self.require()
                return
            path = extension.find(SOURCE)
            if path is None:
                self._begin(GRACE_SECONDS)
            else:
                self._load(path)

    def _load(self, path: Path) -> None:
        self.module = extension.load(SOURCE.stem, path)

    def _begin(self, delay: float) -> None:
        """Start the thread that compiles, unless it has been started."""
        if self._worker is not None:
            return
        worker = threading.Thread(target=self._compile, args=(delay,), name=THREAD, daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter is ending
            worker.start()
            self._worker = worker
            atexit.register(self._end)

    def _compile(self, delay: float) -> None:
        """Compile the module once there is a processor for it, or wait for who does; load it."""
        with _logged():
            if self._ending.wait(delay):
                return
            extension.require_promising(SOURCE)
            while steps.at_work() >= usable_processors():
                if self._ending.wait(PAUSE_SECONDS):
                    return
            for _ in range(TRIES):
                path = extension.build_if_free(SOURCE, self._stoppable)
                if path is not None:
                    self._load(path)
                    return
                if self._ending.wait(PAUSE_SECONDS):
                    return

    def _end(self) -> None:
        """Stop what runs, as the interpreter is ending."""
        self._ending.set()
        self._stoppable.stop()
        if self._worker is not None and self._worker.is_alive():
            self._worker.join(END_SECONDS)


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Let the log say why calls stay Python's."""
    try:
        yield
    except (CellgenError, OSError, MemoryError) as error:
        log.info("calls are made by Python: %s", error)


EXTENSION = Extension()
after_fork_in_child(EXTENSION.renew)
