"""Run a CUDA kernel on tensors of a device: addresses of their memory, launched and not waited for.

Input: tensors that passed the check of a ``Layout``. Output: new tensors. Kernels go to torch's
current stream, results and workspace come from torch's allocator, so that a call is captured by
``torch.cuda.graph`` as torch's own functions are. In the emulation tensors lie on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cellgen.errors import DeviceError
from cellgen.runtime.abi import Argument
from cellgen.runtime.backend import DeviceKernel, Launcher
from cellgen.runtime.call.views import ArrayView, with_gaps
from cellgen.runtime.options import BACKWARD, Options
from cellgen.torch.errors import DeviceRunError, TensorError
from cellgen.torch.layout import Layout
from cellgen.torch.run import Runner, Steps


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

    def call(
        self,
        name: str,
        like: Tensor,
        sizes: dict[str, int],
        arrays: dict[str, Tensor | float],
        scalars: Sequence[float],
        steps: Steps,
    ) -> None:
        """Launch a function; what its kernels read may be freed at once, in the stream's order.

        Raises TensorError, DeviceRunError, BuildError.
        """
        if steps.flush_denormals:
            raise TensorError(
                f"{self.layout.where}: flush_denormals is True, and tensors are on {like.device}, "
                f"whose kernels take denormal numbers as they are, at no cost; leave it out"
            )
        kept: list[Tensor] = []  # until the kernels are launched

        def workspace(size: int) -> int:
            kept.append(like.new_empty(size, dtype=torch.uint8))
            return int(kept[-1].data_ptr())

        tables = {"lengths": steps.lengths, "mask": steps.mask, "reset": steps.reset}
        if steps.lengths is not None:
            kept.append(steps.lengths.contiguous())
            tables["lengths"] = kept[-1]
        named = dict(zip((item.name for item in self.layout.scalars), scalars, strict=True))
        named |= {n: value for n, value in arrays.items() if not isinstance(value, Tensor)}
        try:
            self.launcher(name)(
                sizes,
                {n: _view(value) for n, value in arrays.items() if isinstance(value, Tensor)},
                {n: _view(table) for n, table in tables.items() if table is not None},
                named,
                _options(name, steps),
                torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0,
                workspace,
            )
        except DeviceError as error:
            raise DeviceRunError(str(error.args[0])) from error


def _options(name: str, steps: Steps) -> Options:
    """What a call says beside its tensors."""
    return Options(
        reverse=steps.reverse,
        zero_output_for_mask=steps.zero_output_for_mask,
        window=steps.window if name == BACKWARD else 0,
    )


def _view(tensor: Tensor) -> ArrayView:
    shape, size = tuple(tensor.shape), tensor.element_size()
    strides = None
    if not tensor.is_contiguous():
        strides = with_gaps(shape, tuple(size * step for step in tensor.stride()), size)
    kind, device = str(tensor.dtype).removeprefix("torch."), tensor.device.index or 0
    return ArrayView(tensor.data_ptr(), shape, kind, size, device, strides, library="torch")
