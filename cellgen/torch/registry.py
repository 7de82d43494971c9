"""Cells that torch's operators know, by the text that an operator is given."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from cellgen.frameworks.layout import layout_of
from cellgen.frameworks.registry import CellOrName, KnownCell, Registry
from cellgen.runtime.kernel import Kernel
from cellgen.torch.layout import Layout
from cellgen.torch.run import Runner

if TYPE_CHECKING:
    from cellgen.language.cell import Cell

__all__ = ["CellOrName", "Known", "find", "known"]


class Known(KnownCell):
    """A cell, its kernel, and how both are called with tensors."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        super().__init__(text, kernel, cell)
        self.layout = layout_of(kernel.interface, Layout)

    @cached_property
    def runner(self) -> Runner:
        """What runs the kernel on tensors of the CPU."""
        return Runner(self.kernel, self.layout)

    def tangent(self, by: tuple[str, ...] = ()) -> Known:
        """Return the tangent along ``by``, along everything if that is empty."""
        return find(self.tangent_text(by))


REGISTRY = Registry(Known)
known, find = REGISTRY.known, REGISTRY.find
