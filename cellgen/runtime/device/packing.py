"""The argument struct of a function on a device: packed from numbers and addresses, and launched.

Input: what the struct holds, in the order in which it is packed. Output: a ``Launch``. Nothing is
checked. Calls that passed every check and calls by addresses alone are packed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_float
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeAlias

from cellgen.runtime.abi import Function, Interface, axis_length
from cellgen.runtime.call.views import dense_steps
from cellgen.runtime.device.arrays import SUFFIXES
from cellgen.runtime.device.cuda_abi import cuda_symbols, over_time
from cellgen.runtime.device.graphs import Launch
from cellgen.runtime.device.halves import CLUSTER, DEVICE, OWN, SHARED
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.device.settings import TABLES, TIERS

Words: TypeAlias = list[int | float]
"""What a struct holds, in the order in which it is packed: addresses and numbers."""
STAYS, LACKS_DEVICE, LACKS_CLUSTER = 1 << 62, 1 << 61, 1 << 60
"""In what a call needs: its blocks would stay on the device; kernels that tell whether they do."""
PARTS = {
    0: (SHARED, OWN),
    LACKS_DEVICE: (SHARED, OWN, DEVICE),
    LACKS_CLUSTER: (SHARED, OWN, CLUSTER),
    LACKS_DEVICE | LACKS_CLUSTER: (SHARED, OWN, DEVICE, CLUSTER),
}
"""The parts of a function's kernels that a call may take, by what it lacks."""


@dataclass(frozen=True)
class ArgumentStruct:
    """The argument struct of a function in one element type, and the functions that take it.

    ``starts`` tells where among what is packed a member stands, by its name in C, and ``zeros`` is
    a struct in which nothing is set. ``words`` says where in it, counted in addresses, the
    workspace and the stream stand. ``how`` is None for functions of one step.
    """

    function: str
    element: str
    symbol: str
    kind: object
    packing: Struct
    starts: Mapping[str, int]
    zeros: tuple[int | float, ...]
    words: tuple[int, int]
    is_double: bool
    call: Callable[..., int]
    size: Callable[..., int]
    how: Callable[..., int] | None

    def number(self, value: float) -> float:
        """A number as its arithmetic has it: infinite beyond float32, as C converts it."""
        return value if self.is_double else c_float(value).value

    def prefix(self, lengths: tuple[int, ...], device: int) -> bytes:
        """What the kernels of a call depend on beside the struct and the stream."""
        return repr((self.symbol, lengths, device)).encode()

    def lay_out(self, values: Words, strides: list[int]) -> None:
        """Say how far apart steps and rows lie, where something has gaps."""
        start = self.starts["strides"]
        values[self.starts["strided"]] = 1
        values[start : start + len(strides)] = strides

    def launch(
        self,
        library: DeviceLibrary,
        at: tuple[str, int, int],
        lengths: tuple[int, ...],
        values: Words,
        blas: object,
        prefix: bytes,
    ) -> Launch:
        """Fill a struct; ``at`` says for messages and kernels where: function, device, stream.

        Kernels that the call may take are loaded. Raises BuildError, DeviceError.
        """
        ffi, (label, device, stream) = library.ffi, at
        args = ffi.new(self.kind)
        ffi.memmove(args, self.packing.pack(*values), self.packing.size)
        args.blas = blas
        needed = 0 if self.how is None else self.how(*lengths, args)
        while library.loads and library.load(
            device, self.element, self.function, PARTS[needed & (LACKS_DEVICE | LACKS_CLUSTER)]
        ):
            needed = 0 if self.how is None else self.how(*lengths, args)
        how = () if self.how is None else (needed,)
        args.workspace_bytes = size = self.size(*lengths, int(blas != ffi.NULL), *how)
        key = b"%s %d " % (prefix, stream) + bytes(ffi.buffer(args))
        call, places = self.call, self.words

        def run(on: int, workspace: int) -> int:
            """Launch the kernels."""
            words = ffi.cast("uintptr_t *", args)
            words[places[0]], words[places[1]] = workspace, on
            return int(call(*lengths, args))

        is_open = values[self.starts["tier"]] in (TIERS["together"], TIERS["half"])
        waits = is_open and needed & STAYS != 0
        return Launch(label, key, device, stream, size, run, waits)


def argument_struct(
    library: DeviceLibrary, interface: Interface, function: Function, element: str
) -> ArgumentStruct:
    """Find the struct of a function in one element type, and what takes it."""
    names, ffi = cuda_symbols(interface, function, SUFFIXES[element]), library.ffi
    lib = library.of(element)
    kind = ffi.typeof(f"{names.struct} *")
    codes, zeros, starts = "@", list[int | float](), dict[str, int]()
    for name, member in kind.item.fields:
        is_array = member.type.kind == "array"
        one = member.type.item if is_array else member.type
        count = member.type.length if is_array else 1
        starts[name] = len(zeros)
        zeros += [0] * count
        codes += f"{count}{'P' if one.kind == 'pointer' else _CODES[one.cname]}"
    packing = Struct(f"{codes}0P")
    assert packing.size == ffi.sizeof(kind.item), names.struct
    return ArgumentStruct(
        function.name,
        element,
        names.call,
        kind,
        packing,
        starts,
        tuple(zeros),
        (_word(ffi, kind.item, "workspace"), _word(ffi, kind.item, "stream")),
        element == "float64",
        getattr(lib, names.call),
        getattr(lib, names.workspace_size),
        getattr(lib, names.how) if function.team else None,
    )


_CODES = {"float": "f", "double": "d", "int": "i", "int64_t": "q"}
"""Types of members as ``struct`` packs them."""


def _word(ffi: Any, struct: Any, member: str) -> int:
    """Where in a struct a member stands, in addresses."""
    place, rest = divmod(int(ffi.offsetof(struct, member)), int(ffi.sizeof("void *")))
    assert not rest, member
    return place


def strides_of(
    function: Function, dims: Mapping[str, int], apart: Mapping[str, tuple[int, ...]]
) -> list[int]:
    """Elements from step to step and from row to row of arrays over time, mask and reset.

    Of what ``apart`` does not name, one row follows the other.
    """
    strides = list[int]()
    for item in over_time(function):
        shape = tuple(axis_length(axis, dict(dims)) for axis in item.shape)
        strides += (apart.get(item.name) or dense_steps(shape))[:2]
    for name in (name for name, option in TABLES.items() if len(option.axes) > 1):
        strides += (apart.get(name) or (dims["B"], 1))[:2]
    return strides
