"""Flags of the time drivers that tests compile beside the plain one: few, since each takes long.

A test that needs another macro adds it to one of these where it changes nothing for the others.
"""

from __future__ import annotations

import ctypes
import shlex
import shutil
from pathlib import Path

from cellgen.runtime.build.library import load
from cellgen.runtime.kernel import Kernel
from tests.within import set_library

EMULATED = "-DCELLGEN_AMX_EMULATED"
OBSERVED_HEADER = Path(__file__).parent / "observed.h"
OBSERVED = f"-O1 {EMULATED} -include {shlex.quote(str(OBSERVED_HEADER))}"
"""Products in bfloat16 on emulated AMX; what is fetched is noted instead, in any precision; sizes
of parts are variables, of the values that they have for users."""
SMALL = {"stored_bytes": 4096, "deep_bytes": 0, "slice": 3}
"""Windows of a few steps of arrays in 16 bits; every panel is deep, gone through by threes."""


def with_its_own_driver(kernel: Kernel, folder: Path) -> Kernel:
    """Load a kernel from a copy of its object, whose driver has chosen nothing yet."""
    folder.mkdir(exist_ok=True)
    copy = Path(shutil.copy(kernel.build().path, folder))
    set_library(kernel, load(copy, kernel.interface))
    return kernel


def in_small_parts(kernel: Kernel, folder: Path) -> Kernel:
    """Load a kernel whose driver is ``OBSERVED`` from a copy of its object, in which parts are
    ``SMALL``."""
    kernel = with_its_own_driver(kernel, folder)
    copy = ctypes.CDLL(str(folder / kernel.build().path.name))
    for name, size in SMALL.items():
        ctypes.c_int64.in_dll(copy, f"cellgen_{name}").value = size
    return kernel
