"""Say in which way products of operands in bfloat16 are computed here, and why.

Input: a ``CompilerInfo`` and the folder of the runtime headers. Output: ``HalfProducts``. A program
of a few lines asks ``cellgen_bf16_way.h``, as the time driver does at a process's first such call.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.build.compiler import CompilerInfo
from cellgen.runtime.system import program_suffix

VARIABLE = "CELLGEN_BF16"
"""Leaves out what a machine has: names one of ``WAYS``."""
WAYS = {
    "amx": "tiles of AMX-BF16",
    "avx512": "vdpbf16ps of AVX512-BF16",
    "float32": "rounded operands in the tiles of float32",
}
"""In the order of the numbers in C, from 1 on."""
SECONDS = 60.0

QUESTION = """#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE
#endif
#include "cellgen_bf16_way.h"
#include <stdio.h>
int main(void)
{
    const char *why;
    const int way = cellgen_choose_bf16(&why);
    return printf("%d %s", way, why) < 0;
}
"""


@dataclass(frozen=True)
class HalfProducts:
    """A way to compute products in bfloat16, one of ``WAYS``, and why it is the machine's."""

    way: str
    why: str

    def __str__(self) -> str:
        return f"{WAYS[self.way]}: {self.why}"


def require_known() -> None:
    """Refuse a name that is none of the ways. Raises BuildError."""
    named = os.environ.get(VARIABLE, "")
    if named and named not in WAYS:
        raise BuildError(
            f"{VARIABLE} is {named!r}, expected one of {', '.join(WAYS)}; correct or unset it"
        )


def half_products(info: CompilerInfo, include: Path) -> HalfProducts:
    """Ask for the way of ``products="bf16"`` on this machine.

    Raises BuildError where ``CELLGEN_BF16`` names none, or the compiler makes no program.
    """
    require_known()
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "way.c"), Path(folder, f"way{program_suffix()}")
        source.write_text(QUESTION, encoding="utf-8")
        _said([*info.command, *info.flags, f"-I{include}", str(source), "-o", str(program)])
        number, _, why = _said([str(program)]).partition(" ")
    way = list(WAYS)[int(number) - 1]
    named = os.environ.get(VARIABLE, "")
    if named and named != way:
        why += f"; {VARIABLE}={named} is not there"
    return HalfProducts(way, why)


def _said(command: list[str]) -> str:
    """Run a program for what it prints. Raises BuildError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        problem = "" if done.returncode == 0 else done.stderr.strip() or "it failed"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise BuildError(
            f"{command[0]} does not say how products in bfloat16 are computed: "
            f"{problem.splitlines()[0]}; `cellgen doctor` says what else is amiss"
        )
    return done.stdout
