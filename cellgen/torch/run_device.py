"""Run a CUDA kernel on tensors of a device: addresses of their memory, launched and not waited for.

Input: tensors that passed the check of a ``Layout``. Output: new tensors. Kernels go to torch's
current stream, results and workspace come from torch's allocator, so that a call is captured by
``torch.cuda.graph`` as torch's own functions are. In the emulation tensors lie on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cellgen.errors import DeviceError
from cellgen.frameworks.on_devices import LACKING, lacking
from cellgen.runtime.abi import Argument
from cellgen.runtime.backend import DeviceKernel, Launcher
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.call.views import BYTES, ArrayView
from cellgen.runtime.directions import AUTO
from cellgen.runtime.options import TABLES, Options, skips, with_tables
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
        like, arrays = of_call.like, of_call.arrays
        self._refuse(like, options)
        launch = self.launcher(name)
        element, device = element_name(like.dtype), like.device
        numbers, tensors = dict[str, float](), dict[str, Tensor]()
        for item, number in zip(self.layout.scalars, of_call.scalars, strict=True):
            numbers[item.name] = number
        for key, value in arrays.items():
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                numbers[key] = value
        views = _views(tensors, element)
        has_tables = skips(options)
        plain = with_tables(options) if has_tables else options
        call = launch.bind(element, views, plain, numbers.items())
        if not call.is_run:
            return
        tables = {}
        if has_tables:
            tables = {n: t for n in TABLES if isinstance(t := getattr(options, n), Tensor)}
        if "lengths" in tables:
            tables["lengths"] = tables["lengths"].contiguous()
        call.prepare((), dict(_views(tables, "uint8")) if tables else {})
        kept: list[Tensor] = []  # until the kernels are launched

        def workspace(size: int) -> int:
            kept.append(like.new_empty(size, dtype=torch.uint8))
            return int(kept[-1].data_ptr())

        stream = torch.cuda.current_stream(device).cuda_stream if like.is_cuda else 0
        try:
            launch(element, device.index or 0, call.words, stream, workspace, TIER.get())
        except DeviceError as error:
            raise DeviceRunError(str(error.args[0])) from error
        if TIER.get() != AUTO:
            keep_until_run(device, (*arrays.values(), *tables.values()))

    def _refuse(self, like: Tensor, options: Options) -> None:
        """Raise TensorError for options that kernels of CUDA do not have here."""
        name = lacking(options)
        if name:
            raise TensorError(
                f"{self.layout.label}: {name} is given, and tensors are on {like.device}, "
                f"{LACKING[name]}; leave it out"
            )


def _views(tensors: Mapping[str, Tensor], element: str) -> list[tuple[str, ArrayView]]:
    """The tensors of a call as the engine looks at them."""
    size, views = BYTES[element], []
    for name, tensor in tensors.items():
        strides = None if tensor.is_contiguous() else tuple([size * n for n in tensor.stride()])
        view = ArrayView(tensor.data_ptr(), tuple(tensor.shape), element, size, 0, strides)
        views.append((name, view))
    return views
