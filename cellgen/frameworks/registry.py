"""Cells that programs of other frameworks call, by the text that stands in a program.

A cell that ships goes by its name, one's own by name and digest, a tangent by its cell and what
moves. A program that was exported names its cells so: those that ship, and their tangents, are
found in any process; one's own must have been handed to the bridge there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from cellgen import api
from cellgen.errors import BuildError
from cellgen.runtime.backend import DeviceKernel
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.masks import Mask
from cellgen.runtime.paths import shipped_names

if TYPE_CHECKING:
    from cellgen.language.cell import Cell

CellOrName: TypeAlias = "type[Cell] | str"

EVERYTHING = "/dot"
"""What follows a cell's text to name its tangent along every direction."""
SOME = "/by:"
"""The same along some: their names follow."""


class KnownCell:
    """A cell and its kernel, as a bridge knows it; each has a class of its own."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        self.text, self.kernel = text, kernel
        self._cell = cell
        self.masks: tuple[Mask, ...] = getattr(cell, "__masks__", ())

    def __repr__(self) -> str:
        return f"<{self.text}, known to programs of another framework>"

    @property
    def cell(self) -> type[Cell]:
        """The declaration, imported when it is first asked for."""
        if self._cell is None:
            self._cell = _shipped_class(self.kernel.name)
        return self._cell

    def kernel_of_cuda(self, *, emulated: bool = False) -> DeviceKernel:
        """Its kernel for devices of CUDA, compiled when it is first called.

        Raises BuildError for a cell that is not rendered for CUDA.
        """
        if self.text == self.kernel.name:  # it ships
            kernel = api.load_cuda(self.kernel.name, emulated=emulated)
        else:
            kernel = api.compile_cuda(self.cell, emulated=emulated)
        if kernel.interface != self.kernel.interface:
            raise BuildError(
                f"{self.kernel.name}: the kernel of CUDA takes other arguments than that of C; "
                f"generate both anew: cellgen build {self.kernel.name} --target all"
            )
        return kernel

    def tangent_text(self, by: tuple[str, ...] = ()) -> str:
        """Name the tangent along ``by``, along everything if that is empty."""
        return self.text + (f"{SOME}{','.join(by)}" if by else EVERYTHING)

    @cached_property
    def directions(self) -> Mapping[str, str]:
        """Of a tangent: the names of the directions, by the names of what moves and of outputs."""
        return _directions_of(self.cell)


Known = TypeVar("Known", bound=KnownCell)


class Registry(Generic[Known]):
    """The cells that a bridge has met, by text; ``make`` makes an entry."""

    def __init__(self, make: Callable[[str, Kernel, type[Cell] | None], Known]) -> None:
        self._make = make
        self._known: dict[str, Known] = {}
        self._lock = threading.RLock()

    def texts(self) -> tuple[str, ...]:
        """Name the cells that are known, as programs do."""
        return tuple(self._known)

    def known(self, cell: CellOrName) -> Known:
        """Make a cell known, by its class or its name; compile it if need be.

        Names are those of cells that ship, and ``package:name`` of cells that packages bring.

        Raises BuildError, DeclarationError.
        """
        if isinstance(cell, str) and not _is_packaged(cell):
            return self.find(cell)
        cell = api.packaged_cell(cell) if isinstance(cell, str) else cell
        kernel = api.compile(cell)
        ships = cell.__module__.startswith("cellgen.cells.") and kernel.name in shipped_names()
        text = kernel.name if ships else f"{kernel.name}@{kernel.interface.digest}"
        with self._lock:
            if text not in self._known:
                self._known[text] = self._make(text, kernel, cell)
            return self._known[text]

    def find(self, text: str) -> Known:
        """Find a cell by the text that a program names it by. Raises BuildError."""
        known = self._known.get(text)
        if known is not None:
            return known
        cell = self._tangent(text) or self._make(text, _loaded(text), None)
        with self._lock:
            return self._known.setdefault(text, cell)

    def _tangent(self, text: str) -> Known | None:
        """Make the tangent that a text names; None where it names none."""
        if text.endswith(EVERYTHING):
            base, by = text.removesuffix(EVERYTHING), None
        elif SOME in text:
            base, _, names = text.rpartition(SOME)
            by = tuple(names.split(","))
        else:
            return None
        cell = _tangent_of(self.find(base).cell, by)
        return self._make(text, api.compile(cell), cell)


def _is_packaged(text: str) -> bool:
    """Whether a text names a cell of another package, ``package:name``, and no tangent."""
    return ":" in text and SOME not in text and "@" not in text


def _loaded(text: str) -> Kernel:
    if "@" in text:
        name = text.partition("@")[0]
        raise BuildError(
            f"{name}: the cell {text} is not known in this process; hand its class to the "
            f"framework's function(...) first",
            code="build.unknown",
        )
    return api.load(text)


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
