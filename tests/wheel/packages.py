"""Wheels of ``cellgen wheel``: made, unpacked and imported."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType

from typer.testing import CliRunner

from cellgen.cli.commands import app


def made(folder: Path, name: str, *words: str) -> Path:
    """Make a wheel in a folder, of a package of this name."""
    done = CliRunner().invoke(app, ["wheel", *words, "--name", name, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    (path,) = folder.glob("*.whl")
    assert str(path) in done.output
    return path


def imported(wheel: Path, folder: Path) -> ModuleType:
    """Unpack a wheel into a folder, and import its package anew."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    package = wheel.name.partition("-")[0]
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(package)
    finally:
        sys.path.remove(str(folder))
