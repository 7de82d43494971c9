"""Cells that torch's operators know, by the text that an operator is given."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from cellgen.frameworks.layout import layout_of
from cellgen.frameworks.registry import CellOrName, KnownCell, Registry
from cellgen.runtime.call.kept import KeptPlans
from cellgen.runtime.kernel import Kernel
from cellgen.torch.devices import PLACES
from cellgen.torch.layout import Layout
from cellgen.torch.run import HostRunner, Runner, TensorPlan
from cellgen.torch.run_device import DeviceRunner

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.torch.chunks.cell import ChunkedCell

__all__ = ["CellOrName", "Known", "find", "known"]


class Known(KnownCell):
    """A cell, its kernel, and how both are called with tensors."""

    def __init__(self, text: str, kernel: Kernel, cell: type[Cell] | None) -> None:
        super().__init__(text, kernel, cell)
        self.layout = layout_of(kernel.interface, Layout)
        self.chunked: ChunkedCell | None = None
        """The cell in chunks, once a call has asked for that."""
        self.plans = KeptPlans[TensorPlan]()
        """Plans of calls by Python, by what they depend on."""
        self._device_runners: dict[bool, DeviceRunner] = {}

    @cached_property
    def runner(self) -> HostRunner:
        """What runs the kernel on tensors of the CPU."""
        return HostRunner(self.kernel, self.layout)

    def device_runner(self, *, emulated: bool) -> DeviceRunner:
        """What runs the kernel of CUDA on tensors of a device, or in the emulation.

        Raises BuildError for a cell that is not rendered for CUDA.
        """
        runner = self._device_runners.get(emulated)
        if runner is None:
            own = DeviceRunner(self.kernel_of_cuda(emulated=emulated), self.layout)
            runner = self._device_runners.setdefault(emulated, own)
        return runner

    def runner_on(self, device: torch.device) -> Runner:
        """What runs the cell on tensors of a device. Raises BuildError."""
        place = PLACES[device.type]
        if place.target == "c":
            return self.runner
        return self.device_runner(emulated=place.emulated)

    def tangent(self, by: tuple[str, ...] = ()) -> Known:
        """Return the tangent along ``by``, along everything if that is empty."""
        return find(self.tangent_text(by))


REGISTRY = Registry(Known)
known, find = REGISTRY.known, REGISTRY.find
