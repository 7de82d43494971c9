"""One table says which ways of running a function over time exclude each other."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from cellgen.runtime.paths import include_folder

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

ASKED = """
#define CELLGEN_PRECISION 32
#include "cellgen_real.h"
#include "cellgen_gemm.h"
#include "cellgen_gemm_bf16.h"
#include "cellgen_over_time.inc.h"
#include "cellgen_modes.inc.h"
unsigned exclude(unsigned asked) { return cg_exclude(asked); }
"""

EXCLUDED = {
    "IS_DOUBLE": ("ASKS_BF16", "ASKS_INT8", "ASKS_RESIDENT"),
    "IS_BACKWARD": ("ASKS_INT8",),
    "HAS_PACKED": ("ASKS_IN_PLACE",),
    "ASKS_INT8": ("ASKS_IN_PLACE",),
    "HAS_LAST": ("ASKS_EVERY",),
    "ASKS_RESIDENT": ("ASKS_EVERY", "ASKS_BANDS"),
    "IS_GUARDED": ("ASKS_BANDS",),
    "IS_TRUNCATED": ("ASKS_BANDS",),
    "IS_PER_ROW": ("ASKS_BANDS",),
}
"""What gives way, by what it gives way to."""


@pytest.fixture(scope="module")
def exclude(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    folder = tmp_path_factory.mktemp("modes")
    (folder / "modes.c").write_text(ASKED)
    cc = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O1", "-fPIC", "-shared", f"-I{include_folder()}"]
    subprocess.run([*cc, *flags, "modes.c", "-o", "modes.so"], check=True, cwd=folder)
    function = ctypes.CDLL(str(folder / "modes.so")).exclude
    function.argtypes, function.restype = [ctypes.c_uint], ctypes.c_uint
    return lambda asked: int(function(asked))


@pytest.fixture(scope="module")
def bits() -> dict[str, int]:
    text = Path(include_folder() / "cellgen_modes.inc.h").read_text()
    return {name: int(bit) for name, bit in re.findall(r"CG_(\w+) = (\d+)", text)}


def test_a_pair_is_run_unless_the_table_says_which_of_it_gives_way(
    exclude: Callable[[int], int], bits: dict[str, int]
) -> None:
    for one, other in permutations(bits, 2):
        gives_way = other in EXCLUDED.get(one, ())
        if one in EXCLUDED.get(other, ()):
            continue
        kept = bits[one] if gives_way else bits[one] | bits[other]
        assert exclude(bits[one] | bits[other]) == kept, (one, other)


def test_nothing_is_run_with_what_it_excludes(
    exclude: Callable[[int], int], bits: dict[str, int]
) -> None:
    pairs = [(bits[one], bits[other]) for one in EXCLUDED for other in EXCLUDED[one]]
    for asked in range(2 * max(bits.values())):
        granted = exclude(asked)
        assert granted & ~asked == 0
        assert not any(granted & one and granted & other for one, other in pairs), asked
        assert exclude(granted) == granted
