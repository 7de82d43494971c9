"""Put a checked call of a device together: its argument struct, and how far apart arrays lie.

Input: a call that passed every check. Output: ``LaunchPlan``, what calls of its kind share, and
``Launch``, what the kernels of one call depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Protocol

from cellgen.runtime.abi import Function, Interface, axis_length
from cellgen.runtime.call.arguments import Checked
from cellgen.runtime.call.views import ArrayView, dense_steps
from cellgen.runtime.device.arrays import SUFFIXES
from cellgen.runtime.device.cuda_abi import CudaSymbols, cuda_symbols, over_time
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.library import DeviceLibrary
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

    ``layout`` packs the members of the argument struct, which are ``values`` but for addresses;
    ``places`` tells where among them an array stands, by its label in ``DeviceCall``, ``tables`` as
    ``option <name>``. ``scalars`` are the members that are numbers of a call, by name; ``words``
    says where in the struct, in addresses, the workspace and the stream stand.
    """

    where: str
    device: int
    lengths: tuple[int, ...]
    prefix: bytes
    struct: Any
    layout: Struct
    values: tuple[object, ...]
    places: Mapping[str, int]
    scalars: tuple[tuple[str, str], ...]
    words: tuple[int, int]
    symbols: CudaSymbols
    team: bool

    def ready(
        self,
        kernel: DeviceOwner,
        addresses: Mapping[str, int],
        scalars: Mapping[str, float],
        stream: int,
    ) -> Launch:
        """Fill the argument struct of one call; its device is current. Raises DeviceError."""
        library, members, values = kernel.library(), self.places, [*self.values]
        ffi, lib, lengths, symbols = library.ffi, library.lib, self.lengths, self.symbols
        for label, address in addresses.items():
            if label in members:
                values[members[label]] = address or 1  # of nothing; the functions refuse NULL
        args = ffi.new(self.struct)
        ffi.memmove(args, self.layout.pack(*values), self.layout.size)
        for name, member in self.scalars:
            setattr(args, member, scalars[name])
        blas = kernel.blas(self.device)
        how = [getattr(lib, symbols.how)(*lengths, args)] if self.team else []
        size = getattr(lib, symbols.workspace_size)(*lengths, int(blas != ffi.NULL), *how)
        args.workspace_bytes, args.blas = size, blas
        key = b"%s %d " % (self.prefix, stream) + bytes(ffi.buffer(args))
        call, places = getattr(lib, symbols.call), self.words

        def run(on: int, workspace: int) -> int:
            """Launch the kernels."""
            words = ffi.cast("uintptr_t *", args)
            words[places[0]], words[places[1]] = workspace, on
            return int(call(*lengths, args))

        return Launch(self.where, key, self.device, stream, size, run)


def plan_launch(kernel: DeviceOwner, function: Function, call: DeviceCall) -> LaunchPlan:
    """Put together what launches of calls of one kind share; no address of a call matters."""
    checked, dims, ffi = call.checked, call.checked.dims, kernel.library().ffi
    symbols = cuda_symbols(kernel.interface, function, SUFFIXES[checked.element])
    counted = {**dims, "T": 0} if function.team and not dims["B"] else dims
    lengths = tuple(counted[name] for name in function.dims)
    known: dict[str, object] = {**call.settings}
    if function.team:
        known |= _layout(function, call)
    struct = ffi.typeof(f"{symbols.struct} *")
    codes, values, starts = "@", list[object](), dict[str, int]()
    for name, field in struct.item.fields:
        code, zeros = _packed(field.type)
        starts[name] = len(values)
        value = known.get(name, zeros)
        values += value if isinstance(value, list) else [value]
        codes += code
    layout = Struct(f"{codes}0P")
    assert layout.size == ffi.sizeof(struct.item), symbols.struct
    arrays = [item for item in function.struct_members if not item.is_scalar]
    places = {item.name: starts[c_member(item.name)] for item in arrays}
    places |= {f"out {item.name}": starts[c_member(item.name)] for item in function.results}
    places |= {f"option {name}": starts[name] for name in TABLES if name in starts}
    numbers = (item.name for item in function.struct_members if item.is_scalar)
    return LaunchPlan(
        f"{kernel.name}.{function.name}",
        checked.device,
        lengths,
        repr((symbols.call, lengths, checked.device)).encode(),
        struct,
        layout,
        tuple(values),
        places,
        tuple((name, c_member(name)) for name in numbers),
        (_word(ffi, struct.item, "workspace"), _word(ffi, struct.item, "stream")),
        symbols,
        function.team,
    )


def _word(ffi: Any, struct: Any, member: str) -> int:
    """Where in a struct a member stands, in addresses."""
    place, rest = divmod(int(ffi.offsetof(struct, member)), int(ffi.sizeof("void *")))
    assert not rest, member
    return place


_CODES = {"float": "f", "double": "d", "int": "i", "int64_t": "q"}
"""Types of members as ``struct`` packs them."""


def _packed(kind: Any) -> tuple[str, object]:
    """How ``struct`` packs a member, and what it is where nothing is set."""
    if kind.kind == "array":
        return f"{kind.length}{_CODES[kind.item.cname]}", [0] * kind.length
    return ("P", 0) if kind.kind == "pointer" else (_CODES[kind.cname], 0)


def launch(library: DeviceLibrary, graphs: Graphs, call: Launch, graph: bool | None) -> None:
    """Launch a call, or replay it."""
    if graph is not False and graphs.launch(library, call, graph):
        return
    workspace = _workspace(library, graphs, call)
    try:
        code = call.run(call.stream, workspace)
        if code:
            raise call.fault(library.error(code))
    finally:
        library.free(workspace, call.stream)


def _workspace(library: DeviceLibrary, graphs: Graphs, call: Launch) -> int:
    """Take a workspace; where memory is short, graphs give theirs back first."""
    try:
        return library.allocate(call.device, call.size, call.stream)
    except MemoryError:
        if not len(graphs):
            raise
        graphs.clear()
        return library.allocate(call.device, call.size, call.stream)


def _layout(function: Function, call: DeviceCall) -> dict[str, object]:
    """Tell how far apart steps and rows lie, of every array over time, mask and reset."""
    dims, strides = call.checked.dims, list[int]()
    found = []
    for item in over_time(function):
        view = call.views.get(item.name) or call.views.get(f"out {item.name}")
        shape = tuple(axis_length(axis, dims) for axis in item.shape)
        strides += dense_steps(shape)[:2] if view is None else view.apart[:2]
        found.append(view)
    for name in (name for name, option in TABLES.items() if len(option.axes) > 1):
        view = call.tables.get(name)
        strides += (dims["B"], 1) if view is None else view.apart
        found.append(view)
    strided = any(view is not None and not view.contiguous for view in found)
    return {"strided": int(strided), "strides": strides if strided else [0] * len(strides)}
