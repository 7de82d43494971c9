"""Cells that programs of JAX call, by the text that stands in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellgen.frameworks.layout import TensorLayout, layout_of
from cellgen.frameworks.registry import CellOrName, KnownCell, Registry
from cellgen.runtime.kernel import Kernel

if TYPE_CHECKING:
    from cellgen.language.cell import Cell

__all__ = ["CellOrName", "KnownInJax", "find", "known"]


class KnownInJax(KnownCell):
    """A cell, its kernel, and what both functions over time take."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        super().__init__(text, kernel, cell)
        self.layout = layout_of(kernel.interface, TensorLayout)

    def tangent(self, by: tuple[str, ...] = ()) -> KnownInJax:
        """Return the tangent along ``by``, along everything if that is empty."""
        return find(self.tangent_text(by))


REGISTRY = Registry(KnownInJax)
known, find = REGISTRY.known, REGISTRY.find
