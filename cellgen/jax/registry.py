"""Cells that programs of JAX call, by the text that stands in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellgen.frameworks.layout import TensorLayout, layout_of
from cellgen.frameworks.registry import CellOrName, KnownCell, Registry
from cellgen.runtime.kernel import Kernel

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.runtime.backend import DeviceKernel, Launcher

__all__ = ["CellOrName", "KnownInJax", "find", "known"]


class KnownInJax(KnownCell):
    """A cell, its kernel, and what both functions over time take."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        super().__init__(text, kernel, cell)
        self.layout = layout_of(kernel.interface, TensorLayout)
        self._kernels: dict[bool, DeviceKernel] = {}
        self._launchers: dict[tuple[str, bool], Launcher] = {}

    def kernel_of(self, *, emulated: bool) -> DeviceKernel:
        """Its kernel for devices of CUDA, or in their emulation.

        Raises BuildError for a cell that is not rendered for CUDA.
        """
        if emulated not in self._kernels:
            self._kernels.setdefault(emulated, self.kernel_of_cuda(emulated=emulated))
        return self._kernels[emulated]

    def launcher(self, name: str, *, emulated: bool) -> Launcher:
        """What launches a function on a device, by its name. Raises BuildError."""
        key = name, emulated
        if key not in self._launchers:
            self._launchers.setdefault(key, self.kernel_of(emulated=emulated).launcher(name))
        return self._launchers[key]

    def tangent(self, by: tuple[str, ...] = ()) -> KnownInJax:
        """Return the tangent along ``by``, along everything if that is empty."""
        return find(self.tangent_text(by))


REGISTRY = Registry(KnownInJax)
known, find = REGISTRY.known, REGISTRY.find
