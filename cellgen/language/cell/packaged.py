"""Cells that other packages bring, by ``package:name``.

Input: a selector, and the entry points of what is installed. Output: Cell classes.
"""

from __future__ import annotations

from typing import cast

from cellgen import accept
from cellgen.errors import CellgenError, DeclarationError
from cellgen.language.cell.cell import Cell, CellMeta
from cellgen.runtime.plugins import CELLS, Plugin, of_package, plugins


def packaged_cell(selector: str, error: type[CellgenError]) -> type[Cell]:
    """Import the cell that a package brings: ``packaged_cell("my-cells:Gated", UsageError)``.

    Raises ``error``: no such package, or none of its cells has this name, or it is no cell.
    """
    package, _, name = selector.partition(":")
    if package.endswith(".py"):  # commands have taken those before
        raise error(
            f"{selector!r} names a cell in a file, expected the name of one that ships or that a "
            f"package brings; import the class and give that: cellgen.compile({name or 'MyCell'})",
            code="build.unknown",
        )
    names = {plugin.name: plugin for plugin in of_package(CELLS, package)}
    if name in names:
        return cell_of(names[name], error)
    if not names:
        packages = sorted({row.package for row in plugins(CELLS)})
        hint = accept.nearest(package, packages)
        listed = f"packages that do: {', '.join(packages)}" if packages else "no package does"
        raise error(
            f"no package {package!r} that brings cells is installed; {hint}{listed}; a file of "
            f"your own ends in .py",
            code="build.unknown",
        )
    raise error(
        f"no cell of the package {package} is named {name!r}; {accept.nearest(name, names)}"
        f"known: {', '.join(names)}",
        code="build.unknown",
    )


def cell_of(plugin: Plugin, error: type[CellgenError] = DeclarationError) -> type[Cell]:
    """Import a cell and see that it is one. Raises ``error``."""
    value = plugin.load(error)
    if not isinstance(value, CellMeta) or value is Cell:
        what = accept.quoted(value)
        raise plugin.fault(f"{plugin.value} is {what}, expected a subclass of Cell", error)
    cell = cast("type[Cell]", value)
    if cell.definition.is_partial:
        raise plugin.fault(f"{plugin.value} is unfinished, expected a complete cell", error)
    return cell
