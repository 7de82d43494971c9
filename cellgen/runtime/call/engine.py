"""Make calls through the engine of a kernel: arrays in, and all between them and its results in C.

Input: the arrays, run-time scalars and options of a call. Output: ``EngineCall``, which C has bound
(``generated/include/cellgen_engine.h``): dimensions, strides, checkpoints and the words of the call
are its matter. What it refuses has been looked at by ``check_call`` before anything is said: that
has the words. Arrays are those of NumPy's own type, or the check is made by words at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from operator import and_, attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from cellgen.errors import CellgenError
from cellgen.runtime.abi import NO_GAPS, Argument, Function
from cellgen.runtime.build.library import ARRAYS, DIMS, REQUEST, SCALARS, Library, Types
from cellgen.runtime.call.arguments import (
    as_base,
    check_call,
    has_elements,
    refuse_overflow,
)
from cellgen.runtime.call.owner import Owner, defect_of_size
from cellgen.runtime.call.packed import Packed, PackedLayout
from cellgen.runtime.call.packing import Packing
from cellgen.runtime.call.settings import StepTables
from cellgen.runtime.call.stored import NUMBERS
from cellgen.runtime.call.workspace import Pointer
from cellgen.runtime.host.interrupt import LONG as LONG  # what tests shorten
from cellgen.runtime.numbers import ALL, as_numbers, number_of
from cellgen.runtime.options import FORWARD, NONE, ROWS, Options
from cellgen.runtime.results import Array

RUNS, NOTHING, NO_MEMORY = 0, 4, 5
"""What ``bind`` and ``prepare`` give (``cellgen_refusal``); others refuse the arrays."""
NOWHERE = -1
"""In the place of a member that an array is not."""
GAPLESS, ALIGNED, WRITABLE = 0x1, 0x100, 0x400
"""Bits of the flags of NumPy's arrays."""
Layouts: TypeAlias = tuple[PackedLayout | None, PackedLayout | None]
NO_LAYOUTS: Layouts = (None, None)
"""No packed weights, neither of a call nor of the forward pass that it runs once more."""
SURELY_COUNTED = 1 << 40
"""A product of all dimensions below which no array of a call has more bytes than can be counted."""
_F32: np.dtype[Any] = np.dtype(np.float32)
_F64: np.dtype[Any] = np.dtype(np.float64)
_USUAL = as_numbers(NONE)
_from_buffer, _cast, NULL = Types.from_buffer, Types.cast, Types.NULL
_NUMPYS, _FLOAT_KINDS = {np.ndarray}, ({_F32}, {_F64})
_LENT = ALIGNED | WRITABLE | GAPLESS
_flags, _kind = attrgetter("flags.num"), attrgetter("dtype")
_rank, _shape, _ZEROS = attrgetter("ndim"), attrgetter("shape"), repeat(0)


@dataclass(frozen=True)
class Again:
    """The forward pass that a backward pass runs once more.

    Its checkpoints, what it says of denormal numbers and of ``products``, and its packed weights.
    """

    states: tuple[Array, ...]
    flush: int
    products: str
    packing: Packing | None = None

    def layout(self, packed: Packed | None, fits: tuple[str | int, ...]) -> PackedLayout | None:
        """The weights of a call that are packed, as this forward pass reads them, if it does."""
        if packed is None or self.packing is None or packed.weights.products != self.products:
            return None
        return self.packing.layout(packed, fits, self.products)


class _Place(NamedTuple):
    """Where the engine has a value: what the descriptor says of it, and its members."""

    item: Argument
    value: Any
    member: int
    again: int


class _Views(NamedTuple):
    """The arrays of a call, the type that it computes in, and of those of 16 bits.

    ``stored`` is the type of arrays of 16 bits but weights, None: there are none of it; what they
    hold, weights too, is ``narrow``. Results without steps are of the type ``rest``.
    """

    rows: list[tuple[Any, ...]]
    dtype: np.dtype[Any]
    stored: np.dtype[Any] | None
    narrow: int
    rest: np.dtype[Any]


