"""The command that asks a GPU everything: its parts, what it writes, what it says without one."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.targets.test_cuda import with_cxx

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("device_day")


def records(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_parts_are_short_and_call_scripts_that_take_their_arguments(day: ModuleType) -> None:
    names = [part.name for part in day.PARTS]
    assert len(names) == len(set(names))
    assert "stay" in names[0], "what no device has run comes first"
    for part in day.PARTS:
        assert 0 < part.seconds <= day.LONGEST == 240
        for arguments in (part.command, part.emulated or part.command):
            source = (BENCHMARKS / arguments[0]).read_text(encoding="utf-8")
            for flag in (a for a in arguments[1:] if a.startswith("--")):
                assert f'"{flag}"' in source, (part.name, flag)


def test_the_checks_have_every_cell_once(day: ModuleType) -> None:
    checks = [part.command for part in day.PARTS if part.name.startswith("check ")]
    checked = [name for command in checks for name in command[-1].split(",")]
    assert sorted(checked) == sorted(day.shipped_names())


def test_a_part_that_takes_too_long_is_ended_and_what_it_wrote_is_there(
    day: ModuleType, tmp_path: Path
) -> None:
    """Also what it started is ended: it would hold the device."""
    child = "import time; time.sleep(600)"
    script = (
        f"import subprocess, sys; print('first'); "
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}]); print(c.pid); c.wait()"
    )
    lines: list[str] = []
    status = day.run_part([sys.executable, "-c", script], 10, lines.append)
    assert status is None
    assert lines[0] == "first"
    end = time.monotonic() + 60  # a process that is killed ends a moment later
    while _runs(lines[1]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(lines[1])
    assert day.run_part([sys.executable, "-c", "import sys; sys.exit(3)"], 60, lines.append) == 3


def _runs(process: str) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def test_a_part_that_may_need_more_than_is_left_is_not_begun(
    day: ModuleType, tmp_path: Path
) -> None:
    own = day.Day(tmp_path / "day.jsonl", 100)
    own.run(day.PARTS[0], day.PARTS[0].command)
    (record,) = records(tmp_path / "day.jsonl")
    assert re.fullmatch(r"(99|100) s are left, it may need 240", str(record["not_run"]))
    assert own.failed == []


def test_a_part_that_fails_fails_the_day(day: ModuleType, tmp_path: Path) -> None:
    own = day.Day(tmp_path / "day.jsonl", 1000)
    own.run(day.PARTS[0], ("no_such_script.py",))
    assert own.failed == ["stay: right"]
    assert records(tmp_path / "day.jsonl")[-1]["status"] == 2


@with_cxx
def test_without_a_device_the_emulated_part_runs_and_the_rest_is_said(
    day: ModuleType, tmp_path: Path
) -> None:
    if day.is_device():
        pytest.skip("there is a device")
    file = tmp_path / "day.jsonl"
    command = [sys.executable, str(BENCHMARKS / "device_day.py"), "--save", str(file)]
    command += ["--only", "stay: right,stay: fast,sanitize"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(file)
    proofs = [json.loads(str(r["line"])) for r in found if "line" in r]
    assert len(proofs) == 6  # three element types, over the device and in clusters
    assert all(proof["ok"] for proof in proofs)
    unrun = {r["part"]: r["not_run"] for r in found if "not_run" in r}
    assert unrun == dict.fromkeys(("stay: fast", "sanitize"), "there is no device")


def test_emulated_parts_are_not_held_to_the_architecture_of_a_device(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the emulation passes for is older than code for clusters, and would be refused."""
    if day.is_device():
        pytest.skip("there is a device")
    script = tmp_path / "part.py"
    script.write_text("import os; print(os.environ.get('CELLGEN_CUDA_ARCH', 'none'))")
    file = tmp_path / "day.jsonl"
    monkeypatch.setattr(sys, "argv", ["device_day", "--save", str(file)])
    monkeypatch.setenv("CELLGEN_CUDA_ARCH", "sm_90")
    assert day.main([day.Part("one", "what it is held to", (), (str(script),))]) == 0
    assert [r["line"] for r in records(file) if "line" in r] == ["none"]


@with_cxx
def test_streams_are_tried_in_the_emulation() -> None:
    command = [sys.executable, str(BENCHMARKS / "device_streams.py"), "--emulated"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["calls"] for t in trials] == [4, 8, 4, 6]
    assert all(t["ok"] and "refused" not in t for t in trials)


def test_a_part_that_is_not_there_is_said(day: ModuleType) -> None:
    command = [sys.executable, str(BENCHMARKS / "device_day.py"), "--only", "stay"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--only 'stay': expected one of stay: right" in done.stderr
