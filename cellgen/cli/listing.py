"""Print the cells there are, a line each: nothing that is slow to import is read for it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from cellgen.cli.screen import BOLD, PIPE_WIDTH, columns, marked
from cellgen.cli.status import ending
from cellgen.runtime.plugins import CELLS, plugins
from cellgen.views.families import by_family


def list_families() -> None:
    """Print the cells that ship, by family, and where those of other packages stand."""
    with ending():
        print_families(by_family() | packaged_cells())


def packaged_cells() -> dict[str, dict[str, str]]:
    """Where the cells stand that packages bring, by package and selector; none is imported."""
    rows: dict[str, dict[str, str]] = {}
    for plugin in plugins(CELLS):
        own = rows.setdefault(f"package {plugin.package} {plugin.version}", {})
        own[plugin.selector] = plugin.value
    return rows


def print_families(families: Mapping[str, Mapping[str, str]]) -> None:
    """Print each family under its name, in bold on a terminal, and what each cell is."""
    width = columns() or PIPE_WIDTH
    for family, cells in families.items():
        print(marked(family, BOLD))
        for line in lines(cells, width):
            print(line)


def lines(cells: Mapping[str, str], width: int) -> Iterator[str]:
    """A line for each cell, no longer than a terminal is wide; what is cut ends in dots."""
    longest = max(map(len, cells), default=0)
    for name, text in cells.items():
        room = width - longest - 4
        short = textwrap.shorten(text, room, placeholder=" ...") if room > 8 else ""
        yield f"  {name:{longest}}  {short}".rstrip()
