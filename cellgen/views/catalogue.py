"""The cells there are, as a table: what each is, what it carries, where it comes from.

Input: the declarations of ``cells``, and of cells that packages bring. Output: ``CatalogueEntry``
records for ``cellgen list`` and the README.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cellgen.cells import SHIPPED
from cellgen.errors import BuildError, CellgenError, Failure
from cellgen.language.cell import Definition
from cellgen.language.cell.packaged import cell_of
from cellgen.language.value import Role, Value
from cellgen.runtime.build.shared_object import find
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.folders import read_interface
from cellgen.runtime.paths import generated_folder
from cellgen.runtime.plugins import CELLS, plugins
from cellgen.views.show import summary


@dataclass(frozen=True)
class CatalogueEntry:
    """One cell; ``built`` is None where no compiler can tell.

    ``name`` is what ``cellgen.load`` takes.
    """

    name: str
    text: str
    source: str
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    built: bool | None


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Describe every cell that ships."""
    return tuple(_entry(cell.definition) for cell in SHIPPED)


def of_packages() -> tuple[list[CatalogueEntry], list[Failure]]:
    """Describe every cell that a package brings; and those whose package is at fault."""
    entries, failures = [], []
    for plugin in plugins(CELLS):
        try:
            definition = cell_of(plugin).definition
            entries.append(replace(_entry(definition), name=plugin.selector, built=None))
        except CellgenError as error:
            failures.append(Failure(plugin.selector, error))
    return entries, failures


def _entry(definition: Definition) -> CatalogueEntry:
    text, source = summary(definition)
    return CatalogueEntry(
        name=definition.name,
        text=text,
        source=source,
        inputs=_names(definition.with_role(Role.INPUT)),
        states=_names(definition.states),
        parameters=_names(definition.parameters),
        outputs=_names(definition.outputs),
        built=_is_built(definition),
    )


def _names(values: tuple[Value, ...]) -> tuple[str, ...]:
    return tuple(str(value.name) for value in values)


def _is_built(definition: Definition) -> bool | None:
    """Tell whether loading the cell would need no compiler; False where it was never generated."""
    folder = generated_folder() / definition.name
    try:
        sources, interface = SourceFiles.read(folder, definition.name), read_interface(folder)
    except BuildError:
        return False
    try:
        return find(sources, interface) is not None
    except BuildError:
        return None
