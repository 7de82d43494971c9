"""Render a planned cell for each target, and the Python interface that all of them share.

Input: ``PlannedCell``. Output: ``Source``, strings only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from cellgen.errors import BuildError
from cellgen.runtime.abi import Interface
from cellgen.runtime.backend import from_package
from cellgen.runtime.call.stub import FILE as STUB
from cellgen.runtime.call.stub import package_stub
from cellgen.runtime.interface_file import FILE, interface_text
from cellgen.targets.c.source import CTarget
from cellgen.targets.cuda.source import CudaTarget
from cellgen.targets.head import Head
from cellgen.targets.target import Files, NotYet, PlannedCell, Target
from cellgen.targets.templates import fill
from cellgen.targets.triton.source import TritonTarget

TARGETS: dict[str, Target] = {
    target.name: target for target in (CTarget(), CudaTarget(), TritonTarget())
}
"""Every language of cellgen's own that cells are spelled in; ``runtime/backend.py`` runs them."""
_PARTS = ("name", "suffixes", "render", "explain", "plans")


def target_of(name: str) -> Target:
    """A target by its name, cellgen's own or that of a package.

    Raises:
        BuildError: there is none of this name, or the package that brings it is at fault.
    """
    if name in TARGETS:
        return TARGETS[name]
    return cast("Target", from_package(name, "TARGET", _PARTS))


@dataclass(frozen=True)
class Source:
    """The generated files of a cell and the interface they implement."""

    name: str
    interface: Interface
    origin: str
    """Where the cell is declared: a module and a class."""
    init: str
    stub: str
    """Types of the package, for type checkers."""
    described: str
    """The text of ``interface.json``."""
    rendered: Mapping[str, Files | NotYet]
    """By target."""

    def of(self, target: str) -> dict[str, str]:
        """Contents by file name of what one target spells.

        Raises:
            BuildError: the target cannot spell the cell; says why.
        """
        texts = self.rendered[target]
        if isinstance(texts, NotYet):
            raise BuildError(f"{self.name}: {texts.reason}", code=f"build.{target}")
        return {self.name + suffix: text for suffix, text in texts.items()}

    def is_spelled(self, target: str) -> bool:
        """Whether the cell was rendered for a target, and could be."""
        return not isinstance(self.rendered.get(target, NotYet("")), NotYet)

    def text(self, suffix: str) -> str:
        """The text of one file; empty where no target spells it."""
        return self.files.get(self.name + suffix, "")

    @property
    def files(self) -> dict[str, str]:
        """Contents by file name, as they stand in ``generated/<cell>/``."""
        spelled = [name for name, texts in self.rendered.items() if not isinstance(texts, NotYet)]
        files = {name: text for target in spelled for name, text in self.of(target).items()}
        return {**files, FILE: self.described, "__init__.py": self.init, STUB: self.stub}


def render(cell: PlannedCell, targets: Iterable[str] = ()) -> Source:
    """Render a cell for some targets, for all of cellgen's own where none is named."""
    functions = [function.name for function in cell.interface.functions]
    init = fill("c/init.py.j2", InitContext(cell.head, functions))
    stub = package_stub(cell.interface, cell.head.title, cell.head.origin)
    described = interface_text(cell.interface, cell.head.origin)
    rendered = {name: target_of(name).render(cell) for name in tuple(targets) or TARGETS}
    name, origin = cell.definition.name, cell.head.origin
    return Source(name, cell.interface, origin, init, stub, described, rendered)


@dataclass(frozen=True)
class InitContext:
    """Of ``init.py.j2``."""

    head: Head
    exports: list[str]
