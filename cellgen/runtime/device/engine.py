"""Bind calls whose arrays lie on a device, by the engine that binds those of the host.

Input: views of arrays by name, run-time scalars and options. Output: ``FarCall``: dimensions, the
words of the arrays, and options as C has them (``generated/include/cellgen_engine.h``). The engine
reads no array. It is compiled once per machine, by the compiler of the halves of the host; the
descriptor that it reads is made of the interface.
"""

from __future__ import annotations

import ctypes
import functools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cellgen.errors import CellgenError
from cellgen.runtime.abi import ABI_VERSION, NO_GAPS, Function, Interface
from cellgen.runtime.backend import WordsOfCall
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.described import Described, described
from cellgen.runtime.build.library import DIMS, ENGINE, FAR_ARRAYS, REQUEST, SCALARS, CData, Types
from cellgen.runtime.build.sources import ENGINE as STEM
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step
from cellgen.runtime.call.arguments import has_elements
from cellgen.runtime.call.engine import NOTHING, NOWHERE, RUNS, CallInC, call_memory, values_of
from cellgen.runtime.call.views import BYTES, ArrayView
from cellgen.runtime.device import nvcc, remembered
from cellgen.runtime.numbers import ALL, as_numbers
from cellgen.runtime.options import TABLES, Options
from cellgen.runtime.paths import include_folder
from cellgen.runtime.system import shared_suffix

FLAGS = ("-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared")


@functools.lru_cache(maxsize=64)
def _numbers(options: Options) -> tuple[int, ...]:
    """The numbers of options that have no tables."""
    return as_numbers(options, ALL)


def build() -> Path:
    """Find the engine's library in the cache, or compile and publish it.

    Raises BuildError: no C++ compiler, compiler errors, an unusable cache folder.
    """
    compiler = nvcc.cxx(may_recall=True)
    name = f"{STEM}.c"
    text = (include_folder() / name).read_text(encoding="utf-8")
    sources = SourceFiles.gather(STEM, {f"include/{name}": text}, None, include_folder())
    produced = f"{STEM}{shared_suffix()}"
    command = (*compiler.command, *FLAGS, f"include/{name}", "-Iinclude", "-o", produced)
    facts = [("command", shlex.join(command)), ("version", compiler.version)]
    entry = f"{STEM}-{cache.digest([*sources.files, ('abi', str(ABI_VERSION)), *facts])}"

    def make(place: Path) -> str:
        step = Step(f"compiling {name}", command, produced)
        steps.run(place, STEM, entry, ((step,),), nvcc.HOST)
        steps.require_loadable(place / produced, STEM, step, STEM)
        return produced

    path, cached = cache.find_or_make(entry, sources.files, make)
    remembered.keep(remembered.CXX, compiler.facts, is_new=not cached)
    return path


@functools.cache
def _library() -> tuple[CData, ctypes.CDLL]:
    """The engine, and what it lies in. Raises BuildError."""
    shared = ctypes.CDLL(str(build()))
    address = ctypes.addressof(ctypes.c_char.in_dll(shared, STEM))
    return Types.cast(ENGINE, address), shared


class _Value(NamedTuple):
    """What the descriptor says of an array, and which member of the function it is."""

    value: CData
    member: int


class _Members(NamedTuple):
    """A descriptor of elements of some bytes, and where it has the values of a function."""

    descriptor: Described
    values: Mapping[str, _Value]


