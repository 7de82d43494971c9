"""Find cuBLAS, which is opened at run time: compiling a cell needs neither its headers nor itself.

Output: names and paths to open, the likely ones first. A library that the process has loaded (that
of PyTorch) or that the system knows is found by its bare name, one of a wheel by its path.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path

NAMES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")
WHEEL_PLACES = ("cu13/lib", "cublas/lib")
"""Where wheels put it, below the folder ``nvidia`` of site-packages: CUDA 13, CUDA 12."""
ITS_OWN = "libcublasLt.so*"
"""What it needs beside itself, where no search path leads."""
FALLBACK = "the products of the runtime header run instead, which are right and slow"
FIX = "pip install 'cellgen-compiler[cublas]'"


def wheel_folders(places: tuple[str, ...] = WHEEL_PLACES) -> Iterator[Path]:
    """Folders of installed wheels of CUDA's, one of which may hold a library or program."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for place in places:
            if (Path(folder) / place).is_dir():
                yield Path(folder) / place


def candidates() -> Iterator[str]:
    """What to open, in order; of wheels, what they need is loaded before they are named."""
    yield from NAMES
    for folder in wheel_folders():
        for name in NAMES:
            if (folder / name).is_file():
                for needed in sorted(folder.glob(ITS_OWN)):
                    _load(str(needed))
                yield str(folder / name)


def find() -> str:
    """The first candidate that can be loaded into this process, or nothing."""
    return next((name for name in candidates() if _load(name)), "")


def _load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
