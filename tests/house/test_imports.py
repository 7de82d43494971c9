"""Imports that end early: nothing half is left behind."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellgen
from cellgen import cells
from cellgen.cells import SHIPPED, ships
from cellgen.cells.gru_dropout import GRUDropout
from cellgen.runtime.imports import whole_imports
from cellgen.views.find import find_one
from tests.conftest import Attend

PACKAGE = """
import subprocess
import sys
from . import finished
if not getattr(sys, "half_is_whole", False):
    raise KeyboardInterrupt
"""
COMPILED = """
from importlib.machinery import ExtensionFileLoader
__loader__ = ExtensionFileLoader(__name__, __file__)
"""


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose import is interrupted once one of its modules is there."""
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "half" / "finished.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "half"
    for name in [name for name in sys.modules if name.partition(".")[0] == "half"]:
        del sys.modules[name]


def test_a_package_that_was_interrupted_is_imported_whole_again(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt), whole_imports():
        importlib.import_module("half")
    assert [name for name in sys.modules if name.startswith("half")] == []
    monkeypatch.setattr(sys, "half_is_whole", True, raising=False)
    with whole_imports():
        package = importlib.import_module("half")
    assert package.finished is sys.modules["half.finished"]


def test_compiled_modules_which_load_only_once_are_kept(half: Path) -> None:
    (half / "finished.py").write_text(COMPILED)
    with pytest.raises(KeyboardInterrupt), whole_imports():
        importlib.import_module("half")
    assert "half.finished" in sys.modules


def test_what_was_there_before_is_left_alone(half: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("half")
    kept = sys.modules["half.finished"]
    with pytest.raises(ValueError, match="another"), whole_imports():
        raise ValueError("another")
    assert sys.modules["half.finished"] is kept


def test_the_cells_that_ship_are_there_without_an_import_of_their_own() -> None:
    """A cell brings its module alone."""
    program = (
        "import cellgen, sys\n"
        "assert 'sympy' not in sys.modules\n"
        "print(cellgen.cells.GRU.definition.class_name)\n"
        "print('cellgen.cells.shipped' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "GRU\nFalse\n"


def test_every_cell_that_ships_has_a_module_by_its_name() -> None:
    assert {*cells._modules(), "SHIPPED"} == {*cells.__all__}
    for name in cells._modules():
        assert getattr(cells, name) in SHIPPED


WORDS = (("show", "lstm"), ("check", "my_cell.py"), ("check", "elman"), ("build", "my_cell.py"))


@pytest.mark.parametrize(
    "commands", [WORDS[:2], pytest.param(WORDS[2:], marks=pytest.mark.slow)], ids=["each", "slow"]
)
def test_who_asks_for_one_cell_does_not_wait_for_all(
    commands: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    declared = "class MyCell(Cell):\n    x, h_prev, w = Input(H), State(H), Weight(H, H)\n"
    cell = f"from cellgen import *\n{declared}    h = tanh(x @ w + h_prev)\n"
    (tmp_path / "my_cell.py").write_text(cell)
    program = (
        "import sys\n"
        "from cellgen.cli.main import main\n"
        f"for words in {commands!r}:\n"
        "    sys.argv = ['cellgen', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert not end.code, words\n"
        "    print('cellgen.cells.shipped' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stderr.endswith("False\n")
    assert "True" not in done.stderr


def test_cells_are_found_by_the_names_of_their_folders() -> None:
    for cell in SHIPPED:
        assert find_one(cell.definition.name) is cell
        assert ships(cell)
    assert find_one("LSTM") is find_one("lstm") is cellgen.cells.LSTM
    assert {"LSTM", "SHIPPED"} <= {*dir(cellgen.cells)}
    assert not any(map(ships, (Attend, GRUDropout)))


def said_by(code: str) -> str:
    """What a Python that runs some lines writes to stderr."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_a_module_that_is_not_imported_yet_says_how() -> None:
    said = said_by("import cellgen; cellgen.torch")
    assert "no attribute 'torch' before it is imported: import cellgen.torch" in said
    assert "Did you mean: 'sigmoid'?" in said_by("import cellgen; cellgen.sigmiod")


@pytest.mark.parametrize("module", ["torch", "jax", "onnx", "keras"])
def test_a_package_that_is_missing_is_one_message(module: str) -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            raise ModuleNotFoundError('no such module', name={module!r})\n"
        "sys.meta_path.insert(0, Missing())\n"
        f"import cellgen.{module}\n"
    )
    said = said_by(code)
    assert f"ImportError: cellgen.{module} needs " in said
    assert f"pip install 'cellgen-compiler[{module}" in said
