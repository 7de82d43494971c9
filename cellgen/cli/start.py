"""Start a cell: write a declaration that works, and the test that proves it.

Input: a name, ``MyCell`` or ``my_cell``. Output: ``my_cell.py`` and ``test_my_cell.py``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from cellgen.cells import SHIPPED
from cellgen.errors import BuildError, DeclarationError, UsageError
from cellgen.language.names import check_cell_name, snake_case
from cellgen.runtime.names import reserved_by
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class Starter:
    """Of ``new/cell.py.j2``."""

    class_name: str
    given_name: str
    name: str
    file: str


@dataclass(frozen=True)
class StarterTest:
    """Of ``new/test_cell.py.j2``."""

    class_name: str
    name: str


def start(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a starter cell and its test into a folder; return their paths.

    Raises:
        UsageError: a name that is no name, that is taken, or files that exist already.
        BuildError: the folder cannot be written.
    """
    small = snake_case(name)
    class_name = name if name != small else "".join(word.capitalize() for word in name.split("_"))
    _check(name, class_name, small, folder)
    given_name = "" if snake_case(class_name) == small else f', name="{small}"'
    texts = {
        folder / f"{small}.py": fill(
            "new/cell.py.j2", Starter(class_name, given_name, small, f"{small}.py")
        ),
        folder / f"test_{small}.py": fill("new/test_cell.py.j2", StarterTest(class_name, small)),
    }
    for path in texts:
        if path.exists():
            raise UsageError(
                f"{path} exists already, and nothing was written; choose another name, or another "
                f"folder: --out DIR"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror}") from None
    cell, test = texts
    return cell, test


def _check(name: str, class_name: str, small: str, folder: Path) -> None:
    try:
        check_cell_name(small)
    except DeclarationError as error:
        raise UsageError(Exception.__str__(error)) from None
    if reserved_by(class_name) is not None or class_name in ("Cell", "Bias", "State", "Weight"):
        raise UsageError(f"{name!r} would name the class {class_name}, which is taken; add a word")
    if small in {cell.definition.name for cell in SHIPPED}:
        raise UsageError(
            f"{small} is the name of a cell that ships (`cellgen show {small}`); choose another, "
            f"for example my_{small}"
        )
    if small in sys.stdlib_module_names or _is_module(small, folder):
        raise UsageError(
            f"{small}.py would hide the module {small} that Python has already; choose another "
            f"name, for example {small}_cell"
        )


def _is_module(name: str, folder: Path) -> bool:
    """Tell whether Python finds a module of this name elsewhere than in the author's folder."""
    elsewhere = [path for path in sys.path if Path(path).resolve() != folder.resolve()]
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is not None and spec.origin is not None
