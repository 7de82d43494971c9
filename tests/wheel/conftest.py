"""A wheel of two cells, unpacked and imported."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.wheel.packages import imported, made

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
    return of_levels(tmp_path_factory.mktemp("wheel"), "v2,v3")


def of_levels(folder: Path, levels: str) -> Path:
    """A wheel of two cells, one of them of one's own."""
    (folder / "own.py").write_text(OWN)
    cells = ("elman", str(folder / "own.py"))
    return made(folder, PACKAGE, *cells, "--machine", "x86_64", "--levels", levels)


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    """The folder that a wheel installs its package into."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.fixture
def package(wheel: Path, tmp_path: Path) -> ModuleType:
    """The package, imported."""
    return imported(wheel, tmp_path)