class DeviceEngine:
    """Binds the calls of one function."""

    def __init__(self, interface: Interface, function: Function) -> None:
        self.function, self.label = function, f"{interface.name}.{function.name}"
        self._interface = interface
        self._members: dict[int, _Members] = {}
        names = [f.name for f in interface.functions]
        self._number = names.index(function.name)
        members = [item.name for item in (*function.struct_members, *function.results)]
        self._places = {name: number for number, name in enumerate(members)}
        self.options_at = len(members) + 2 * function.workspace + 1

    def bind(
        self,
        element: str,
        arrays: Iterable[tuple[str, ArrayView]],
        options: Options,
        scalars: Iterable[tuple[str, float]] = (),
        *,
        saves: bool = False,
    ) -> FarCall | None:
        """Look at the arrays of a call, results with memory among them; None: they do not fit.

        Raises BuildError.
        """
        own, (engine, _) = self._members.get(BYTES[element]) or self._of(BYTES[element]), _library()
        places = self._places
        numbers = []
        for name, number in scalars:
            if name in places:
                numbers.append((places[name], NOWHERE, number))
        rows = _rows(own.values, arrays)
        try:
            in_c = _make(FAR_ARRAYS, rows), _make(SCALARS, numbers)
        except (IndexError, OverflowError):  # more axes than any value has, lengths beyond 64 bits
            return None
        how = self._number, 0, 0, saves, _numbers(options), len(numbers), in_c[1], NOWHERE, 0, 0
        request, sizes = _make(REQUEST, how), _make(DIMS, len(self.function.dims))
        memory = call_memory(engine.bytes)
        code = engine.bind(memory, own.descriptor.cell, request, in_c[0], len(rows), sizes)
        if code not in (RUNS, NOTHING):
            return None
        dims = tuple(sizes)
        named = dict(zip(self.function.dims, dims, strict=True))
        is_run = code == RUNS or has_elements(self.function.results, named)
        words = WordsOfCall(dims, 0, 0)
        return FarCall(engine, memory, self, own, request, words, named, is_run, [*in_c])

    def defect(self) -> CellgenError:
        """The error for arrays that the engine refuses, and no check."""
        return CellgenError(
            f"{self.label}: the engine refuses arrays that passed every check: report it",
            code="kernel",
        )

    def _of(self, item_bytes: int) -> _Members:
        """Make the descriptor for elements of some bytes."""
        descriptor = described(self._interface, item_bytes)
        at = values_of(descriptor.cell, self._interface.functions, self._number)
        items = (*self.function.arguments, *self.function.results)
        values = {
            item.name: _Value(at[item.name, item.shape], self._places.get(item.name, NOWHERE))
            for item in items
            if (item.name, item.shape) in at and not item.is_scalar
        }
        own = self._members[item_bytes] = _Members(descriptor, values)
        return own


@dataclass(eq=False)
class FarCall(CallInC):
    """A call that the engine has bound: ``prepare``, then its kernels are launched.

    ``sizes`` are its dimensions by name. Where it is not ``is_run``, no result has an element.
    ``words`` have addresses once it is prepared, which lead somewhere as long as it lives.
    """

    engine: DeviceEngine
    members: _Members
    request: CData
    words: WordsOfCall
    sizes: dict[str, int]
    is_run: bool
    keep: list[object]
    element: str = ""
    device: int = 0

    def prepare(
        self, results: Iterable[tuple[str, ArrayView]], tables: Mapping[str, ArrayView]
    ) -> None:
        """Add results that are new, and tables of steps; say where the words are."""
        request, rows = self.request, _rows(self.members.values, results)
        in_c = _make(FAR_ARRAYS, rows)
        request.flag_stride = (NO_GAPS, NO_GAPS)
        for name, view in tables.items():
            address = Types.cast("void *", view.pointer or 1)
            place = _FLAGS.get(name)
            if place is None:
                request.lengths = address
                continue
            request.flags[place] = address
            if view.strides is not None:
                request.flag_stride[place] = view.strides
        code = self.in_c.prepare(self.memory, request, in_c, len(rows))
        if code:
            raise self.engine.defect()
        places = _make(_ADDRESSES)
        self.in_c.words(self.memory, places, places + 1, places + 2)
        members, options = places[2], 0
        if self.engine.function.team:
            options = Types.cast(_ADDRESS, members)[self.engine.options_at]
        self.words = WordsOfCall(self.words.dims, members, options)


_make = Types.make
_FLAGS = {name: place for place, name in enumerate(n for n in TABLES if len(TABLES[n]) > 1)}
"""Tables of steps and rows, by their places in a request."""
_ADDRESS, _ADDRESSES = map(Types({}).typeof, ("uintptr_t *", "uintptr_t[3]"))


def _rows(
    values: Mapping[str, _Value], arrays: Iterable[tuple[str, ArrayView]]
) -> list[tuple[Any, ...]]:
    """Arrays as the engine looks at them; of those without elements the address is no address."""
    rows = list[tuple[Any, ...]]()
    for name, view in arrays:
        place = values.get(name)
        if place is None:  # of no function of the cell
            continue
        value, member = place
        address, shape, strides = view.pointer or 1, view.shape, view.strides
        if strides is None:
            rows.append((value, member, NOWHERE, address, 0, len(shape), 0, shape))
        else:
            rows.append((value, member, NOWHERE, address, 0, len(shape), 1, shape, strides))
    return rows
