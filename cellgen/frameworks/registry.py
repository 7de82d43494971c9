"""Cells that programs of other frameworks call, by the text that stands in a program.

A cell that ships goes by its name, one's own by name and digest, a tangent by its cell and what
moves. A program that was exported names its cells so: those that ship, and their tangents, are
found in any process; one's own must have been handed to the bridge there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from cellgen import api
from cellgen.errors import BuildError
from cellgen.frameworks.layout import Layout, layout_of
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.masks import Mask

if TYPE_CHECKING:
    from cellgen.language.cell import Cell

CellOrName: TypeAlias = "type[Cell] | str"

EVERYTHING = "/dot"
"""What follows a cell's text to name its tangent along every direction."""
SOME = "/by:"
"""The same along some: their names follow."""


class Known:
    """A cell, its kernel, and how it is called over time."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        self.text, self.kernel = text, kernel
        self.layout: Layout = layout_of(kernel.interface)
        self._cell = cell
        self.masks: tuple[Mask, ...] = getattr(cell, "__masks__", ())

    def __repr__(self) -> str:
        return f"<{self.text}, known to programs of other frameworks>"

    @property
    def cell(self) -> type[Cell]:
        """The declaration, imported when it is first asked for."""
        if self._cell is None:
            self._cell = _shipped_class(self.kernel.name)
        return self._cell

    def tangent(self, by: tuple[str, ...] = ()) -> Known:
        """The tangent along ``by``, along everything if that is empty; compiled when first used."""
        return find(self.text + (f"{SOME}{','.join(by)}" if by else EVERYTHING))

    @cached_property
    def directions(self) -> Mapping[str, str]:
        """Of a tangent: the names of the directions, by the names of what moves and of outputs."""
        return _directions_of(self.cell)


_known: dict[str, Known] = {}
_lock = threading.RLock()


def known(cell: CellOrName) -> Known:
    """Make a cell known, by its class or by the name of one that ships; compile it if need be.

    Raises BuildError, DeclarationError.
    """
    if isinstance(cell, str):
        return find(cell)
    kernel = api.compile(cell)
    ships = cell.__module__.startswith("cellgen.cells.") and kernel.name in api.shipped_names()
    text = kernel.name if ships else f"{kernel.name}@{kernel.interface.digest}"
    with _lock:
        if text not in _known:
            _known[text] = Known(text, kernel, cell)
        return _known[text]


def find(text: str) -> Known:
    """Find a cell by the text that a program names it by. Raises BuildError."""
    found = _known.get(text)
    if found is not None:
        return found
    made = _tangent(text) or Known(text, _loaded(text), None)
    with _lock:
        return _known.setdefault(text, made)


def _loaded(text: str) -> Kernel:
    if "@" in text:
        name = text.partition("@")[0]
        raise BuildError(
            f"{name}: the cell {text} is not known in this process; call the function(...) of "
            f"cellgen.torch or cellgen.jax with its class first",
            code="build.unknown",
        )
    return api.load(text)


def _tangent(text: str) -> Known | None:
    """The tangent that a text names; None where it names none."""
    if text.endswith(EVERYTHING):
        base, by = text.removesuffix(EVERYTHING), None
    elif SOME in text:
        base, _, names = text.rpartition(SOME)
        by = tuple(names.split(","))
    else:
        return None
    cell = _tangent_of(find(base).cell, by)
    return Known(text, api.compile(cell), cell)


def _shipped_class(name: str) -> type[Cell]:
    from cellgen.cells import SHIPPED
    from cellgen.language.cell import definition_of

    return next(cell for cell in SHIPPED if definition_of(cell).name == name)


def _tangent_of(cell: type[Cell], by: tuple[str, ...] | None) -> type[Cell]:
    from cellgen.program.transforms.tangent import tangent

    return tangent(cell, by)


def _directions_of(cell: type[Cell]) -> Mapping[str, str]:
    from cellgen.program.transforms.tangent import directions_of

    return directions_of(cell)
