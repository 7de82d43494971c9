"""Compile the kernels of several cells into one shared object a level.

Input: sources of cells, levels. Output: bytes of objects. The driver is linked once for all cells.
Compiled for this machine by its compiler, for another by the ziglang wheel; what is compiled is
kept in the kernel cache. Not supported: systems other than Linux.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import Interface
from cellgen.runtime.build import cache, driver, steps
from cellgen.runtime.build.compiler import (
    OPTIONAL_FLAGS,
    REQUIRED_FLAGS,
    TOOL,
    WIDE_VECTORS,
    CompilerInfo,
    compiler,
)
from cellgen.runtime.build.shared_object import LIBRARIES
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step
from cellgen.wheel.levels import WIDE, ProcessorLevel

OF_MACHINE = ("-march=", "-mcpu=", "-mtune=", *WIDE_VECTORS)
"""How flags begin that a level replaces."""
HIDDEN = "-fvisibility=hidden"
GLIBC = "2.17"
"""The oldest C library that objects of zig run with."""
NEEDS = re.compile(rb"GLIBC_2\.(\d+)")
PROBE = Path(__file__).parent / "packed" / "level.c"
FIX_ZIG = "pip install 'cellgen-compiler[zig]'"


@dataclass(frozen=True)
class Compiled:
    """A shared object for one level: its bytes, and the release of glibc 2 that it needs."""

    level: ProcessorLevel
    data: bytes

    @property
    def glibc(self) -> int:
        """The release of glibc 2 that it needs."""
        return max(17, *map(int, NEEDS.findall(self.data)))


def this_machine() -> str:
    """This machine's name among ``MACHINES``. Raises BuildError: not on Linux."""
    if sys.platform != "linux":
        raise BuildError(
            f"wheels of kernels are for Linux, and this is {sys.platform}; run it in a container"
        )
    return platform.machine()


def has_zig() -> bool:
    """Whether the ziglang wheel is installed, which compiles for other machines."""
    return importlib.util.find_spec("ziglang") is not None


def compiled(
    level: ProcessorLevel,
    cells: Sequence[tuple[Interface, SourceFiles]],
    name: str,
    *,
    exported: bool,
) -> Compiled:
    """Compile cells at a level and link them.

    The descriptors of cells are exported, and with ``exported`` all of their functions.
    Raises BuildError: no compiler for that machine, or what it says.
    """
    info = compiler_of(level)
    objects = [_object(sources, info) for _, sources in cells]
    shared = {str(driver.compiled(s, info)) for _, sources in cells if (s := sources.driver())}
    ending = "*" if exported else "cellgen"
    listed = " ".join(f"{interface.name}_{ending};" for interface, _ in cells)
    own = [f"{interface.name}_cellgen" for interface, _ in cells]
    data = _linked(name, level, info, [*map(str, objects), *sorted(shared)], listed, own)
    return Compiled(level, data)


def probe(level: ProcessorLevel) -> bytes:
    """Compile what tells the level of a processor, for any of its machine. Raises BuildError."""
    info = compiler_of(level)
    base = [flag for flag in info.flags if not flag.startswith(OF_MACHINE)]
    call = (*info.command, *base, "-O2", "-march=x86-64", "-shared", "-s")
    if is_zig(info):
        call = (*info.command, *base, "-O2", "-march=x86_64", "-shared", "-s")
    with cache.workplace() as place:
        (place / PROBE.name).write_bytes(PROBE.read_bytes())
        step = Step("compiling level.c", (*call, PROBE.name, "-o", "level.so"), "level.so")
        steps.run(place, "level", "level", ((step,),), TOOL, bar=False)
        return (place / "level.so").read_bytes()


def compiler_of(level: ProcessorLevel) -> CompilerInfo:
    """The compiler for a level, with its flags. Raises BuildError."""
    local = level.machine == this_machine()
    info = compiler() if local else _zig(level)
    flags = [f for f in info.flags if not f.startswith(OF_MACHINE)]
    own = level.flags
    if is_zig(info):
        own = tuple(flag.replace("x86-64", "x86_64") for flag in own)
        flags += ("-target", f"{level.machine}-linux-gnu.{GLIBC}")
        if level.machine == "aarch64":
            own = ("-mcpu=generic",)
    wide = WIDE_VECTORS if level.machine == "x86_64" and level.number >= WIDE else ()
    return replace(info, flags=(*flags, *own, *wide))


def is_zig(info: CompilerInfo) -> bool:
    """Whether a compiler is zig, which spells levels in its own way."""
    return any(Path(word).name in ("ziglang", "zig") for word in info.command)


def _zig(level: ProcessorLevel) -> CompilerInfo:
    if not has_zig():
        raise BuildError(
            f"kernels for {level.machine} are compiled by the ziglang wheel, which is not "
            f"installed; {FIX_ZIG}"
        )
    version = importlib.metadata.version("ziglang")
    taken = [
        first for first, *_ in OPTIONAL_FLAGS if not first.startswith((*OF_MACHINE, "--param"))
    ]
    command = (sys.executable, "-m", "ziglang", "cc")
    return CompilerInfo(command, sys.executable, version, (*REQUIRED_FLAGS, *taken), "")


def _object(sources: SourceFiles, info: CompilerInfo) -> Path:
    """Find the object of a cell, both precisions in one, or have it compiled. Raises BuildError."""
    seen = replace(info, flags=tuple(flag for flag in info.flags if flag != HIDDEN))
    name = sources.name
    entry = f"{name}-{cache.digest([*sources.files, ('object', ''), *seen.facts])}"
    call = (*seen.command, *seen.flags, "-Iinclude")
    suffixes = driver.PRECISIONS if sources.driver() else ("",)
    halves = [driver.compiling(call, name, suffix) for suffix in suffixes]
    return cache.find_or_make(
        entry, sources.files, lambda place: driver.joined(place, name, entry, call, halves)
    )[0]


def _linked(
    name: str,
    level: ProcessorLevel,
    info: CompilerInfo,
    objects: Sequence[str],
    listed: str,
    symbols: Sequence[str],
) -> bytes:
    produced = f"lib{name}.so"
    linker = [
        "--version-script=exports.map",
        "-Bsymbolic",
        "--build-id=none",
        f"-soname={produced}",
    ]
    call = (*info.command, *info.flags, "-shared", "-s", f"-Wl,{','.join(linker)}")
    step = Step(f"linking {level.folder}", (*call, *objects, "-o", produced, *LIBRARIES), produced)
    with cache.workplace() as place:
        text = f"{{ global: {listed} local: *; }};\n"
        (place / "exports.map").write_text(text, encoding="utf-8")
        steps.run(place, name, f"{name}-{level.folder}", ((step,),), TOOL)
        if level.machine == this_machine():
            steps.require_loadable(place / produced, name, step, *symbols)
        return (place / produced).read_bytes()
