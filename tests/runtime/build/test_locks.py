"""Processes that want the same kernel: one compiles, the others wait, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellgen.errors import BuildError
from cellgen.runtime.build import cache, locks

ROOT = Path(__file__).parents[3]
TOY = Path(__file__).parents[2] / "toy" / "toy_cell"
Start = Callable[..., subprocess.Popen[str]]

BUILD = """
    import sys
    from pathlib import Path
    from cellgen.runtime.kernel import load_folder
    print(load_folder(Path(sys.argv[1])).build().cached)
"""
HOLD = """
    import os, signal, sys, time
    from pathlib import Path
    from cellgen.runtime.build import locks
    with locks.hold(Path(sys.argv[1]), "holding"):
        print("held", flush=True)
        time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(path))
    monkeypatch.delenv("CELLGEN_CFLAGS", raising=False)
    return path


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the compilations of a cell's C; the compiler waits while a file ``wait`` is there."""
    real, path, log = shutil.which("cc"), tmp_path / "counting-cc", tmp_path / "count"
    path.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c toy_cell.c "*) echo $$ >> {log}\n'
        f'while [ -e {tmp_path}/wait ]; do sleep 0.05; done;; esac\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CELLGEN_CC", str(path))
    return lambda: len(log.read_text().split()) if log.exists() else 0


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python scripts in processes that do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def outcome(process: subprocess.Popen[str]) -> tuple[str, str]:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output.strip(), errors


# --- one kernel, many processes ---------------------------------------------------------------


def test_of_many_processes_that_want_one_kernel_one_compiles(
    start: Start, compiled: Callable[[], int], folder: Path
) -> None:
    outcomes = [outcome(p)[0] for p in [start(BUILD, TOY) for _ in range(8)]]
    assert sorted(outcomes) == ["False", *["True"] * 7]
    assert compiled() == 1
    assert cache.info().entries == 1
    assert list((folder / "building").iterdir()) == []


def test_when_the_one_that_compiles_is_killed_another_does_it_at_once(
    start: Start, compiled: Callable[[], int], tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "wait").touch()
    first = start(BUILD, TOY)
    wait_for(lambda: compiled() == 1)
    second = start(BUILD, TOY)
    time.sleep(1.0)
    assert compiled() == 1
    first.kill()
    wait_for(lambda: compiled() == 2)
    (tmp_path / "wait").unlink()
    assert outcome(second)[0] == "False"
    assert list((folder / "building").iterdir()) == []


def test_a_stopped_compilation_is_waited_for_with_a_word_and_not_for_ever(
    start: Start, compiled: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wait").touch()
    first = start(BUILD, TOY)
    wait_for(lambda: compiled() == 1)
    first.send_signal(signal.SIGSTOP)
    (tmp_path / "wait").unlink()
    monkeypatch.setenv("CELLGEN_LOCK_TIMEOUT", "2")
    output, errors = outcome(start(BUILD, TOY))
    assert output == "False"
    said, went_on = errors.splitlines()
    assert f"waiting for process {first.pid} on {locks.node()} (building toy_cell-" in said
    assert "for at most 2 s (CELLGEN_LOCK_TIMEOUT)" in said
    assert went_on.endswith("going on without the lock")
    first.send_signal(signal.SIGCONT)
    assert outcome(first)[0] == "False"
    assert cache.info().entries == 1


def test_a_stopped_process_that_publishes_stops_no_build(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.prepare()
    holder = start(HOLD, folder / "lock")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    monkeypatch.setenv("CELLGEN_LOCK_TIMEOUT", "1.5")
    output, errors = outcome(start(BUILD, TOY))
    assert output == "False"
    assert f"changing the kernel cache: waiting for process {holder.pid}" in errors
    assert outcome(start(BUILD, TOY))[0] == "True"


# --- the lock itself --------------------------------------------------------------------------


def test_a_short_wait_is_not_worth_a_word(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lock"
    holder = start(HOLD, path)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert locks.is_held(path)
    threading.Timer(0.3, holder.kill).start()
    with locks.hold(path, "a test") as is_held:
        assert is_held
    assert caplog.records == []
    assert not locks.is_held(path)


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "lock"
    text = HOLD.replace('print("held"', "child = os.fork()\n        child and print(child")
    parent = start(text, path)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert locks.is_held(path)
    parent.kill()  # the child sleeps on
    try:
        wait_for(lambda: not locks.is_held(path), 5.0)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with locks.hold(tmp_path / "lock", "a test"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_lock_file_that_is_removed_meanwhile_locks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.hold(path, "a test"):
        path.unlink()
        handle = locks.take(path, create=True)
        assert handle is not None
        locks.remove(path)
        assert path.exists()
        os.close(handle)
        locks._held.discard(handle)
    locks.remove(path)
    assert not path.exists()


def test_waiting_threads_end_when_the_work_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    said: list[str] = []

    def work() -> None:
        with pytest.raises(BuildError) as caught, locks.hold(path, "building x"):
            raise AssertionError("got the lock")
        said.append(str(caught.value))

    with locks.hold(path, "a test"):
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2)
        locks.give_up()
        thread.join(5.0)
        assert not thread.is_alive()
    assert "building x: ended while waiting for the lock" in said[0]


def test_a_file_system_without_locks_makes_nobody_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.system, "lock", refuse)
    with locks.hold(tmp_path / "lock", "a test") as is_held:
        assert not is_held
    with cache.workplace() as place:
        assert place.exists()


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_a_time_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("CELLGEN_LOCK_TIMEOUT", text)
    with (
        pytest.raises(BuildError, match=f"CELLGEN_LOCK_TIMEOUT is '{text}', expected a number"),
        locks.hold(tmp_path / "lock", "a test"),
    ):
        pass


def test_publishing_without_the_lock_is_right_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over and over an entry that is damaged, as a process without the lock would meet it."""

    @contextlib.contextmanager
    def unlocked(path: Path, purpose: str) -> Iterator[bool]:
        yield False

    monkeypatch.setattr(locks, "hold", unlocked)

    def publish(found: list[Path]) -> None:
        with cache.workplace() as place:
            (place / "object.so").write_text("machine code")
            barrier.wait()
            found.append(cache.publish(place, "cell-1", "object.so"))

    for _ in range(20):
        found: list[Path] = []
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=publish, args=(found,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [cache.find("cell-1")] * 4
        os.truncate(found[0], 3)
