"""Put a checked call of a device together: its argument struct, and how far apart arrays lie.

Input: a call that passed every check. Output: ``Launch``, what the kernels depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import cffi

from cellgen.runtime.abi import Argument, Function, Interface, axis_length
from cellgen.runtime.call.arguments import Checked
from cellgen.runtime.call.views import ArrayView, dense_steps
from cellgen.runtime.device.arrays import SUFFIXES
from cellgen.runtime.device.cuda_abi import cuda_symbols, over_time
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.device.settings import TABLES
from cellgen.runtime.names import c_member

_TABLE_TYPES = {"lengths": "int64_t *", "mask": "unsigned char *", "reset": "unsigned char *"}


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


def launch_of(kernel: DeviceOwner, function: Function, call: DeviceCall) -> Launch:
    """Put together what the kernels of a call depend on."""
    checked, dims, library = call.checked, call.checked.dims, kernel.library()
    ffi, lib = library.ffi, library.lib
    names = cuda_symbols(kernel.interface, function, SUFFIXES[checked.element])
    counted = {**dims, "T": 0} if function.team and not dims["B"] else dims
    lengths = [counted[name] for name in function.dims]
    blas = kernel.blas(checked.device)
    args = ffi.new(f"{names.struct} *")
    for item in (*function.struct_members, *function.results):
        _set(ffi, args, item, call)
    members: dict[str, object] = {**call.settings}
    if function.team:
        members |= _layout(function, call)
    for name, value in members.items():
        setattr(args, name, value)
    for name, view in call.tables.items():
        setattr(args, name, ffi.cast(_TABLE_TYPES[name], view.pointer))
    how = [getattr(lib, names.how)(*lengths, args)] if function.team else []
    size = getattr(lib, names.workspace_size)(*lengths, int(blas != ffi.NULL), *how)
    args.workspace_bytes, args.blas = size, blas
    key = repr((names.call, lengths, checked.device, call.stream)).encode()
    key += bytes(ffi.buffer(args))

    def run(on: int, workspace: int) -> int:
        """Launch the kernels."""
        args.workspace, args.stream = ffi.cast("void *", workspace), ffi.cast("void *", on)
        return int(getattr(lib, names.call)(*lengths, args))

    where = f"{kernel.name}.{function.name}"
    return Launch(where, key, checked.device, call.stream, size, run)


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


def _set(ffi: cffi.FFI, args: object, item: Argument, call: DeviceCall) -> None:
    """Fill one member of an argument struct; what is left out is NULL."""
    if item.is_scalar:
        setattr(args, c_member(item.name), call.scalars[item.name])
        return
    view = call.views.get(item.name) or call.views.get(f"out {item.name}")
    if view is not None:
        kind = ffi.typeof(args).item
        name = c_member(item.name)
        member = dict(kind.fields)[name].type
        # An empty array may have no address; the functions refuse NULL.
        setattr(args, name, ffi.cast(member, view.pointer or 1))
