"""Say which compilers there are, and what the runtime headers choose under one.

Input: PATH, and a ``CompilerInfo``. Output: text for people; nothing is compiled.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.build.compiler import CompilerInfo

KNOWN = (("gcc",), ("clang",), ("zig", "cc"))
"""Commands of the compilers that the tests run under."""
WHEEL = (sys.executable, "-m", "ziglang", "cc")
SECONDS = 60.0

QUESTION = """#include "cellgen_gemm.h"
cellgen CELLGEN_VECTORS / CELLGEN_VECTOR_BYTES / CELLGEN_VECTOR_REGISTERS
cellgen CELLGEN_PANEL_ROWS / CELLGEN_PANEL_VECTORS
"""


def micro_kernel(info: CompilerInfo, include: Path) -> str:
    """Name the micro-kernel that ``cellgen_gemm.h`` chooses under a compiler and its flags.

    The tile that is named is that of whole products. Raises BuildError.
    """
    said = _ask([*info.command, *info.flags, f"-I{include}", "-E", "-xc", "-"], QUESTION)
    lines = re.findall(r"^cellgen (.+)$", said, re.MULTILINE)
    words = [word.strip(' "') for line in lines for word in line.split(" / ")]
    if len(words) != 5:
        raise BuildError(
            f"{info} does not read {include / 'cellgen_gemm.h'}; install "
            f"cellgen-compiler anew, or name another compiler: CELLGEN_CC=/path/to/cc"
        )
    name, width, registers, rows, vectors = words
    return (
        f"{name}: {int(width) // 4} float or {int(width) // 8} double a vector, "
        f"{registers} registers, tiles of {rows} rows by {vectors} vectors"
    )


def compilers() -> Iterator[str]:
    """Version and path of each known compiler that is installed."""
    for command in KNOWN:
        path = shutil.which(command[0])
        if path is not None:
            yield _described([*command, "--version"], path)
        elif command[0] == "zig" and importlib.util.find_spec("ziglang") is not None:
            yield _described([*WHEEL, "--version"], "the wheel ziglang")


def _described(command: Sequence[str], place: str) -> str:
    first = next(iter(_ask(command, "").splitlines()), "does not say its version")
    return f"{first.strip()}, {place}"


def _ask(command: Sequence[str], text: str) -> str:
    """Run a command on a text; "" where it fails."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
