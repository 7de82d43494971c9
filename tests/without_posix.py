"""Windows stood in for: this system with the modules and functions of POSIX hidden.

The lock of Windows is made of that of POSIX.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]

HIDDEN = """
    import os, shutil, signal, subprocess, sys, types
    import concurrent.futures.process, multiprocessing.connection  # these see their own system
    import numpy, sympy, cffi, jinja2, typer, platformdirs, rich.console
    import fcntl as posix

    WINDOWS = {windows}
    if WINDOWS:
        windows = types.ModuleType("msvcrt")
        windows.LK_NBLCK, windows.LK_UNLCK = 2, 0

        def locking(handle, mode, count):
            assert os.lseek(handle, 0, os.SEEK_CUR) >= 1 << 30 and count == 1
            how = posix.LOCK_EX | posix.LOCK_NB if mode == windows.LK_NBLCK else posix.LOCK_UN
            try:
                posix.flock(handle, how)
            except BlockingIOError:
                raise PermissionError(13, "Permission denied") from None

        windows.locking = locking
        sys.modules["msvcrt"] = windows
        sys.platform = "win32"
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    for name in ("register_at_fork", "fork", "getuid", "killpg", "pwrite", "sched_getaffinity",
                 "statvfs", "memfd_create", "uname", "getpgid", "setsid"):
        delattr(os, name)
    asked, number_of_kill = os.kill, signal.SIGKILL
    subprocess.Popen.kill = lambda process: asked(process.pid, number_of_kill)
    shutil.disk_usage = lambda place: types.SimpleNamespace(free=1 << 40)
    del signal.SIGKILL, signal.pthread_sigmask

    def kill(process, number):
        assert number != 0, "on Windows this ends the process"
        asked(process, number)

    os.kill = kill
"""


def without_posix(
    text: str, *arguments: object, windows: bool = True, timeout: float = 120, **variables: str
) -> str:
    """Run a script where the modules and functions of POSIX are hidden; what it prints."""
    script = textwrap.dedent(HIDDEN.format(windows=windows)) + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
