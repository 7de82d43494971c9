"""The module that makes calls in C: found in the cache, or compiled beside the program."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen.cli import doctor
from cellgen.errors import BuildError
from cellgen.runtime.abi import axis_length
from cellgen.runtime.build import cache, extension, steps
from cellgen.runtime.call import compiled, door
from cellgen.runtime.call.compiled import SOURCE, VARIABLE, Extension

MODULE = ModuleType("of C")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done for an extension that no cache has; no time passes meanwhile."""
    done: list[str] = []

    def build(*_: object) -> Path:
        done.append("build")
        return Path("built")

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(compiled, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(extension, "find", lambda _: done.append("find"))
    monkeypatch.setattr(extension, "require_promising", lambda _: None)
    monkeypatch.setattr(extension, "build", build)
    monkeypatch.setattr(extension, "build_if_free", build)
    monkeypatch.setattr(extension, "load", lambda *_: MODULE)
    return done


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == compiled.THREAD:
            thread.join()


def forward_call(kernel: cellgen.Kernel) -> dict[str, Any]:
    lengths, rng = {"B": 2, "I": 3, "H": 4}, np.random.default_rng(0)
    return {
        a.name: rng.standard_normal([axis_length(x, lengths) for x in a.shape]).astype(np.float32)
        for a in kernel.forward.function.arguments
        if not a.is_scalar
    }


def test_what_the_cache_has_is_loaded_by_the_first_call(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "find", lambda _: done.append("find") or Path("found"))
    found = Extension()
    assert [found.get() for _ in range(3)] == [MODULE] * 3
    assert done == ["find"]


def test_what_the_cache_lacks_is_compiled_once_by_a_thread(done: list[str]) -> None:
    found = Extension()
    found.get()
    settle()
    assert [found.get() for _ in range(3)] == [MODULE] * 3
    assert done == ["find", "build"]


def test_a_short_process_compiles_nothing(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "GRACE_SECONDS", 3600.0)
    found = Extension()
    assert found.get() is None
    found._end()
    settle()
    assert (done, found.module) == (["find"], None)


def test_it_is_compiled_beside_a_kernel_and_not_looked_for_twice(done: list[str]) -> None:
    found = Extension()
    found.compile_beside()
    settle()
    found.compile_beside()
    assert (found.get(), done) == (MODULE, ["build"])


def test_it_waits_for_a_processor(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def at_work() -> int:
        done.append("look")
        return next(counts)

    counts = iter([3, 2, 2, 1])
    monkeypatch.setattr(compiled, "usable_processors", lambda: 2)
    monkeypatch.setattr(steps, "at_work", at_work)
    found = Extension()
    found.compile_beside()
    settle()
    assert done == [*["look"] * 4, "build"]


def test_what_another_process_compiles_is_waited_for(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_if_free(*_: object) -> Path | None:
        done.append("try")
        return next(tries)

    tries = iter([None, None, Path("theirs")])
    monkeypatch.setattr(extension, "build_if_free", build_if_free)
    found = Extension()
    found.get()
    settle()
    assert (found.module, done) == (MODULE, ["find", "try", "try", "try"])


def test_waiting_for_another_process_ends(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "build_if_free", lambda *_: done.append("try"))
    monkeypatch.setattr(compiled, "TRIES", 5)
    found = Extension()
    found.get()
    settle()
    assert (found.get(), done) == (None, ["find", *["try"] * 5])


def test_a_process_that_gets_no_thread_goes_on(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    found = Extension()
    found.compile_beside()
    assert [found.get() for _ in range(3)] == [None] * 3
    assert done == ["find"]


@pytest.mark.parametrize(("asked", "expected"), [("python", []), ("c", ["build"])])
def test_the_environment_decides(
    asked: str, expected: list[str], done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, asked)
    found = Extension()
    if asked == "python":
        found.compile_beside()
    for _ in range(3):
        found.get()
    settle()
    assert done == expected


def test_a_forked_child_looks_for_itself(done: list[str]) -> None:
    """It has no thread of its parent's, and what its parent compiles is not its own to stop."""
    found = Extension()
    found._lock.acquire()  # by a thread that is no more
    own = found._stoppable
    found.renew()
    found.get()
    settle()
    assert (found.get(), done) == (MODULE, ["find", "build"])
    assert found._stoppable is not own
    found.renew()
    assert (found.get(), done) == (MODULE, ["find", "build"])


def test_a_signal_that_calls_while_it_is_looked_for_goes_on(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Extension()
    inner: list[object] = []

    def find(_: object) -> Path:
        inner.append(found.get())
        return Path("found")

    monkeypatch.setattr(extension, "find", find)
    assert (found.get(), inner) == (MODULE, [None])


SCRIPT = """
import sys, time
from cellgen.runtime.build import steps
from cellgen.runtime.call import compiled
compiled.GRACE_SECONDS, compiled.END_SECONDS = 0.0, 60.0
compiled.usable_processors = lambda: 64
compiled.EXTENSION.get()
while not steps.at_work():
    time.sleep(0.01)
"""
SLOW = """#!/bin/sh
case "$*" in *cellgen_door.c*) echo $$ > "{note}"; exec sleep 3600;; esac
exec {compiler} "$@"
"""


def test_a_process_that_ends_stops_what_it_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    slow, note = tmp_path / "slow", tmp_path / "note"
    slow.write_text(SLOW.format(note=note, compiler=compiler))
    slow.chmod(0o700)
    place = tmp_path / "cache"
    environment = {**os.environ, "CELLGEN_CC": str(slow), cache.VARIABLE: str(place), VARIABLE: ""}
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=True)
    assert ended.stderr == b""
    assert [*(place / cache.BUILDING).iterdir()] == []
    assert [*(place / cache.FAILED).iterdir()] == []
    if note.exists():  # it has come so far
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)


def test_without_headers_python_makes_all_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = cellgen.load("gru")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(cache, "find", lambda _: None)
    with pytest.raises(BuildError, match=r"no Python.h in .*; install Python's headers"):
        extension.build(SOURCE)
    with pytest.raises(BuildError, match=r"no Python.h"):
        extension.require_promising(SOURCE)
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(extension, "find", lambda _: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(compiled, "EXTENSION", found := Extension())
    call = forward_call(kernel)
    with caplog.at_level(logging.INFO, "cellgen"):
        results = [kernel.forward(**call) for _ in range(3)]
        settle()
        results.append(kernel.forward(**call))
    for result in results[1:]:
        np.testing.assert_array_equal(result[0], results[0][0])
    assert (found.module, kernel.forward._door.make) == (None, None)
    assert caplog.text.count("calls are made by Python: [build] no Python.h") == 1


def test_a_source_that_does_not_compile_is_tried_once_and_said_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By other processes too: they find what came of it."""
    (tmp_path / "wrong.c").write_text(f"#include <Python.h>\n#error {tmp_path}\n")
    monkeypatch.setattr(compiled, "SOURCE", tmp_path / "wrong.c")
    monkeypatch.setattr(compiled, "GRACE_SECONDS", 0.0)
    monkeypatch.setenv(VARIABLE, "")
    with caplog.at_level(logging.INFO, "cellgen"):
        for _ in range(3):
            found = Extension()
            assert found.get() is None
            settle()
            assert found.get() is None
    assert caplog.text.count("compiling wrong.c failed") == 1
    assert caplog.text.count("wrong.c did not compile a short time ago") == 2
    monkeypatch.setattr(cache, "A_DAY", 0.0)
    extension.require_promising(tmp_path / "wrong.c")


def test_who_asks_for_c_has_it_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrong.c").write_text(f"#include <Python.h>\n#error {tmp_path}\n")
    monkeypatch.setattr(compiled, "SOURCE", tmp_path / "wrong.c")
    monkeypatch.setenv(VARIABLE, "c")
    with caplog.at_level(logging.INFO, "cellgen"):
        for _ in range(2):
            found = Extension()
            assert [found.get() for _ in range(3)] == [None, None, None]
    assert caplog.text.count("compiling wrong.c failed") == 2


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "not.so").write_bytes(b"\x7fELF")
    with pytest.raises(BuildError, match="cannot load"):
        extension.load("cellgen_door", tmp_path / "not.so")


def test_doctor_says_who_makes_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor._calls
    assert "_calls()" in inspect.getsource(doctor.examine)
    Extension().require()
    monkeypatch.setenv(VARIABLE, "")
    assert found().text.startswith("C, cellgen_door-")
    monkeypatch.setattr(extension, "find", lambda _: None)
    assert found().text.startswith("C, once a process that calls has compiled it; CELLGEN_CALLS=c")
    monkeypatch.setattr(cache, "failed", lambda _: tmp_path)
    failed = found()
    assert (failed.ok, failed.required) == (False, False)
    assert f"cellgen_door.c did not compile a short time ago ({tmp_path} has" in failed.text
    assert "cellgen cache clear" in failed.fix
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    absent = found()
    assert (absent.ok, absent.required) == (False, False)
    assert f"no Python.h in {tmp_path}" in absent.text
    assert "apt install python3-dev" in absent.fix
    monkeypatch.setenv(VARIABLE, "python")
    assert found().text == "Python, as CELLGEN_CALLS says"
    assert door.described() == found().text


def test_a_kernel_that_is_compiled_lets_it_be_compiled_beside_and_one_in_the_cache_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[str] = []
    monkeypatch.setattr(Extension, "compile_beside", lambda _: beside.append("beside"))
    kernel = cellgen.load("gru")
    other = cellgen.Kernel(kernel.interface, changed(kernel, str(tmp_path)))
    assert other.build().cached is False
    assert beside == ["beside"]
    again = cellgen.Kernel(kernel.interface, changed(kernel, str(tmp_path)))
    assert again.build().cached is True
    assert beside == ["beside"]


def changed(kernel: cellgen.Kernel, comment: str) -> Any:
    """Sources of a kernel with a comment more, which no cache has."""
    sources = kernel.sources()
    files = tuple(
        (name, f"{text}\n/* {comment} */\n" if name == "gru.c" else text)
        for name, text in sources.files
    )
    return type(sources)(sources.name, files)
