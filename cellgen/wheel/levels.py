"""For which processors kernels are compiled: levels of x86-64, and arm64.

Each level is a row: what a compiler is told, and what a processor needs. Which one a program runs
is decided where it runs, by ``packed/level.c`` and ``packed/loader.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen import accept
from cellgen.errors import UsageError


@dataclass(frozen=True)
class ProcessorLevel:
    """A level of a machine's processors.

    ``number`` is what ``cellgen_level()`` of ``packed/level.c`` says from it on; ``hwcaps`` is the
    folder in which glibc looks for libraries of it.
    """

    name: str
    machine: str
    number: int
    flags: tuple[str, ...]
    needs: str
    hwcaps: str = ""

    @property
    def folder(self) -> str:
        """Where its object stands."""
        return f"{self.machine}-{self.name}"


AMX_FLAGS = ("-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16")
X86 = (
    ProcessorLevel("v2", "x86_64", 1, ("-march=x86-64-v2",), "SSE4.2"),
    ProcessorLevel("v3", "x86_64", 2, ("-march=x86-64-v3",), "AVX2 and FMA", "x86-64-v3"),
    ProcessorLevel("v4", "x86_64", 3, ("-march=x86-64-v4",), "AVX-512", "x86-64-v4"),
    ProcessorLevel("amx", "x86_64", 4, ("-march=x86-64-v4", *AMX_FLAGS), "AVX-512 and AMX"),
)
ARM64 = (ProcessorLevel("base", "aarch64", 1, ("-march=armv8-a",), "Armv8"),)
MACHINES = {"x86_64": X86, "aarch64": ARM64}
"""Levels of each machine, the lowest first."""
WIDE = 3
"""The number of the first level with vectors of 512 bits."""


def chosen(machine: str, names: str) -> tuple[ProcessorLevel, ...]:
    """Levels of a machine by names, ``v3,v4``; all where none is named. Raises UsageError."""
    levels = MACHINES[machine]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in (level.name for every in MACHINES.values() for level in every):
            known = ", ".join(level.name for every in MACHINES.values() for level in every)
            raise UsageError(f"--levels: {accept.quoted(name)} is no level, expected {known}")
    return tuple(level for level in levels if not wanted or level.name in wanted)
