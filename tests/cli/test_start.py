"""``cellgen new``: the files pass as written, and a wrong name is answered in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cellgen.cli.commands import app
from cellgen.cli.status import FAILED, USAGE
from cellgen.views.find import load_file

ROOT = Path(__file__).parents[2]


def new(*arguments: str):
    return CliRunner().invoke(app, ["new", *arguments])


def test_the_files_pass_as_written(tmp_path: Path) -> None:
    done = new("LeakyGate", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    listed = done.stdout.split()
    assert listed == [str(tmp_path / "leaky_gate.py"), str(tmp_path / "test_leaky_gate.py")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_what_is_written_is_well_formed(tmp_path: Path) -> None:
    new("my_cell", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,B,W", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "class_name", "cell"),
    [
        ("my_cell", "MyCell", "my_cell"),
        ("MyGRU", "MyGRU", "my_gru"),
        ("gru2d", "Gru2d", "gru2d"),
        ("w1_x2y", "W1X2y", "w1_x2y"),
    ],
)
def test_class_and_file_are_named_after_each_other(tmp_path, name, class_name, cell):
    assert new(name, "--out", str(tmp_path / "deep" / "er")).exit_code == 0
    (found,) = load_file(tmp_path / "deep" / "er" / f"{cell}.py")
    assert (found.__name__, found.definition.name) == (class_name, cell)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gru", "gru is the name of a cell that ships"),
        ("2cell", "is no valid name"),
        ("my-cell", "is no valid name"),
        ("../cell", "is no valid name"),
        ("for", "reserved by C"),
        ("d_cell", "starts with d_"),
        ("numpy", "would hide the module numpy"),
        ("json", "would hide the module json"),
        ("Weight", "would name the class Weight"),
    ],
)
def test_a_name_that_will_not_do_is_refused(tmp_path, name, message):
    done = new(name, "--out", str(tmp_path))
    assert done.exit_code == USAGE
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_my_cell.py").write_text("mine")
    done = new("my_cell", "--out", str(tmp_path))
    assert done.exit_code == USAGE
    assert "test_my_cell.py exists already, and nothing was written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_my_cell.py"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = new("my_cell", "--out", str(tmp_path / "file"))
    assert done.exit_code == FAILED
    assert "cannot be written" in done.stderr


def test_where_pytest_is_missing_the_next_step_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert "(first: pip install pytest)" in new("MyCell", "--out", str(tmp_path)).stderr
