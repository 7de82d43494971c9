"""Systems that lack what POSIX has: everything is imported, built and locked without it.

Windows is stood in for by this one with the modules and functions of POSIX hidden, and with the
lock of Windows made of that of POSIX.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cellgen.runtime import system

ROOT = Path(__file__).parents[2]

HIDDEN = """
    import os, signal, subprocess, sys, types
    import numpy, sympy, cffi, jinja2, typer, platformdirs  # these see their own system
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
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    for name in ("register_at_fork", "fork", "getuid", "killpg", "pwrite", "sched_getaffinity"):
        delattr(os, name)
    asked = os.kill

    def kill(process, number):
        assert number != 0, "on Windows this ends the process"
        asked(process, number)

    os.kill = kill
"""


def without_posix(text: str, *arguments: object, windows: bool = True) -> str:
    """Run a script where the modules and functions of POSIX are hidden; what it prints."""
    script = textwrap.dedent(HIDDEN.format(windows=windows)) + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_compiler_and_the_runtime_are_imported() -> None:
    text = """
        import importlib, pkgutil
        import cellgen

        APART = ("bench", "torch", "jax", "onnx", "compat", "proof", "weights", "__main__")
        count = 0
        for module in pkgutil.walk_packages(cellgen.__path__, "cellgen."):
            of_peers = module.name in ("cellgen.wheel.packed.torch", "cellgen.wheel.packed.jax")
            if module.name.split(".")[1] not in APART and not of_peers:
                importlib.import_module(module.name)
                count += 1
        print(count)
    """
    assert int(without_posix(text)) > 200


@pytest.mark.parametrize("windows", [True, False])
def test_what_is_built_is_published_once_and_found(windows: bool, tmp_path: Path) -> None:
    """With locks of Windows, and with none."""
    text = """
        from pathlib import Path
        from cellgen.runtime.build import cache, locks

        os.environ["CELLGEN_CACHE_DIR"] = sys.argv[1]
        lock = Path(sys.argv[1]) / "lock"
        with cache.building("cell-1"), cache.workplace() as place:
            (place / "object.so").write_text("machine code")
            there = cache.publish(place, "cell-1", "object.so")
            cache.sweep()
            print(place.exists(), there == cache.find("cell-1"), there.read_text())
        print(place.exists())
        with locks.hold(lock, "a test") as is_held:
            print(is_held, locks.is_held(lock), locks._holder(lock).endswith("(a test)"))
    """
    lines = without_posix(text, tmp_path / "cache", windows=windows).split("\n")
    assert lines == ["True True machine code", "False", f"{windows} {windows} {windows}"]


def test_a_build_folder_of_this_machine_stays_where_nobody_may_ask_for_its_process() -> None:
    text = """
        from cellgen.runtime import system

        print(system.is_running(os.getpid()), system.user())
    """
    assert without_posix(text) == "None None"


def test_here_processes_and_locks_are_asked(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert system.is_running(ended.pid) is False
    path = tmp_path / "lock"
    with path.open("w") as first, path.open() as second:
        assert system.lock(first.fileno())
        assert not system.lock(second.fileno())
        system.unlock(first.fileno())
        assert system.lock(second.fileno())
