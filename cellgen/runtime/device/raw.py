"""Launch a CUDA kernel by addresses: what a binding has when it has checked already.

Input: dimensions, addresses of arrays by name, a stream, and a function that gives workspace.
Output: none; results are written where the addresses point, when the stream comes to it. The
counterpart of ``call.raw``: nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_float
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any

from cellgen.runtime.abi import Argument, Function, axis_length
from cellgen.runtime.call.arguments import has_elements
from cellgen.runtime.call.settings import numbers
from cellgen.runtime.call.views import dense_steps
from cellgen.runtime.device.arrays import SUFFIXES
from cellgen.runtime.device.cuda_abi import cuda_symbols, over_time
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.launching import DeviceOwner
from cellgen.runtime.device.settings import TABLES, TIERS
from cellgen.runtime.options import Options, device_members

MEMBERS = tuple(device_members())
FLAGS = tuple(name for name, option in TABLES.items() if len(option.axes) > 1)
"""Tables that have steps and rows."""


@dataclass(frozen=True)
class DeviceEntry:
    """One function in one element type: its argument struct, what packs it, what C exports."""

    struct: str
    pack: Callable[..., bytes]
    call: Callable[..., int]
    how: Callable[..., int]
    size: Callable[..., int]


class RawDeviceFunction:
    """One function over time of a kernel, launched on addresses."""

    def __init__(self, kernel: DeviceOwner, function: Function, graphs: Graphs) -> None:
        self._kernel, self._function, self._graphs = kernel, function, graphs
        self._library = kernel.library()
        self.members: tuple[Argument, ...] = (*function.struct_members, *function.results)
        self._timed = over_time(function)
        self._where = f"{kernel.name}.{function.name}"
        self._entries: dict[str, DeviceEntry] = {}

    def __call__(
        self,
        element: str,
        device: int,
        dims: Mapping[str, int],
        words: Mapping[str, int | float],
        apart: Mapping[str, tuple[int, int]],
        options: Options,
        stream: int,
        workspace: Callable[[int], int],
    ) -> None:
        """Launch on a stream, or replay as a graph what came before with the same memory.

        ``words`` are addresses of arguments, results, lengths, mask and reset, and scalars, by
        name; what is left out is an upstream gradient that counts as zero, or a ``saved`` result
        that is not wanted. ``apart``: elements from step to step and from row to row, of arrays
        over time and flags that have gaps. Of ``options`` switches and steps are read.
        ``workspace`` gives the address of so many bytes of the device, which nothing else may write
        before the stream has passed. Raises DeviceError.
        """
        if 0 in dims.values() and not has_elements(self._function.results, dims):
            return
        self._kernel.require_device(device)
        with self._library.on(device):
            ready = self._ready(element, device, dims, words, apart, options, stream)
            self._launch(ready, workspace)

    def _ready(
        self,
        element: str,
        device: int,
        dims: Mapping[str, int],
        words: Mapping[str, int | float],
        apart: Mapping[str, tuple[int, int]],
        options: Options,
        stream: int,
    ) -> Launch:
        """Put together what the kernels of a call depend on."""
        entry = self._entries.get(element) or self._look(element)
        ffi = self._library.ffi
        lengths = [dims[name] for name in self._function.dims]
        if not dims["B"]:  # then there are no steps either
            lengths = [0 if name == "T" else dims[name] for name in self._function.dims]
        blas = self._kernel.blas(device)
        given = [
            _in_element(float(words.get(item.name, 0)), element)
            if item.is_scalar
            else words.get(item.name, 0)
            for item in self.members
        ]
        chosen = [words.get(name, number) for name, number in _numbers(options)]
        lies = self._strides(dims, apart) if apart else [0] * (2 * (len(self._timed) + len(FLAGS)))
        packed = entry.pack(
            *(*given, 0, 0, 0, TIERS["auto"], int(ffi.cast("intptr_t", blas)), *chosen),
            *(int(bool(apart)), *lies),
        )
        args = ffi.new(entry.struct)
        ffi.buffer(args)[:] = packed
        how = entry.how(*lengths, args)
        args.workspace_bytes = size = entry.size(*lengths, int(blas != ffi.NULL), how)
        key = repr((element, lengths, device, stream)).encode() + packed

        def run(on: int, workspace: int) -> int:
            """Launch the kernels."""
            args.workspace, args.stream = ffi.cast("void *", workspace), ffi.cast("void *", on)
            return entry.call(*lengths, args)

        return Launch(self._where, key, device, stream, size, run)

    def _launch(self, ready: Launch, workspace: Callable[[int], int]) -> None:
        if self._graphs.launch(self._library, ready, None):
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
            raise ready.fault(self._library.error(code))

    def _strides(
        self, dims: Mapping[str, int], apart: Mapping[str, tuple[int, int]]
    ) -> tuple[int, ...]:
        """Elements from step to step and from row to row of every array over time, and flags."""
        found: list[int] = []
        for item in self._timed:
            shape = tuple(axis_length(axis, dict(dims)) for axis in item.shape)
            found += apart.get(item.name) or dense_steps(shape)[:2]
        for name in FLAGS:
            found += apart.get(name) or (dims["B"], 1)
        return tuple(found)

    def _look(self, element: str) -> DeviceEntry:
        """Find what C exports for an element type."""
        names = cuda_symbols(self._kernel.interface, self._function, SUFFIXES[element])
        lib: Any = self._library.lib
        scalar = "d" if element == "float64" else "f"
        codes = "".join(scalar if item.is_scalar else "P" for item in self.members)
        chosen = "".join("P" if member.c_type.endswith("*") else "q" for member in MEMBERS)
        count = 2 * (len(self._timed) + len(FLAGS))
        packing = Struct(f"@{codes}PqPiP{chosen}i{count}q")
        struct = f"{names.struct} *"
        assert packing.size == self._library.ffi.sizeof(names.struct), names.struct
        called = (getattr(lib, name) for name in (names.call, names.how, names.workspace_size))
        found = self._entries[element] = DeviceEntry(struct, packing.pack, *called)
        return found


def _in_element(number: float, element: str) -> float:
    """A number as the kernel's arithmetic has it: infinite beyond float32, as C converts it."""
    return number if element == "float64" else c_float(number).value


@lru_cache(maxsize=64)
def _numbers(options: Options) -> tuple[tuple[str, int], ...]:
    """The members of an argument struct that options set, in order; 0 for addresses."""
    found = numbers(options)
    return tuple((member.name, found.get(member.name, 0)) for member in MEMBERS)
