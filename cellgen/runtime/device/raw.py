"""Launch a CUDA kernel by addresses: what a binding has when it has checked already.

Input: dimensions, addresses of arrays by name, a stream, and a function that gives workspace.
Output: none; results are written where the addresses point, when the stream comes to it. The
counterpart of ``call.raw``: nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import has_elements
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.launching import DeviceOwner
from cellgen.runtime.device.packing import ArgumentStruct, argument_struct, strides_of
from cellgen.runtime.device.settings import TABLES, TIERS, tier_of_run
from cellgen.runtime.directions import AUTO
from cellgen.runtime.names import c_member
from cellgen.runtime.numbers import c_numbers
from cellgen.runtime.options import Options, device_members

MEMBERS = tuple(device_members())


@dataclass(frozen=True)
class DeviceEntry:
    """One function in one element type: its struct, and where in it what is given by name stands.

    ``scalars`` are members that are numbers of the kernel's arithmetic.
    """

    struct: ArgumentStruct
    places: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, int], ...]


class RawDeviceFunction:
    """One function over time of a kernel, launched on addresses."""

    def __init__(self, kernel: DeviceOwner, function: Function, graphs: Graphs) -> None:
        self._kernel, self._function, self._graphs = kernel, function, graphs
        self._library = kernel.library()
        self._label = f"{kernel.name}.{function.name}"
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
        tier: str = AUTO,
    ) -> None:
        """Launch on a stream, or replay as a graph what came before with the same memory.

        ``words`` are addresses of arguments, results, lengths, mask and reset, and scalars, by
        name; what is left out is an upstream gradient that counts as zero, or a ``saved`` result
        that is not wanted. ``apart``: elements from step to step and from row to row, of arrays
        over time and flags that have gaps. Of ``options`` switches and steps are read.
        ``workspace`` gives the address of so many bytes of the device, which nothing else may write
        before the stream has passed. ``tier`` is ``"auto"`` or ``"half"``. Raises DeviceError.
        """
        if 0 in dims.values() and not has_elements(self._function.results, dims):
            return
        number, entry = TIERS[tier_of_run(tier)], self._entries.get(element) or self._look(element)
        self._kernel.require_device(device)
        with self._library.on(device):
            ready = self._ready(entry, device, dims, words, apart, options, number, stream)
            self._launch(ready, workspace)

    def _ready(
        self,
        entry: DeviceEntry,
        device: int,
        dims: Mapping[str, int],
        words: Mapping[str, int | float],
        apart: Mapping[str, tuple[int, int]],
        options: Options,
        tier: int,
        stream: int,
    ) -> Launch:
        """Put together what the kernels of a call depend on."""
        struct, values = entry.struct, [*entry.struct.zeros]
        names = self._function.dims
        if not dims["B"]:  # then there are no steps either
            dims = {**dims, "T": 0}
        lengths = tuple([dims[name] for name in names])
        for name, number in _numbers(options):
            values[struct.starts[name]] = number
        values[struct.starts["tier"]] = tier
        for name, place in entry.places:
            values[place] = words.get(name, 0)
        for name, place in entry.scalars:
            values[place] = struct.number(float(words.get(name, 0)))
        if apart:
            struct.lay_out(values, strides_of(self._function, dims, apart))
        at, prefix = (self._label, device, stream), struct.prefix(lengths, device)
        blas = self._kernel.blas(device)
        return struct.launch(self._library, at, lengths, values, blas, prefix)

    def _launch(self, ready: Launch, workspace: Callable[[int], int]) -> None:
        if not self._graphs.launch(self._library, ready, None):
            self._launch_in(ready, workspace)
        if ready.may_be_refused:
            self._library.warn_of_refusal(ready.device)

    def _launch_in(self, ready: Launch, workspace: Callable[[int], int]) -> None:
        """Launch in memory of the caller's."""
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

    def _look(self, element: str) -> DeviceEntry:
        """Find the struct of an element type, and where its members stand."""
        function = self._function
        struct = argument_struct(self._library, self._kernel.interface, function, element)
        members = (*function.struct_members, *function.results)
        starts = {item.name: struct.starts[c_member(item.name)] for item in members}
        numbers = {item.name for item in members if item.is_scalar}
        tables = ((name, struct.starts[name]) for name in TABLES)
        places = tuple((n, place) for n, place in starts.items() if n not in numbers)
        scalars = tuple((n, place) for n, place in starts.items() if n in numbers)
        entry = self._entries[element] = DeviceEntry(struct, (*places, *tables), scalars)
        return entry


@lru_cache(maxsize=64)
def _numbers(options: Options) -> tuple[tuple[str, int], ...]:
    """The members of an argument struct that options set, which are no addresses."""
    numbers = c_numbers(options)
    return tuple(
        (member.name, numbers[member.name]) for member in MEMBERS if member.name in numbers
    )