class Engine:
    """The engine of a kernel, for one of its functions."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        self.label = f"{kernel.name}.{function.name}"
        self._kernel, self.function = kernel, function
        self._required = {
            a.name for a in function.arguments if a.used and not (a.optional or a.is_scalar)
        }
        self._places: dict[str, _Place] = {}
        self._columns: tuple[dict[str, Any], ...] = ()
        """Of ``_places`` what C is told of each array first: its value and its members."""
        self._scalars: dict[str, tuple[int, int]] = {}
        self._number = self._forward = NOWHERE

    def _read(self) -> Library:
        """The kernel, once it is known where the engine has its values. Raises BuildError."""
        library = self._kernel.library()
        if self._places:
            return library
        functions = self._kernel.interface.functions
        names = [f.name for f in functions]
        self._number, self._forward = _index(names, self.function.name), _index(names, FORWARD)
        function, values = functions[self._number], values_of(library.cell, functions, self._number)
        own = [item.name for item in (*function.struct_members, *function.results)]
        again = []
        if self._forward != NOWHERE:
            again = [item.name for item in functions[self._forward].struct_members]
        items = (*function.arguments, *function.results)
        at = {item.name: (_index(own, item.name), _index(again, item.name)) for item in items}
        self._scalars = {item.name: at[item.name] for item in items if item.is_scalar}
        self._places = {
            item.name: _Place(item, values[item.name, item.shape], *at[item.name])
            for item in items
            if (item.name, item.shape) in values and not item.is_scalar
        }
        self._columns = tuple(
            {name: place[column] for name, place in self._places.items()} for column in (1, 2, 3)
        )
        return library

    def bind(
        self,
        function: Function,
        arguments: dict[str, object],
        results: dict[str, Array],
        options: Options = NONE,
        *,
        saves: bool = False,
        scalars: Iterable[tuple[str, float]] = (),
        again: Again | None = None,
    ) -> EngineCall:
        """Look at a call: its arguments and the results that have memory.

        ``function`` is the interface that it has, for words. Views in the place of NumPy's
        subclasses are written to ``arguments``. Raises ArgumentError, BuildError, MemoryError.
        """
        views = self._usual(arguments, results) if self._places else None
        if views is None:  # a first call is wrong before anything is compiled
            arguments.update({name: as_base(value) for name, value in arguments.items()})
            checked = check_call(self.label, function, arguments, results)
        library = self._read()
        if views is None:
            views = self._checked({**checked.inputs, **checked.outputs})
        ffi = library.ffi
        request, keep = self._request(library, views, options, saves, scalars, again)
        try:
            in_c = ffi.make(ARRAYS, views.rows)
        except IndexError:  # more axes than any value has
            check_call(self.label, function, arguments, results)
            raise
        sizes = ffi.make(DIMS, len(function.dims))
        memory = call_memory(library.engine.bytes)
        code = library.engine.bind(memory, library.cell, request, in_c, len(views.rows), sizes)
        if code not in (RUNS, NOTHING):
            check_call(self.label, function, arguments, results)
            raise self.failure(code)
        dims = tuple(sizes)
        named = dict(zip(function.dims, dims, strict=True))
        is_run = code == RUNS or has_elements(self.function.results, named)
        if code != RUNS or math.prod(dims) >= SURELY_COUNTED:
            refuse_overflow(self.label, self.function, named, views.dtype.itemsize)
        keep += (views, in_c, *arguments.values(), *results.values())
        return EngineCall(
            library.engine,
            memory,
            self,
            library,
            request,
            function,
            dims,
            named,
            views.dtype,
            views.stored,
            views.rest,
            is_run,
            keep,
        )

    def _request(
        self,
        library: Library,
        views: _Views,
        options: Options,
        saves: bool,
        scalars: Iterable[tuple[str, float]],
        again: Again | None,
    ) -> tuple[Any, list[object]]:
        """What a call is beside its arrays, in C, and what must stay alive."""
        ffi = library.ffi
        numbers = [(*self._scalars[name], number) for name, number in scalars]
        in_c = ffi.make(SCALARS, numbers) if numbers else NULL
        say = _USUAL if options is NONE else as_numbers(options, ALL * (options.outputs is None))
        kept = (NOWHERE, 0, 0)
        if again is not None:
            kept = self._forward, again.flush, number_of(ROWS["products"], again.products)
        how = self._number, views.dtype == _F64, views.narrow, saves, say
        return ffi.make(REQUEST, (*how, len(numbers), in_c, *kept)), [in_c]

    def _usual(
        self, arguments: Mapping[str, object], results: Mapping[str, Array]
    ) -> _Views | None:
        """The arrays of a call, of NumPy's own type and nothing unusual; None: words look first."""
        if not arguments or not self._required <= arguments.keys():
            return None
        arrays: list[Any] = [*arguments.values(), *results.values()]
        if {*map(type, arrays)} != _NUMPYS or not self._places.keys() >= {*arguments, *results}:
            return None
        flags = reduce(and_, map(_flags, arrays), ALIGNED | GAPLESS)
        written = reduce(and_, map(_flags, results.values()), _LENT) if results else _LENT
        if not flags & ALIGNED or written != _LENT:
            return None
        kinds = {*map(_kind, arrays)}
        if not flags & GAPLESS or kinds not in _FLOAT_KINDS:
            return self._mixed(kinds, arguments, results)
        kind = _F64 if arrays[0].dtype == _F64 else _F32
        return _Views(self._dense([*arguments, *results], arrays), kind, None, 0, kind)

    def _dense(self, names: Iterable[str], arrays: Iterable[Array]) -> list[tuple[Any, ...]]:
        """Arrays without gaps as C looks at them, as ``_row`` does one."""
        columns = [map(column.__getitem__, names) for column in self._columns]
        data, ranks, shapes = map(_from_buffer, arrays), map(_rank, arrays), map(_shape, arrays)
        return [*zip(*columns, data, _ZEROS, ranks, _ZEROS, shapes)]  # noqa: B905 - two are endless

    def _mixed(
        self,
        kinds: Iterable[np.dtype[Any]],
        arguments: Mapping[str, Any],
        results: Mapping[str, Array],
    ) -> _Views | None:
        """The arrays of a call with gaps, or some of 16 bits; None: of other types than these."""
        wide = {kind for kind in kinds if kind not in NUMBERS}
        if len(wide) > 1 or not wide <= {_F32, _F64}:
            return None
        pairs = (*arguments.items(), *results.items())
        return _views([(self._places[name], array) for name, array in pairs])

    def _checked(self, arrays: Mapping[str, Array]) -> _Views:
        """Arrays that passed the check by words, as C looks at them."""
        return _views([(self._places[n], a) for n, a in arrays.items() if n in self._places])

    def failure(self, code: int) -> MemoryError | CellgenError:
        """Why C refuses arrays that passed every check."""
        if code == NO_MEMORY:
            return MemoryError(f"{self.label}: no memory for the call; make it with fewer rows")
        return CellgenError(
            f"{self.label}: the engine refuses arrays that passed every check (code {code}), so "
            f"the sources do not fit the interface: write them again with `cellgen build`, and "
            f"report it if that does not help",
            code="kernel",
        )


