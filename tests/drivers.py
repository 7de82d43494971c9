"""Flags of the time drivers that tests compile beside the plain one: few, since each takes long.

A test that needs another macro adds it to one of these where it changes nothing for the others.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from cellgen.runtime.build.library import load
from cellgen.runtime.kernel import Kernel

EMULATED = "-DCELLGEN_AMX_EMULATED"
COUNTED = Path(__file__).parent / "runtime" / "call" / "counted.h"
OBSERVED = f"-O1 {EMULATED} -include {shlex.quote(str(COUNTED))}"
"""Products in bfloat16 on emulated AMX; what is fetched is noted instead, in any precision."""
IN_SMALL_PARTS = (
    f"-O1 {EMULATED} -DCELLGEN_STORED_BYTES=4096 -DCELLGEN_DEEP_BYTES=0 -DCELLGEN_SLICE=3"
)
"""Windows of a few steps of arrays in 16 bits; every panel is deep, gone through by threes."""


def with_its_own_driver(kernel: Kernel, folder: Path) -> Kernel:
    """Load a kernel from a copy of its object, whose driver has chosen nothing yet."""
    folder.mkdir(exist_ok=True)
    copy = Path(shutil.copy(kernel.build().path, folder))
    kernel._library = load(copy, kernel.interface)
    return kernel
