"""The cells that ship: declarations and nothing else.

A cell that is asked for is imported alone, with those of its module; all are for ``SHIPPED``.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cellgen.runtime.folders import origin_of
from cellgen.runtime.imports import whole_imports

if TYPE_CHECKING:
    from cellgen.cells.shipped import *
    from cellgen.cells.shipped import SHIPPED as SHIPPED
    from cellgen.language.cell import Cell


def ships(cell: type[Cell]) -> bool:
    """Tell whether a cell ships; the others are not imported for it where sources are generated."""
    if not cell.__module__.startswith(f"{__name__}."):
        return False
    return origin_of(cell.definition.name) == cell.definition.origin or cell in _shipped().SHIPPED


if not TYPE_CHECKING:  # a checker reads the names, and finds one that is misspelt

    def __getattr__(name: str) -> object:
        if module := _modules().get(name):
            with whole_imports():
                return getattr(importlib.import_module(module), name)
        if name == "__all__" or (not name.startswith("__") and name in _shipped().__all__):
            return getattr(_shipped(), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_shipped().__all__})


@cache
def _modules() -> dict[str, str]:
    """The module of each cell that ships: what ``shipped`` imports, read and not run."""
    place = Path(__file__).with_name("shipped.py")
    text = place.read_text(encoding="utf-8") if place.exists() else ""
    line = r"^from (cellgen\.cells\.\w+) import (\w+(?:, \w+)*|\([^)]*\))"
    imports = re.findall(line, text, re.M)
    return {name: module for module, names in imports for name in re.findall(r"\w+", names)}


@cache
def _shipped() -> ModuleType:
    with whole_imports():
        return importlib.import_module("cellgen.cells.shipped")
