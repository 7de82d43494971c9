"""What one system has and another lacks: forks, file locks, names of the machine, rights, signals.

Everything else asks here, so that no module needs a system to be imported. Windows is
experimental: nobody has run it there.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

LOCKED_BYTE = 1 << 30
"""Where Windows locks a file: beyond its end, since a locked byte cannot be read by others."""
WINDOWS, MACOS = "win32", "darwin"
SYSTEMS = {
    "linux": "",
    MACOS: "nobody has run cellgen on macOS; programs are linked for it",
    WINDOWS: "experimental: kernels have run under Wine, cellgen itself on no Windows",
}
"""Systems that cellgen is written for, and what is not known of each."""
PROCESSES_OF_WINDOWS = 61
"""How many processes a pool can wait for there."""
KILL_SECONDS = 10.0
IN_USE_SECONDS, IN_USE_TRIALS = 0.05, 5
"""How long a file of Windows may be open elsewhere, as by what looks for viruses."""


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


def is_windows() -> bool:
    """Whether this is Windows."""
    return sys.platform == WINDOWS


def joins_in_archives() -> bool:
    """Whether several objects become one file in an archive alone, rather than in one object."""
    return sys.platform in (WINDOWS, MACOS)


def shared_suffix() -> str:
    """How the name of a shared object ends."""
    return ".dll" if is_windows() else ".so"


def program_suffix() -> str:
    """How the name of a program ends."""
    return ".exe" if is_windows() else ""


def empty_source() -> str:
    """What a compiler reads as an empty text: on Windows its standard input, which is empty."""
    return "-" if is_windows() else os.devnull


def words_of(text: str) -> list[str]:
    r"""Split a command as the system's shell does: on Windows \ is no more than a letter.

    Raises:
        ValueError: quotes that are not closed.
    """
    if not is_windows():
        return shlex.split(text)
    return [word.strip('"') for word in shlex.split(text, posix=False)]


def most_processes(wanted: int) -> int:
    """As many processes of a pool as are wanted, or as the system lets it wait for."""
    return min(wanted, PROCESSES_OF_WINDOWS) if is_windows() else wanted


def own_group() -> int:
    """Flags with which a process starts apart from Ctrl-C: on Windows, where sessions are none."""
    return getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and all that it began; alone where that cannot be."""
    end = getattr(os, "killpg", None)
    if end is not None:
        end(process.pid, signal.SIGKILL)
        return
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(command, capture_output=True, check=False, timeout=KILL_SECONDS)
    process.kill()  # nothing where it has ended


def space_left(place: Path) -> tuple[int, bool]:
    """Return the free bytes of a disk, and whether it can hold one more file.

    Raises:
        OSError: there is no such place.
    """
    ask = getattr(os, "statvfs", None)
    if ask is None:
        return shutil.disk_usage(place).free, True
    status = ask(place)
    return status.f_bavail * status.f_frsize, not (status.f_files > 0 and status.f_favail == 0)


def replace(source: Path, target: Path) -> None:
    """Rename a file or folder; on Windows again where somebody has it open for a moment.

    Raises:
        OSError: it cannot be renamed.
    """
    for _ in range(IN_USE_TRIALS if is_windows() else 0):
        try:
            os.replace(source, target)
        except PermissionError:
            time.sleep(IN_USE_SECONDS)
        else:
            return
    os.replace(source, target)
