"""Count instructions of inner loops: ``python -m tests.elsewhere.inner_loop MACHINE``.

The time driver is compiled in float32 and in float64 with the flags of ``cellgen build``, and
disassembled by objdump. For each tile the shortest loop that multiplies and adds is printed: one
turn of it is one k. Machines: gcc and clang (this one), arm64.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cellgen.runtime.build.sources import DRIVER_SOURCES
from cellgen.runtime.paths import include_folder
from tests.elsewhere.machines import MEANING, Machine, elsewhere, native, ran

FLAGS = ("-O3", "-fPIC", "-std=gnu11", *MEANING, "-fopenmp-simd", "-fvisibility=hidden")
FUNCTION = re.compile(r"^[0-9a-f]+ <cellgen_(tile_\d+x\d+_f\d\d)[^>]*>:\n(.*?)\n\n", re.M | re.S)
LINE = re.compile(r"^ *([0-9a-f]+):\t(\S+)[ \t]*(.*)$", re.M)
JUMP = re.compile(r"^(b\.\w+|b|j\w+)$")
FMA = re.compile(r"^(fmla|v?fmadd\w+)$")
STORE = re.compile(r"^(st\w+)$")
REAL_OF_STACK = re.compile(r"\[sp|\(%rsp|\(%rbp")


@dataclass(frozen=True)
class Loop:
    """One turn of a tile's inner loop: so many instructions, of each kind."""

    tile: str
    kinds: Counter[str]
    spills: int

    @property
    def count(self) -> int:
        """All instructions."""
        return sum(self.kinds.values())

    @property
    def fma(self) -> int:
        """Multiplications and additions of a vector."""
        return sum(number for kind, number in self.kinds.items() if FMA.match(kind))

    def __str__(self) -> str:
        others = ", ".join(f"{number} {kind}" for kind, number in self.kinds.most_common())
        return f"{self.tile}: {self.count}, of which {self.fma} fma; {others}"


def loops(machine: Machine, objdump: str) -> Iterator[Loop]:
    """The inner loop of every tile. Raises ElsewhereError."""
    for stem in DRIVER_SOURCES:
        with tempfile.TemporaryDirectory() as work:
            made = f"{work}/driver.o"
            source = str(include_folder() / f"{stem}.c")
            call = [*machine.compiler, *FLAGS, *machine.flags, f"-I{include_folder()}"]
            ran([*call, "-c", source, "-o", made])
            listing = Path(work, "listing")
            ran(["sh", "-c", f"{objdump} -d --no-show-raw-insn {made} > {listing}"])
            yield from loops_of(listing.read_text())


def loops_of(listing: str) -> Iterator[Loop]:
    """The inner loops in what objdump prints."""
    for name, body in FUNCTION.findall(listing + "\n\n"):
        lines = [(int(at, 16), kind, what) for at, kind, what in LINE.findall(body)]
        found = [
            loop
            for at, kind, what in lines
            for start in re.findall(r"(?:^|\s)([0-9a-f]+)(?: <|$)", what)
            if JUMP.match(kind) and int(start, 16) <= at
            for loop in [_loop(name, [x for x in lines if int(start, 16) <= x[0] <= at])]
            if loop.fma
        ]
        if found:
            yield min(found, key=lambda loop: loop.count)


def _loop(name: str, lines: list[tuple[int, str, str]]) -> Loop:
    spills = sum(bool(STORE.match(kind) and REAL_OF_STACK.search(what)) for _, kind, what in lines)
    return Loop(name, Counter(kind for _, kind, _ in lines), spills)


OBJDUMP = {"arm64": "aarch64-linux-gnu-objdump"}


def main(arguments: list[str]) -> int:
    machines = {machine.name: machine for machine in (*native(), *elsewhere())}
    if len(arguments) != 1 or arguments[0] not in machines:
        print(__doc__)
        return 2
    for loop in loops(machines[arguments[0]], OBJDUMP.get(arguments[0], "objdump")):
        print(loop)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
