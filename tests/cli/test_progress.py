"""Progress: a bar from two seconds on where somebody looks on, one at a time, nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cellgen.runtime import progress as module
from cellgen.runtime.host import interrupt
from cellgen.runtime.progress import progress, turn_off, without_bars

ROOT = Path(__file__).parents[2]

SLOW_CALL = """
import time
from cellgen.runtime import progress as module
module.DELAY_SECONDS = 0.05
with module.progress("forming [bold]gru[/]", 4) as bar:
    time.sleep(0.3)
    bar.step()
    bar.say("linking gru")
    with module.progress("a call within"):
        time.sleep(0.3)
with module.progress("a short call"):
    pass
print("over")
"""


def on_a_terminal(code: str, **environment: str) -> str:
    """Run Python on a terminal of its own and return all that it wrote there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment},
    ) as process:
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
        os.close(ours)
        assert process.wait() == 0, b"".join(pieces).decode()
    return b"".join(pieces).decode()


def test_a_long_call_draws_on_a_terminal_and_leaves_nothing() -> None:
    written = on_a_terminal(SLOW_CALL)
    assert "forming [bold]gru[/]" in written
    assert "linking gru" in written
    assert "a call within" not in written
    assert "a short call" not in written
    assert written.endswith("\x1b[2Kover\r\n")  # the line of the bar is erased


MEASUREMENT = """
import threading, time
from cellgen.runtime import progress as module
from cellgen.runtime.host import tuning
from cellgen.runtime.host.plans import Constants, SequencePlan
module.DELAY_SECONDS = 0.1
by = Constants()
plan = SequencePlan(1, False, False, False, 1, 1, 1, 1, by)
threads = set()
def run(_):
    threads.add(threading.active_count())
    time.sleep(0.05)
    with module.progress("within"):
        pass
tuning.measured([("what", "a test of bars")], [plan], run, "gru.sequence_forward")
assert threads == {1}, threads
print("over")
"""


def test_a_measurement_draws_between_its_rounds_and_no_thread_runs_beside_it(
    tmp_path: Path,
) -> None:
    written = on_a_terminal(MEASUREMENT, CELLGEN_CACHE_DIR=str(tmp_path))
    assert "measuring plans of gru.sequence_forward" in written
    assert written.endswith("\x1b[2Kover\r\n")


def test_a_variable_turns_bars_off() -> None:
    assert on_a_terminal(SLOW_CALL, CELLGEN_PROGRESS="0") == "over\r\n"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be drawn, as soon as it would be; nothing is."""
    found: list[str] = []
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(module, "_is_watched", lambda: not module._off)
    monkeypatch.setattr(module.CallProgress, "show", lambda self: found.append(self._what))
    return found


def test_a_long_call_of_a_kernel_is_shown_once_it_is_long(
    shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "DELAY_SECONDS", 0.2)
    threads: list[int] = []

    def call() -> int:
        time.sleep(0.1)
        threads.append(threading.active_count())
        waited_for(shown, 1)
        return 7

    before = threading.active_count()
    assert interrupt.heeding_signals(call, [0], "gru.sequence_forward") == 7
    assert shown == ["gru.sequence_forward"]
    assert threads[0] <= before + 1  # its own


def waited_for(found: list[str], count: int) -> list[str]:
    until = time.monotonic() + 5
    while len(found) < count and time.monotonic() < until:
        time.sleep(0.005)
    return found


def test_one_call_draws_at_a_time(shown: list[str]) -> None:
    with progress("outer"), progress("inner"):
        assert waited_for(shown, 1) == ["outer"]
    with without_bars(), progress("hidden"):
        time.sleep(0.02)
    with progress("next"):
        assert waited_for(shown, 2) == ["outer", "next"]


def test_nothing_is_drawn_and_no_thread_starts_where_nobody_looks_on() -> None:
    before = threading.active_count()
    with progress("unseen"):
        assert threading.active_count() == before


def test_a_worker_leaves_drawing_to_the_first_process(
    shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_off", False)
    turn_off()
    with progress("in a worker"):
        time.sleep(0.02)
    assert shown == []


def test_a_notebook_without_widgets_gets_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_in_notebook", lambda: True)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    bar = module.CallProgress("compiling gru")
    bar.show()
    bar.close()
    bar.show()  # the call is over
    assert capsys.readouterr().err == "cellgen: compiling gru ...\n"
