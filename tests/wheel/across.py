"""Every function of prebuilt kernels at two levels of x86-64, beside each other.

``python -m tests.wheel.across PACKAGE [CELL...]`` says which cells of a package on the path do not
have the bits of v3 at v4, and ends with 1 where these are not the cells that are known to differ:
sums over units run in the lanes of vectors, which are more there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np

import cellgen
from cellgen.runtime.abi import Interface
from tests.wheel.bits import compared

LEVELS = ("v3", "v4")
ALL = frozenset({"layer_norm_gru", "layer_norm_lstm", "on_lstm"})
"""Cells that ship most of whose results differ between these levels."""
SOME = frozenset({"augru", "cfc", "fast_grnn", "ltc"})
"""Those of which one gradient or two do."""


class AtLevel(NamedTuple):
    """A prebuilt kernel, as ``compared`` takes a kernel that is compiled here."""

    interface: Interface
    functions: dict[str, object]

    def __getattr__(self, name: str) -> object:
        return self.functions[name]


def at_level(package: str, level: str) -> ModuleType:
    """A package, imported anew at a level."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    os.environ["CELLGEN_LEVEL"] = level
    try:
        module = importlib.import_module(package)
    finally:
        del os.environ["CELLGEN_LEVEL"]
    assert module.level == level, module.level
    return module


def cells_of(module: ModuleType) -> list[str]:
    """The names of a package's cells."""
    return [n for n in module.__all__ if isinstance(getattr(module, n), module.PrebuiltKernel)]


def differing(package: str, cell: str) -> Iterator[str]:
    """Results of a cell that are not the same to the bit at both levels."""
    low, high = (getattr(at_level(package, level), cell) for level in LEVELS)
    interface = cellgen.load(cell).interface
    functions = {f.name: getattr(low, f.name) for f in interface.functions}
    for dtype in (np.float32, np.float64):
        for result, is_same in compared(AtLevel(interface, functions), high, dtype):
            if not is_same:
                yield f"{result} {dtype.__name__}"


def main(package: str, *cells: str) -> int:
    wrong = 0
    for cell in cells or cells_of(at_level(package, LEVELS[0])):
        results = list(differing(package, cell))
        print(f"{cell}: {', '.join(results) or 'equal'}", flush=True)
        arrays = {result.split()[0].partition(".")[2] for result in results}
        known = len(arrays) > 2 if cell in ALL else 0 < len(arrays) <= 2
        wrong += not known if cell in ALL | SOME else bool(arrays)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
