"""Make wheels of kernels: generate cells, compile them at each level, pack what comes of it.

Input: cell classes and a ``Naming``. Output: paths of what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cellgen.errors import BuildError, UsageError
from cellgen.language.cell import Cell
from cellgen.pipeline import generate
from cellgen.runtime.abi import Interface
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.paths import include_folder
from cellgen.wheel import archive, objects, pack
from cellgen.wheel.levels import MACHINES, ProcessorLevel, chosen
from cellgen.wheel.objects import Compiled
from cellgen.wheel.pack import Naming

Say = Callable[[str, str], None]
"""Say a level and what has been done with it."""


def plan(machines: Sequence[str], levels: str) -> tuple[tuple[ProcessorLevel, ...], ...]:
    """The levels of each machine that a wheel is pairs for.

    Where no machine is named, this one, and arm64 where zig is installed.
    Raises UsageError, BuildError.
    """
    own = objects.this_machine()
    wanted = list(machines) or [own, *(["aarch64"] if objects.has_zig() else [])]
    for machine in wanted:
        if machine not in MACHINES:
            raise UsageError(f"--machine {machine}: expected one of {', '.join(MACHINES)}")
        if machine != own and not objects.has_zig():
            raise BuildError(
                f"--machine {machine}: kernels for it are compiled by the ziglang wheel, which is "
                f"not installed; {objects.FIX_ZIG}"
            )
    every = [chosen(machine, levels) for machine in dict.fromkeys(wanted)]
    kept = tuple(of_machine for of_machine in every if of_machine)
    if not kept:
        raise UsageError(f"--levels {levels}: {', '.join(wanted)} has none of these; name another")
    return kept


def sources_of(cells: Sequence[type[Cell]]) -> list[tuple[Interface, SourceFiles]]:
    """Interfaces and sources of cells. Raises UsageError, CellgenError."""
    pairs = []
    for cell in cells:
        source = generate(cell, ("c",))
        files = SourceFiles.gather(source.name, source.of("c"), None, include_folder())
        pairs.append((source.interface, files))
    pack.require_names([interface for interface, _ in pairs])
    return pairs


def make(
    naming: Naming,
    cells: Sequence[tuple[Interface, SourceFiles]],
    machines: Sequence[Sequence[ProcessorLevel]],
    out: Path,
    *,
    for_c: bool,
    say: Say,
) -> list[Path]:
    """Compile and write a file for each machine: a wheel, or with ``for_c`` an archive for C.

    Raises BuildError, UsageError.
    """
    written = []
    for levels in machines if for_c else ():
        archive.require_lowest(levels)
    for levels in machines:
        compiled = []
        for level in levels:
            compiled.append(objects.compiled(level, cells, naming.name, exported=for_c))
            say(level.folder, f"{len(compiled[-1].data) / 1e6:.2f} MB")
        file, data = (
            archive.archive(naming, cells, compiled) if for_c else _wheel(naming, cells, compiled)
        )
        written.append(_write(out, file, data))
    return written


def _wheel(
    naming: Naming, cells: Sequence[tuple[Interface, SourceFiles]], compiled: Sequence[Compiled]
) -> tuple[str, bytes]:
    first = compiled[0].level
    probe = objects.probe(first) if first.machine == "x86_64" else None
    return pack.wheel(naming, [interface for interface, _ in cells], compiled, probe)


def _write(out: Path, file: str, data: bytes) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / file).write_bytes(data)
    except OSError as error:
        raise BuildError(
            f"cannot write {out / file}: {error.strerror}; name another --out"
        ) from None
    return out / file
