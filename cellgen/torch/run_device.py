"""Run a CUDA kernel on tensors of a device: addresses of their memory, launched and not waited for.

Input: tensors that passed the check of a ``Layout``. Output: new tensors. Kernels go to torch's
current stream, results and workspace come from torch's allocator, so that a call is captured by
``torch.cuda.graph`` as torch's own functions are. In the emulation tensors lie on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from cellgen.errors import DeviceError
from cellgen.frameworks.shown import IN_BF16
from cellgen.runtime.abi import Argument
from cellgen.runtime.backend import DeviceKernel, Launcher
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.options import BACKWARD, Options
from cellgen.torch.errors import DeviceRunError, TensorError
from cellgen.torch.layout import Layout
from cellgen.torch.run import Given, Runner, Steps


class DeviceRunner(Runner):
    """The two functions over time of one CUDA kernel, called on tensors of a device."""

    def __init__(self, kernel: DeviceKernel, layout: Layout) -> None:
        super().__init__(layout)
        self.kernel = kernel
        self._launchers: dict[str, Launcher] = {}

    def may_leave_out(self, item: Argument) -> bool:
        """No gradient: kernels of CUDA form them all."""
        return False

    def launcher(self, name: str) -> Launcher:
        """What launches a function, by its name in the interface."""
        found = self._launchers.get(name)
        if found is None:
            found = self._launchers.setdefault(name, self.kernel.launcher(name))
        return found

    def call(self, name: str, given: Given, steps: Steps) -> None:
        """Launch a function; what its kernels read may be freed at once, in the stream's order.

        Raises TensorError, DeviceRunError, BuildError.
        """
        like, sizes, arrays, scalars = given.like, given.sizes, given.arrays, given.scalars
        self._refuse(like, steps)
        if steps.lengths is not None:
            steps = replace(steps, lengths=steps.lengths.contiguous())
        words, apart = self._words(arrays, scalars, steps)
        kept: list[Tensor] = []  # until the kernels are launched

        def workspace(size: int) -> int:
            kept.append(like.new_empty(size, dtype=torch.uint8))
            return int(kept[-1].data_ptr())

        device = like.device
        stream = torch.cuda.current_stream(device).cuda_stream if like.is_cuda else 0
        element, number = element_name(like.dtype), device.index or 0
        launch, options = self.launcher(name), _options(name, steps)
        try:
            launch(element, number, sizes, words, apart, options, stream, workspace)
        except DeviceError as error:
            raise DeviceRunError(str(error.args[0])) from error

    def _words(
        self, arrays: Mapping[str, Tensor | float], scalars: Sequence[float], steps: Steps
    ) -> tuple[dict[str, int | float], dict[str, tuple[int, int]]]:
        """Addresses and numbers by name, and how far apart steps and rows lie where with gaps."""
        words: dict[str, int | float] = {
            item.name: number for item, number in zip(self.layout.scalars, scalars, strict=True)
        }
        apart: dict[str, tuple[int, int]] = {}
        tables = {"lengths": steps.lengths, "mask": steps.mask, "reset": steps.reset}
        for name, value in {**arrays, **tables}.items():
            if isinstance(value, Tensor):
                words[name] = value.data_ptr() or 1  # without elements: there, but nowhere
                if not value.is_contiguous():
                    apart[name] = value.stride(0), value.stride(1)
            elif value is not None:
                words[name] = value
        return words, apart

    def _refuse(self, like: Tensor, steps: Steps) -> None:
        """Raise TensorError for options that kernels of CUDA do not have here."""
        reasons = {
            "flush_denormals": "whose kernels take denormal numbers as they are, at no cost",
            "checkpoint": "whose kernels keep what every step saves",
            "hidden": "whose kernels form all outputs",
            "last": "whose kernels form all outputs",
        }
        found = [name for name in reasons if getattr(steps, name)]
        if steps.products == IN_BF16:
            found, reasons = ["products"], {"products": "whose kernels have no products='bf16'"}
        if steps.every != 1:
            found, reasons = ["every"], {"every": "whose kernels form the outputs of all steps"}
        if found:
            option = "outputs" if found[0] == "hidden" else found[0]
            raise TensorError(
                f"{self.layout.where}: {option} is given, and tensors are on {like.device}, "
                f"{reasons[found[0]]}; leave it out"
            )


def _options(name: str, steps: Steps) -> Options:
    """What a call says beside its tensors."""
    window = steps.window if name == BACKWARD else 0
    return _stated(steps.reverse, steps.zero_output_for_mask, window)


@lru_cache(maxsize=64)
def _stated(reverse: bool, zero_output_for_mask: bool, window: int) -> Options:
    return Options(reverse=reverse, zero_output_for_mask=zero_output_for_mask, window=window)
