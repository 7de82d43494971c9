"""Cells that programs of JAX call, by the text that stands in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellgen.frameworks.layout import TensorLayout, layout_of
from cellgen.frameworks.registry import CellOrName, KnownCell, Registry
from cellgen.runtime.kernel import Kernel

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.runtime.backend import Launcher
    from cellgen.runtime.device.kernel import CudaKernel

__all__ = ["CellOrName", "KnownInJax", "find", "known"]


class KnownInJax(KnownCell):
    """A cell, its kernel, and what both functions over time take."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        super().__init__(text, kernel, cell)
        self.layout = layout_of(kernel.interface, TensorLayout)
        self._kernels: dict[bool, CudaKernel] = {}
        self._launchers: dict[tuple[str, bool], Launcher] = {}

    def kernel_of(self, *, emulated: bool) -> CudaKernel:
        """Its kernel for devices of CUDA, or in their emulation.

        Raises BuildError for a cell that is not rendered for CUDA.
        """
        kernel = self._kernels.get(emulated)
        if kernel is None:
            made = self.kernel_of_cuda(emulated=emulated)
            kernel = self._kernels.setdefault(emulated, made)
        return kernel

    def launcher(self, name: str, *, emulated: bool) -> Launcher:
        """What launches a function on a device, by its name. Raises BuildError."""
        launcher = self._launchers.get((name, emulated))
        if launcher is None:
            made = self.kernel_of(emulated=emulated).launcher(name)
            launcher = self._launchers.setdefault((name, emulated), made)
        return launcher

    def tangent(self, by: tuple[str, ...] = ()) -> KnownInJax:
        """Return the tangent along ``by``, along everything if that is empty."""
        return find(self.tangent_text(by))


REGISTRY = Registry(KnownInJax)
known, find = REGISTRY.known, REGISTRY.find
