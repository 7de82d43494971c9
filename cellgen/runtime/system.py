"""What one system has and another lacks: forks, file locks, names of the machine, rights, signals.

Everything else asks here, so that no module needs a system to be imported. Windows is
experimental: nobody has run it there.
"""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

LOCKED_BYTE = 1 << 30
"""Where Windows locks a file: beyond its end, since a locked byte cannot be read by others."""


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


_POSIX, _WINDOWS = _module("fcntl"), _module("msvcrt")


def after_fork_in_child(renew: Callable[[], object]) -> None:
    """Call a function in every child that is forked, where processes fork."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=renew)


def lock(handle: int) -> bool:
    """Lock an open file or folder if nobody holds it; the system drops it with its process.

    Raises:
        OSError: the file system, or the system, has no locks.
    """
    if _POSIX is not None:
        try:
            _POSIX.flock(handle, _POSIX.LOCK_EX | _POSIX.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    if _WINDOWS is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        _WINDOWS.locking(handle, _WINDOWS.LK_NBLCK, 1)
    except PermissionError:
        return False
    return True


def unlock(handle: int) -> None:
    """Unlock a file that was locked by this handle.

    Raises:
        OSError: it was not.
    """
    if _POSIX is not None:
        _POSIX.flock(handle, _POSIX.LOCK_UN)
    elif _WINDOWS is not None:
        os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
        _WINDOWS.locking(handle, _WINDOWS.LK_UNLCK, 1)


def node() -> str:
    """The name of this machine."""
    return platform.node()


def description() -> tuple[str, ...]:
    """System, name, release, version and kind of this machine."""
    machine = platform.uname()
    return machine.system, machine.node, machine.release, machine.version, machine.machine


def user() -> int | None:
    """The number of the user, where files have owners and modes."""
    own = getattr(os, "getuid", None)
    return None if own is None else int(own())


def is_running(process: int) -> bool | None:
    """Whether a process of this machine runs; None where asking would end it."""
    if os.name == "nt" or not hasattr(os, "getuid"):
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and all that it began; alone where there are none."""
    end = getattr(os, "killpg", None)
    if end is None:
        process.kill()
        return
    end(process.pid, signal.SIGKILL)
