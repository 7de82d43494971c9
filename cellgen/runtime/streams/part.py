"""One layer of a stream: its weights laid out, its states, and the three calls that it makes.

Input: the kernel of a cell and its weights. Output: ``StreamedLayer``, whose arrays, workspace and
structs of C are made once; a step changes numbers in them alone. States lie twice, and each call
reads the one copy and writes the other, so that a step which fails leaves them as they were; the
third call is of some rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.build.library import DIMS
from cellgen.runtime.call.arguments import DTYPES, as_scalar, lengths, suggestion
from cellgen.runtime.call.dimensions import dims_of
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.call.owner import Owner
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.packing import Packing
from cellgen.runtime.call.workspace import AlignedBytes, new_memory
from cellgen.runtime.names import c_member
from cellgen.runtime.numbers import c_numbers
from cellgen.runtime.options import FULL, Options
from cellgen.runtime.results import Array
from cellgen.runtime.streams.rows import StreamSizes

FORWARD = "sequence_forward"
EVEN, ODD, SOME = 0, 1, 2
"""Calls: from the first copy of the states to the second, back, and of some rows."""


@dataclass(frozen=True, eq=False)
class StreamedArray:
    """Memory of an input or an output; ``over_time``: (T, B, ...), else (B, ...)."""

    name: str
    units: tuple[int, ...]
    memory: Array
    over_time: bool

    def view(self, steps: int, rows: int, *, step: bool = False) -> Array:
        """Look at so many steps and rows; with ``step`` at one step without its axis."""
        leading = (steps, rows) if self.over_time and not step else (rows,)
        count = math.prod(leading) * math.prod(self.units)
        return self.memory[:count].reshape(*leading, *self.units)


class StreamedLayer:
    """One layer: ``inputs`` and ``output`` are its arrays, ``states`` its states (room, ...).

    ``below`` is the array that the layer below gives, None for the first. Raises ArgumentError,
    BuildError, MemoryError.
    """

    def __init__(
        self,
        label: str,
        kernel: Owner,
        weights: Mapping[str, object],
        sizes: StreamSizes,
        dims: Mapping[str, object],
        *,
        output: str,
        products: str | None,
        shared: Mapping[str, StreamedArray],
    ) -> None:
        function = next(one for one in kernel.interface.functions if one.name == FORWARD)
        self.label, self._sizes = label, sizes
        self.cell, self.digest = kernel.name, kernel.interface.digest
        self._packed, self._weights = _laid_out(label, kernel, function, weights, products)
        self.dtype = next((a.dtype for a in self._weights.values()), np.dtype(np.float32))
        self.dims = _dims(label, function, self._packed, dims)
        self._lengths = {**self.dims, "T": sizes.block, "B": sizes.room}
        library = kernel.library()
        suffix, self._c_type = DTYPES[self.dtype]
        self._entry, self._ffi = library.entry(FORWARD, suffix), library.ffi
        self._function, self._scalars = function, _scalars(label, function, weights)
        self.inputs = tuple(
            self._shared(item, shared[item.name]) if item.name in shared else self._array(item)
            for item in function.arguments
            if item.role in ("input", "static") and item.used
        )
        self.output = self._array(next(i for i in function.results if i.name == output))
        states = [item for item in function.arguments if item.role == "state"]
        self.initial = tuple(item.initial for item in states)
        self.names = tuple(item.name for item in states)
        shapes = [self._shape(item) for item in states]
        self.copies = [[np.empty(shape, self.dtype) for shape in shapes] for _ in range(4)]
        for row in (EVEN, ODD):
            self.begin(row, slice(None))
        self._memory = AlignedBytes(None, -1, np.empty(0, np.uint8))
        self._options = self._make_options(output)
        self.structs = [self._struct(*pair) for pair in ((0, 1), (1, 0), (2, 3))]
        self.call = self._entry.call
        for steps in {1, sizes.block}:
            self.fit(self.sizes(steps, sizes.room))

    def sizes(self, steps: int, rows: int) -> Any:
        """Dimensions of a call, as C takes them."""
        known = {**self.dims, "T": steps, "B": rows}
        return self._ffi.make(DIMS, [known[name] for name in self._function.dims])

    def fit(self, sizes: Any) -> None:
        """See that the workspace is large enough for calls of such dimensions.

        Raises MemoryError; ArgumentError for one that 64 bits cannot count.
        """
        needed = self._entry.size(sizes, self._options)
        if needed < 0:
            raise self._too_large("the workspace")
        if needed <= self._memory.bytes:
            return
        self._memory = new_memory(self.label, needed, tuple(sizes))
        for struct in self.structs:
            struct.workspace, struct.workspace_bytes = self._memory.pointer, self._memory.bytes

    def begin(self, copy: int, row: int | slice) -> None:
        """Let the states of a row, or of rows, be as they begin."""
        for array, initial in zip(self.copies[copy], self.initial, strict=True):
            array[row] = initial

    def put(self, copy: int, states: Sequence[Array]) -> None:
        """Give the first rows other states."""
        for array, state in zip(self.copies[copy], states, strict=True):
            array[: len(state)] = state

    def move(self, copy: int, source: int, target: int) -> None:
        """Give a row the states of another one."""
        for array in self.copies[copy]:
            array[target] = array[source]

    def gather(self, copy: int, rows: Array) -> None:
        """Lay the states of some rows side by side, where the call of some rows reads them."""
        for array, picked in zip(self.copies[copy], self.copies[2], strict=True):
            np.take(array, rows, axis=0, out=picked[: len(rows)], mode="clip")

    def scatter(self, copy: int, rows: Array) -> None:
        """Put the states that the call of some rows has made back into theirs."""
        for array, after in zip(self.copies[copy], self.copies[3], strict=True):
            array[rows] = after[: len(rows)]

    # --- made once ---

    def _shape(self, item: Argument) -> tuple[int, ...]:
        """The shape of an array of all rows. Raises ArgumentError for one beyond 64 bits."""
        shape = lengths(item, self._lengths)
        if math.prod(shape) * self.dtype.itemsize > accept.LARGEST:
            raise self._too_large(item.name)
        return shape

    def _too_large(self, what: str) -> ArgumentError:
        return ArgumentError(
            f"{self.label}: {what} of {self._sizes.room} rows has no size that 64 bits can hold; "
            f"pass fewer rows, a smaller room, or a smaller block"
        )

    def _array(self, item: Argument) -> StreamedArray:
        """Memory of an input or an output, zeros."""
        shape = self._shape(item)
        units = shape[2 if item.over_time else 1 :]
        memory = np.zeros(math.prod(shape), self.dtype)
        return StreamedArray(item.name, units, memory, item.over_time)

    def _shared(self, item: Argument, array: StreamedArray) -> StreamedArray:
        """An input that another layer gives or shares. Raises ArgumentError for another width."""
        wide, gives = lengths(item, self._lengths), array.memory
        if math.prod(wide) != gives.size or gives.dtype != self.dtype:
            width = math.prod(wide[2 if item.over_time else 1 :])
            raise ArgumentError(
                f"{self.label}: {item.name} {shape_text(item)} is {width} wide, of {self.dtype}, "
                f"expected {math.prod(array.units)} of {gives.dtype}, as {array.name} is, which "
                f"it reads; correct the weights"
            )
        return replace(array, name=item.name)

    def _make_options(self, output: str) -> Any:
        """The options of every call, in C: packed weights, and which output is formed."""
        chosen = Options(outputs=(output,), products=self._products())
        members: dict[str, object] = dict(c_numbers(chosen))
        if self._packed is not None:
            (layout,) = self._packed.layouts.values()
            members |= layout.members
        return self._ffi.new("cellgen_options *", members)

    def _products(self) -> str:
        return FULL if self._packed is None else self._packed.weights.products

    def _struct(self, reads: int, writes: int) -> Any:
        """The struct of a call that reads one copy of the states and writes another."""
        arrays: dict[str, Array] = {**self._weights}
        arrays |= {array.name: array.memory for array in (*self.inputs, self.output)}
        arrays |= dict(zip(self.names, self.copies[reads], strict=True))
        final = {item.of: item.name for item in self._function.results if item.role == "final"}
        finals = [final[name] for name in self.names]
        arrays |= dict(zip(finals, self.copies[writes], strict=True))
        known = {i.name for i in (*self._function.struct_members, *self._function.results)}
        members: dict[str, object] = {
            c_member(name): self._ffi.cast(f"{self._c_type} *", array.ctypes.data)
            for name, array in arrays.items()
            if name in known
        }
        members |= {c_member(name): value for name, value in self._scalars.items()}
        return self._ffi.make(self._entry.struct, {**members, "options": self._options})


def _laid_out(
    label: str,
    kernel: Owner,
    function: Function,
    weights: Mapping[str, object],
    products: str | None,
) -> tuple[Packed | None, dict[str, Array]]:
    """Copies of the weights, which nobody changes, and their layout. Raises ArgumentError."""
    known = [item.name for item in function.arguments if item.is_weight or item.is_scalar]
    for name in weights:
        if name not in known:
            raise ArgumentError(f"{label}: unknown {name!r} in weights; {suggestion(name, known)}")
        accept.refuse_masked(label, name, weights[name])
    items = [item for item in function.arguments if item.is_weight]
    own = {
        item.name: np.array(weights[item.name], order="C")
        for item in items
        if isinstance(weights.get(item.name), np.ndarray)
    }
    for name, array in own.items():
        if array.dtype not in DTYPES:
            raise ArgumentError(
                f"{label}: {name} is of {array.dtype}, expected float32 or float64; convert the "
                f"weights (products= rounds what products read)"
            )
    if not items:
        return None, own
    said = {} if products is None else {"products": products}
    arguments = {**weights, **own, **said}
    try:
        packed = Packing(kernel, function).pack(arguments)
    except ArgumentError as error:
        raise ArgumentError(f"{label}: {error.args[0]}") from error
    return packed, {n: a for n, a in packed.weights.arguments if isinstance(a, np.ndarray)}


def _scalars(label: str, function: Function, weights: Mapping[str, object]) -> dict[str, float]:
    """Run-time scalars: those given among the weights, else their defaults."""
    return {
        item.name: as_scalar(label, item.name, weights.get(item.name, item.default), item.default)
        for item in function.arguments
        if item.is_scalar and item.used
    }


def _dims(
    label: str, function: Function, packed: Packed | None, stated: Mapping[str, object]
) -> dict[str, int]:
    """The dimensions of a layer but for steps and rows: of weights, or given by name.

    Raises ArgumentError for one that is missing, unknown, or another than weights have.
    """
    own = {} if packed is None else packed.dims
    needed = [name for name in function.dims if name not in {"T", "B"}]
    for name in stated:
        accept.choice(label, "a dimension", name, needed)
    dims = {name: accept.whole(label, name, size) for name, size in stated.items()}
    for name in needed:
        if dims.setdefault(name, own.get(name, -1)) == -1:
            items = [i.name for i in function.arguments if name in dims_of(i)]
            raise ArgumentError(
                f"{label}: no weight tells the dimension {name} of {', '.join(items)}; pass "
                f"{name}=..."
            )
        if dims[name] != own.get(name, dims[name]):
            raise ArgumentError(
                f"{label}: {name} is {dims[name]}, but the weights have {own[name]}; leave it out"
            )
    return dims