@dataclass(eq=False)
class CallInC:
    """Memory of a call in C, by the engine that has bound it; its end lets others have it."""

    in_c: Any
    memory: Pointer
    spare: ClassVar[list[tuple[int, Pointer]]] = []
    """Memory of calls that have ended, and its bytes, for those that begin."""
    kept: ClassVar[int] = 8
    """At most so many; each call touches some 50 KB of what it has."""

    def __del__(self) -> None:
        in_c, memory = self.in_c, self.memory
        in_c.end(memory)
        if len(self.spare) < self.kept:
            self.spare.append((in_c.bytes, memory))


@dataclass(eq=False)
class EngineCall(CallInC):
    """A call that C has bound: ``prepare``, then ``run`` as often as wanted.

    ``dims`` are its dimensions in the order of the function, ``sizes`` by name. It computes in
    ``dtype``; ``stored`` is the type of its arrays over time where these have 16 bits, and results
    without steps are of the type ``rest``. Where it is not ``is_run`` no result has an element.
    ``workspace``: bytes that a run needs, once prepared. ``keep`` is what C has addresses of.
    """

    engine: Engine
    library: Library
    request: Any
    function: Function
    dims: tuple[int, ...]
    sizes: dict[str, int]
    dtype: np.dtype[Any]
    stored: np.dtype[Any] | None
    rest: np.dtype[Any]
    is_run: bool
    keep: list[object]
    workspace: int = 0

    def read(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arrays that the kernel reads, of those that the call has."""
        places = self.engine._places
        return {n: a for n, a in arguments.items() if n in places and places[n].member >= 0}

    def is_long(self) -> bool:
        """Whether a signal may end it."""
        return self.is_run and self.in_c.work(self.memory) >= LONG

    def prepare(
        self,
        results: Mapping[str, Array | None],
        tables: StepTables | None = None,
        layouts: Layouts = NO_LAYOUTS,
        states: Sequence[Array] = (),
        stop: Pointer = None,
    ) -> None:
        """Add new results, and what else a call has.

        ``layouts`` are weights that are packed for it, and for the forward pass that it runs once
        more, ``states`` those at checkpoints.

        Raises ArgumentError for a workspace that 64 bits cannot count, MemoryError.
        """
        if not self.is_run:
            return
        engine, ffi = self.engine, self.library.ffi
        arrays: list[Any] = [*results.values()]
        if self.stored is None and reduce(and_, map(_flags, arrays), GAPLESS):
            rows = engine._dense(results, arrays)
        else:
            places, kinds = engine._places, map(NUMBERS.get, map(_kind, arrays))
            pairs = zip(results, arrays, kinds, strict=True)
            rows = [_row(places[name], array, kind or 0) for name, array, kind in pairs]
        request, in_c = self.request, ffi.make(ARRAYS, rows)
        self.keep += (rows, in_c, *arrays, tables, layouts, states, stop)
        if tables is not None:
            self._put(tables)
        layout, again = layouts
        if layout is not None:
            request.packed, request.packed_bytes = layout.memory.pointer, layout.memory.bytes
        if again is not None:
            memory = again.memory
            request.packed_again, request.packed_again_bytes = memory.pointer, memory.bytes
        if states:
            addresses = ffi.new("void *[]", [address_of(array) for array in states])
            self.keep.append(addresses)
            request.checkpoints = addresses
        if stop is not None:
            request.stop = stop
        code = self.in_c.prepare(self.memory, request, in_c, len(rows))
        if code:
            raise engine.failure(code)
        self.workspace = self.in_c.size(self.memory)
        if self.workspace < 0:
            raise defect_of_size(engine.label, self.sizes)

    def _put(self, tables: StepTables) -> None:
        """Tell C what a call has beside arrays and numbers."""
        request = self.request
        if tables.lengths is not None:
            request.lengths = address_of(tables.lengths)
        for place, flags in enumerate((tables.mask, tables.reset)):
            if flags is not None:
                request.flags[place] = address_of(flags)
                is_dense = flags.flags.c_contiguous
                request.flag_stride[place] = NO_GAPS if is_dense else flags.strides
        if tables.plan is not None:
            request.plan = tables.plan

    def run(self, workspace: Pointer, size: int, team: Pointer = NULL) -> int:
        """Run it with a workspace, by a team; what C returns."""
        if not self.is_run:
            return 0
        code: int = self.in_c.run(self.memory, workspace, size, team)
        return code

    def addresses(self) -> tuple[int, ...]:
        """Where the function is, its dimensions and its words, for who calls it without ``run``.

        Nothing where 16 bits are widened or rounded, which ``run`` does.
        """
        ffi = self.library.ffi
        places = [ffi.new("uintptr_t *") for _ in range(3)]
        is_plain = self.in_c.words(self.memory, *places)
        return tuple(int(place[0]) for place in places) if is_plain else ()


def call_memory(size: int) -> Pointer:
    """Memory of a call in C, as it was left by an earlier one or by anybody."""
    try:
        known, memory = CallInC.spare.pop()
    except IndexError:  # of a list that is empty
        known = -1
    return memory if known == size else _from_buffer(np.empty(size, np.uint8))


def values_of(
    cell: Any, functions: Sequence[Function], number: int
) -> dict[tuple[str, tuple[str, ...]], Any]:
    """Where a descriptor has the values of the function of a number, by name and shape.

    What it takes and does not read, another function has.
    """
    return {
        (item.name, item.shape): cell.function[n].member + place
        for n, function in (*enumerate(functions), (number, functions[number]))
        for place, item in enumerate((*function.struct_members, *function.results))
    }


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else NOWHERE


def _views(pairs: Sequence[tuple[_Place, Array]]) -> _Views:
    """Arrays of a call as C looks at them."""
    dtype, stored, rest, narrow = _F32, None, None, 0
    for (item, *_), array in pairs:
        kind = array.dtype
        if kind not in NUMBERS:
            dtype = kind
            if not (item.over_time or item.saved or item.is_weight):
                rest = kind
            continue
        narrow = narrow or NUMBERS[kind]
        if stored is None and not (item.saved or item.is_weight):
            stored, narrow = kind, NUMBERS[kind]
    rows = [_row(place, array, NUMBERS.get(array.dtype, 0)) for place, array in pairs]
    return _Views(rows, dtype, stored, narrow, rest or stored or dtype)


def _row(place: _Place, array: Array, kind: int) -> tuple[Any, ...]:
    """An array as C looks at it; ``cellgen_array`` has the members."""
    _, value, member, again = place
    shape = array.shape
    if array.flags.c_contiguous:
        return value, member, again, _from_buffer(array), kind, len(shape), 0, shape
    strides = array.strides
    return value, member, again, address_of(array), kind, len(shape), 1, shape, strides


def address_of(array: Array) -> Pointer:
    """The address of an array's first element, whatever its strides."""
    return _cast("void *", array.__array_interface__["data"][0])
