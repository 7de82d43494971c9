"""Put a checked call of a device together: its argument struct, and how far apart arrays lie.

Input: a call that passed every check. Output: ``LaunchPlan``, what calls of its kind share, and
``Launch``, what the kernels of one call depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cellgen.runtime.abi import Function, Interface
from cellgen.runtime.call.arguments import Checked
from cellgen.runtime.call.views import ArrayView
from cellgen.runtime.device.cuda_abi import over_time
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.device.packing import ArgumentStruct, Words, argument_struct, strides_of
from cellgen.runtime.device.settings import TABLES
from cellgen.runtime.names import c_member


class DeviceOwner(Protocol):
    """The kernel that a function belongs to."""

    name: str
    interface: Interface

    def digest(self) -> str:
        """Identify what the kernel computes."""

    def library(self) -> DeviceLibrary:
        """The loaded library."""

    def blas(self, device: int, path: str = "") -> object:
        """An open cuBLAS, or NULL."""

    def require_device(self, device: int) -> None:
        """Check that a device can run the kernel."""


@dataclass(frozen=True)
class DeviceCall:
    """A call that passed every check.

    ``views`` are those of arguments, and of results as ``out <name>``; ``tables`` those of arrays
    of its options; ``settings`` are members of the struct that are numbers.
    """

    checked: Checked
    views: Mapping[str, ArrayView]
    tables: Mapping[str, ArrayView]
    scalars: Mapping[str, float]
    settings: Mapping[str, int]
    stream: int


@dataclass(frozen=True)
class LaunchPlan:
    """How to launch calls that differ in addresses, scalars and stream alone.

    ``values`` is what the argument struct holds but for those. ``places`` tells where among it an
    array stands, by its label in ``DeviceCall``, ``tables`` as ``option <name>``; ``scalars`` the
    same of numbers of a call. ``prefix`` begins the key of a launch.
    """

    label: str
    device: int
    lengths: tuple[int, ...]
    prefix: bytes
    struct: ArgumentStruct
    values: tuple[int | float, ...]
    places: Mapping[str, int]
    scalars: tuple[tuple[str, int], ...]

    def ready(
        self,
        kernel: DeviceOwner,
        addresses: Mapping[str, int],
        scalars: Mapping[str, float],
        stream: int,
    ) -> Launch:
        """Fill the argument struct of one call; its device is current. Raises DeviceError."""
        places, values, struct = self.places, [*self.values], self.struct
        for label, address in addresses.items():
            if label in places:
                values[places[label]] = address or 1  # of nothing; the functions refuse NULL
        for name, place in self.scalars:
            values[place] = struct.number(scalars[name])
        blas, at = kernel.blas(self.device), (self.label, self.device, stream)
        return struct.launch(kernel.library(), at, self.lengths, values, blas, self.prefix)


def plan_launch(kernel: DeviceOwner, function: Function, call: DeviceCall) -> LaunchPlan:
    """Put together what launches of calls of one kind share; no address of a call matters."""
    checked, dims = call.checked, call.checked.dims
    counted = {**dims, "T": 0} if function.team and not dims["B"] else dims
    lengths = tuple(counted[name] for name in function.dims)
    struct = argument_struct(kernel.library(), kernel.interface, function, checked.element)
    starts, values = struct.starts, [*struct.zeros]
    for name, number in call.settings.items():
        if name in starts:
            values[starts[name]] = number
    if function.team:
        _lay_out(struct, values, function, call)
    arrays = [item for item in function.struct_members if not item.is_scalar]
    places = {item.name: starts[c_member(item.name)] for item in arrays}
    places |= {f"out {item.name}": starts[c_member(item.name)] for item in function.results}
    places |= {f"option {name}": starts[name] for name in TABLES if name in starts}
    numbers = (item.name for item in function.struct_members if item.is_scalar)
    return LaunchPlan(
        f"{kernel.name}.{function.name}",
        checked.device,
        lengths,
        struct.prefix(lengths, checked.device),
        struct,
        tuple(values),
        places,
        tuple((name, starts[c_member(name)]) for name in numbers),
    )


def _lay_out(struct: ArgumentStruct, values: Words, function: Function, call: DeviceCall) -> None:
    """Say how far apart steps and rows lie where an array has gaps."""
    written = {item.name for item in function.results}
    places = ((n, f"out {n}" if n in written else n) for n in (a.name for a in over_time(function)))
    views = {name: call.views[label] for name, label in places if label in call.views}
    views |= call.tables
    if all(view.contiguous for view in views.values()):
        return
    apart = {name: view.apart for name, view in views.items()}
    struct.lay_out(values, strides_of(function, call.checked.dims, apart))


def launch(library: DeviceLibrary, graphs: Graphs, call: Launch, graph: bool | None) -> None:
    """Launch a call, or replay it."""
    if graph is False or not graphs.launch(library, call, graph):
        workspace = _workspace(library, graphs, call)
        try:
            code = call.run(call.stream, workspace)
            if code:
                raise call.fault(library.error(code))
        finally:
            library.free(workspace, call.stream)
    if call.may_be_refused:
        library.warn_of_refusal(call.device)


def _workspace(library: DeviceLibrary, graphs: Graphs, call: Launch) -> int:
    """Take a workspace; where memory is short, graphs give theirs back first."""
    try:
        return library.allocate(call.device, call.size, call.stream)
    except MemoryError:
        if not len(graphs):
            raise
        graphs.clear()
        return library.allocate(call.device, call.size, call.stream)
