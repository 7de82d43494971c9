"""Locks between processes, which the system drops when their holder ends.

Input: the path of a lock file. Output: the lock, for the body of a ``with``. Waiting is said after
a second, ends after ``CELLGEN_LOCK_TIMEOUT`` seconds, and goes on without the lock: a lock here
spares work and keeps folders tidy; what is published is right without it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime import system

VARIABLE = "CELLGEN_LOCK_TIMEOUT"
SECONDS = 120.0
LONGEST_SECONDS = 1e6
QUIET_SECONDS = 1.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
HOLDER_BYTES = 200
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems say that have no locks: then nobody waits."""

log = logging.getLogger("cellgen")

_held: set[int] = set()
"""Handles of locks that this process holds. A forked child has copies, which would keep them."""
_given_up = 0
"""How often waiting threads were told to end."""


def _drop_in_child() -> None:
    """Close the locks of the parent: they are its own."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


system.after_fork_in_child(_drop_in_child)


def node() -> str:
    """Name this machine with letters, digits and dots."""
    return re.sub(r"[^A-Za-z0-9.]", "_", system.node())[:40]


def seconds(variable: str, usual: float) -> float:
    """Read a time from an environment variable. Raises BuildError."""
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else usual
    except ValueError:
        number = -1.0
    if 0 < number <= LONGEST_SECONDS:
        return number
    raise BuildError(
        f"{variable} is {text!r}, expected a number of seconds up to {LONGEST_SECONDS:g}; "
        f"correct or unset it"
    )


@contextmanager
def hold(path: Path, purpose: str) -> Iterator[bool]:
    """Hold a lock file; tell whether it is held, or another held it for too long.

    ``purpose`` says in messages what waits. Raises BuildError when ``give_up`` ends the waiting,
    OSError when the file cannot be made.
    """
    with _signed(_wait(path, purpose), purpose) as is_held:
        yield is_held


@contextmanager
def hold_if_free(path: Path, purpose: str) -> Iterator[bool]:
    """Hold a lock file if nobody holds it, at once; tell whether it is held."""
    handle = None
    with contextlib.suppress(OSError):
        handle = take(path, create=True)
    with _signed(handle, purpose) as is_held:
        yield is_held


@contextmanager
def _signed(handle: int | None, purpose: str) -> Iterator[bool]:
    """Sign a lock file that was taken, if any, and release it at the end."""
    try:
        if handle is not None:
            _sign(handle, purpose)
        yield handle is not None
    finally:
        _release(handle)


def give_up() -> None:
    """End the waiting of every thread with a BuildError."""
    global _given_up
    _given_up += 1


def take(path: Path, *, create: bool = False) -> int | None:
    """Lock a file or folder if nobody holds it; return a handle for ``release``, or None.

    Raises OSError: there is no such file, the file system has no locks.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o600)
    _held.add(handle)
    try:
        if system.lock(handle) and os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except FileNotFoundError:
        pass  # swept meanwhile
    except BaseException:
        _release(handle)
        raise
    _release(handle)
    return None


def is_held(path: Path) -> bool:
    """Tell whether a process holds the lock of a file or folder."""
    try:
        handle = take(path)
    except OSError:
        return False
    _release(handle)
    return handle is None


def remove(path: Path) -> None:
    """Remove a lock file that nobody holds; who waits for it makes another."""
    with contextlib.suppress(OSError):
        handle = take(path)
        if handle is None:
            return
        try:
            if not system.is_windows():
                path.unlink(missing_ok=True)
        finally:
            _release(handle)
        if system.is_windows():  # where nobody can remove a file that somebody has open
            path.unlink(missing_ok=True)


@contextmanager
def marked(folder: Path) -> Iterator[bool]:
    """Hold a folder as long as the body runs, so that others see its owner alive.

    Tell whether the file system can do that.
    """
    handle = None
    with contextlib.suppress(OSError):
        handle = take(folder)
    try:
        yield handle is not None
    finally:
        _release(handle)


def _wait(path: Path, purpose: str) -> int | None:
    """Take a lock, waiting for it as long as is allowed."""
    began, limit, rounds = time.monotonic(), seconds(VARIABLE, SECONDS), _given_up
    pause, is_said = SHORTEST_PAUSE, False
    while True:
        try:
            handle = take(path, create=True)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            return None
        waited = time.monotonic() - began
        if handle is not None:
            return handle
        if rounds != _given_up:
            raise BuildError(f"{purpose}: ended while waiting for the lock {path}")
        if waited >= limit:
            log.warning(
                "%s: waited %g s for %s, which holds %s; going on without the lock",
                *(purpose, limit, _holder(path), path),
            )
            return None
        if waited >= QUIET_SECONDS and not is_said:
            is_said = True
            log.warning(
                "%s: waiting for %s, which holds %s, for at most %g s (%s), then going on without",
                *(purpose, _holder(path), path, limit, VARIABLE),
            )
        time.sleep(min(pause, max(limit - waited, SHORTEST_PAUSE)))
        pause = min(2 * pause, LONGEST_PAUSE)


def _sign(handle: int, purpose: str) -> None:
    """Write who holds a lock; on a full disk nobody does."""
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"process {os.getpid()} on {node()} ({purpose})".encode())


def _holder(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            text = file.read(HOLDER_BYTES).decode("utf-8", "replace")
    except OSError:
        text = ""
    return text or "another process"


def _release(handle: int | None) -> None:
    """Unlock and close, unless a fork has done so."""
    if handle is not None and handle in _held:
        _held.discard(handle)
        with contextlib.suppress(OSError):
            system.unlock(handle)
        os.close(handle)
