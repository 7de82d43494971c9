"""A wheel of two cells, unpacked and imported."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from cellgen.cli.commands import app

PACKAGE = "prebuilt_for_tests"
OWN = '''"""A cell of one's own."""
from cellgen import Cell, H, I, Input, Scalar, State, Weight, concat, tanh


class Gated(Cell):
    x, h_prev = Input(I), State(H)
    w = Weight(I + H, H)
    leak = Scalar(0.25)
    h = (1 - leak) * h_prev + leak * tanh(concat(x, h_prev) @ w)
'''


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of two cells at two levels."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "own.py").write_text(OWN)
    words = ["elman", str(folder / "own.py"), "--name", PACKAGE, "--out", str(folder)]
    done = CliRunner().invoke(app, ["wheel", *words, "--machine", "x86_64", "--levels", "v2,v3"])
    assert done.exit_code == 0, done.output
    (path,) = folder.glob("*.whl")
    assert str(path) in done.output
    return path


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    """The folder that a wheel installs its package into."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.fixture
def package(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package, imported."""
    monkeypatch.syspath_prepend(str(unpacked))
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(PACKAGE)
