"""Launch a CUDA kernel on views of memory: what a binding has when it has checked already.

Input: dimensions, views of arrays by name, a stream, and a function that gives workspace. Output:
none; results are written where their views point, when the stream comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import Checked, has_elements
from cellgen.runtime.call.settings import numbers
from cellgen.runtime.call.views import ArrayView
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.launching import DeviceCall, DeviceOwner, launch_of
from cellgen.runtime.device.settings import TIERS
from cellgen.runtime.options import Options, device_members

MEMBERS = frozenset(member.name for member in device_members())


class RawDeviceFunction:
    """One function over time of a kernel, launched on views; nothing is checked.

    All arguments and results have a view, but for upstream gradients that count as zero and
    ``saved`` results that are not wanted. Arrays over time may have gaps between steps and rows.
    """

    def __init__(self, kernel: DeviceOwner, function: Function, graphs: Graphs) -> None:
        self._kernel, self._function, self._graphs = kernel, function, graphs
        self._results = frozenset(item.name for item in function.results)

    def __call__(
        self,
        dims: Mapping[str, int],
        arrays: Mapping[str, ArrayView],
        tables: Mapping[str, ArrayView],
        scalars: Mapping[str, float],
        options: Options,
        stream: int,
        workspace: Callable[[int], int],
    ) -> None:
        """Launch on a stream, or replay as a graph what came before with the same memory.

        ``arrays`` are arguments and results by name, ``tables`` lengths, mask and reset, of
        ``options`` only switches and steps are read. ``workspace`` gives the address of so many
        bytes, which nothing else may write before the stream has passed. Raises DeviceError.
        """
        if not has_elements(self._function.results, dims):
            return
        views = {f"out {n}" if n in self._results else n: view for n, view in arrays.items()}
        first = next(iter(views.values()))
        settings = {name: n for name, n in numbers(options).items() if name in MEMBERS}
        call = DeviceCall(
            Checked(first.dtype, dict(dims), {}, {}, views),
            views,
            tables,
            scalars,
            {**settings, "tier": TIERS["auto"]},
            stream,
        )
        self._kernel.require_device(first.device)
        with self._kernel.library().on(first.device):
            self._launch(launch_of(self._kernel, self._function, call), workspace)

    def _launch(self, ready: Launch, workspace: Callable[[int], int]) -> None:
        library = self._kernel.library()
        if self._graphs.launch(library, ready, None):
            return
        try:
            address = workspace(ready.size)
        except Exception:  # of the caller's allocator
            if not len(self._graphs):
                raise
            self._graphs.clear()  # they hold workspaces
            address = workspace(ready.size)
        code = ready.run(ready.stream, address)
        if code:
            raise ready.fault(library.error(code))
