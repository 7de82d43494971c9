"""Run a CUDA kernel on tensors of a device: addresses of their memory, launched and not waited for.

Input: tensors that passed the check of a ``Layout``. Output: new tensors. Kernels go to torch's
current stream, results and workspace come from torch's allocator, so that a call is captured by
``torch.cuda.graph`` as torch's own functions are. In the emulation tensors lie on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cellgen.errors import DeviceError
from cellgen.frameworks.on_devices import LACKING, lacking, stated
from cellgen.runtime.abi import Argument
from cellgen.runtime.backend import DeviceKernel, Launcher
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.directions import AUTO
from cellgen.runtime.options import Options
from cellgen.torch.errors import DeviceRunError, TensorError
from cellgen.torch.layout import Layout
from cellgen.torch.run import CallArguments, Runner
from cellgen.torch.streams import TIER, keep_until_run


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
        launcher = self._launchers.get(name)
        if launcher is None:
            launcher = self._launchers.setdefault(name, self.kernel.launcher(name))
        return launcher

    def call(self, name: str, of_call: CallArguments, options: Options) -> None:
        """Launch a function; what its kernels read may be freed at once, in the stream's order.

        Raises TensorError, DeviceRunError, BuildError.
        """
        like, sizes, arrays, scalars = of_call.like, of_call.sizes, of_call.arrays, of_call.scalars
        self._refuse(like, options)
        if isinstance(options.lengths, Tensor):
            options = replace(options, lengths=options.lengths.contiguous())
        words, apart = self._words(arrays, scalars, options)
        kept: list[Tensor] = []  # until the kernels are launched

        def workspace(size: int) -> int:
            kept.append(like.new_empty(size, dtype=torch.uint8))
            return int(kept[-1].data_ptr())

        device = like.device
        stream = torch.cuda.current_stream(device).cuda_stream if like.is_cuda else 0
        element, number = element_name(like.dtype), device.index or 0
        launch, said = self.launcher(name), stated(name, options)
        try:
            launch(element, number, sizes, words, apart, said, stream, workspace, TIER.get())
        except DeviceError as error:
            raise DeviceRunError(str(error.args[0])) from error
        if TIER.get() != AUTO:
            tables = (options.lengths, options.mask, options.reset)
            keep_until_run(device, (*arrays.values(), *tables))

    def _words(
        self, arrays: Mapping[str, Tensor | float], scalars: Sequence[float], options: Options
    ) -> tuple[dict[str, int | float], dict[str, tuple[int, int]]]:
        """Addresses and numbers by name, and how far apart steps and rows lie where with gaps."""
        words: dict[str, int | float] = {
            item.name: number for item, number in zip(self.layout.scalars, scalars, strict=True)
        }
        apart: dict[str, tuple[int, int]] = {}
        tables = {"lengths": options.lengths, "mask": options.mask, "reset": options.reset}
        for name, value in {**arrays, **tables}.items():
            if isinstance(value, Tensor):
                words[name] = value.data_ptr() or 1  # without elements: there, but nowhere
                if not value.is_contiguous():
                    apart[name] = value.stride(0), value.stride(1)
            elif isinstance(value, int | float):
                words[name] = value
        return words, apart

    def _refuse(self, like: Tensor, options: Options) -> None:
        """Raise TensorError for options that kernels of CUDA do not have here."""
        name = lacking(options)
        if name:
            raise TensorError(
                f"{self.layout.label}: {name} is given, and tensors are on {like.device}, "
                f"{LACKING[name]}; leave it out"
            )
