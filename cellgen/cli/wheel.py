"""``cellgen wheel``: prebuilt kernels, for Python without a compiler, or for C and C++."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellgen.cli.explained import ONE_CELL
from cellgen.cli.status import ending, leave_for


def wheel(
    cells: Annotated[list[str], typer.Argument(metavar=ONE_CELL, help="One cell, or several.")],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The package: what `import` takes.")
    ] = "cellgen_kernels",
    release: Annotated[str, typer.Option(metavar="VERSION", help="Of the package.")] = "0.1.0",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path("dist"),
    for_c: Annotated[
        bool, typer.Option("--c", help="An archive for C and C++ in place of a wheel.")
    ] = False,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="x86_64|aarch64", help="This one, and aarch64 where zig is, when left out."
        ),
    ] = None,
    levels: Annotated[
        str, typer.Option(metavar="v2,v3,v4,amx", help="Of x86-64; all when left out.")
    ] = "",
) -> None:
    """Compile cells for many processors into a wheel that needs NumPy alone, no compiler."""
    with ending():
        from cellgen.cli import terminal
        from cellgen.views.find import find_each
        from cellgen.wheel import make, objects
        from cellgen.wheel.pack import Naming

        naming, planned = Naming(name, release), make.plan(machine or (), levels)
        classes, failures = find_each(cells)
        leave_for(failures)
        if not machine and not objects.has_zig():
            terminal.note(f"left out: aarch64, which needs the ziglang wheel; {objects.FIX_ZIG}")
        with terminal.steps("compiling", sum(map(len, planned))) as steps:
            sources = make.sources_of(classes)
            written = make.make(naming, sources, planned, out, for_c=for_c, say=steps.quietly)
        for path in written:
            typer.echo(f"{path}  {path.stat().st_size / 1e6:.2f} MB")
