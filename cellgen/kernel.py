"""Call a compiled cell by the names of its equations.

Input: an ``Interface`` and the sources it was generated with. Output: ``Kernel``, with one callable
per function of the interface: ``kernel.forward(x=..., h_prev=...)`` returns a named tuple.
Every call is checked: names, dtypes, shapes, memory. Arguments are never converted nor copied.
A check costs little because its verdict is kept: it depends on names, types, dtypes, shapes and
memory flags only, so a call like an earlier one needs a single look-up (see ``Plan``).
Not supported: devices, arrays other than NumPy's, non-contiguous arrays.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import math
import os
import re
import threading
import weakref
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as cached
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import _cffi_backend
import numpy as np

from .abi import (
    ERROR_CODES,
    PRECISIONS,
    WORKSPACE_ALIGNMENT,
    Argument,
    Function,
    Interface,
    axis_length,
    axis_terms,
)
from .build import Built, Library, SourceFiles, build, load
from .cache import digest
from .errors import ArgumentError, BuildError, CellgenError
from .memory import empty
from .threads import thread_count, threads_team

Array: TypeAlias = np.ndarray
Out: TypeAlias = Mapping[str, Array | None] | tuple[Array | None, ...] | Array | None
"""What ``out`` may be; an array alone is refused at run time, and typed so that ``**arrays``
passes."""
Pointer: TypeAlias = object

DTYPES = {np.dtype(np.float32): PRECISIONS[0], np.dtype(np.float64): PRECISIONS[1]}
RESERVED = ("name", "interface", "functions")
"""Attributes of a kernel that are not in ``dir(Kernel)``: no function can have these names."""
KEPT_PLANS = 256
KEPT_WORKSPACE = 256 << 20
"""Bytes of workspace that each thread keeps for its next call; a larger one is freed at once."""


class Kernel:
    """A cell whose functions are compiled C; nothing is compiled or loaded before it is needed.

    ``sources`` is the folder of a generated cell or the texts themselves. Safe to call from
    several threads and after a fork. Raises BuildError for an interface that cannot be called.
    """

    def __init__(
        self, interface: Interface, sources: Path | SourceFiles, *, include: Path | None = None
    ) -> None:
        self.name = interface.name
        self.interface = interface
        self.functions = {
            item.name: (TimeFunction if item.team else KernelFunction)(self, item)
            for item in interface.functions
        }
        self._sources = sources
        self._include = include
        self._library: Library | None = None
        self._built: Built | None = None
        self._lock = threading.RLock()
        _kernels.add(self)

    def __getattr__(self, name: str) -> KernelFunction:
        functions: dict[str, KernelFunction] = self.__dict__.get("functions", {})
        if name in functions:
            return functions[name]
        raise AttributeError(
            f"kernel {self.__dict__.get('name')} has no {name!r}; it has {', '.join(functions)}"
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __repr__(self) -> str:
        state = "loaded" if self._library else "not built yet" if not self._built else "built"
        return f"<kernel {self.name}: {', '.join(self.functions)}; {state}>"

    def sources(self) -> SourceFiles:
        """Read what the kernel is compiled from. Raises BuildError when files are missing."""
        if isinstance(self._sources, SourceFiles):
            return self._sources
        return SourceFiles.read(self._sources, self.name, self._include)

    def build(self) -> Built:
        """Compile the kernel unless the cache has it, and load it; tell which it was.

        Raises BuildError.
        """
        with self._lock:
            if self._built is None or self._library is None:
                built = build(self.sources(), self.interface)
                self._library = load(built.path)
                self._built = built
            return self._built

    def library(self) -> Library:
        """Return the loaded extension module, built first if need be. Raises BuildError."""
        if self._library is None:
            self.build()
        assert self._library is not None
        return self._library


_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()


def _renew_locks() -> None:
    """Give a forked child locks that no thread of its parent holds."""
    for kernel in _kernels:
        kernel._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


def load_folder(path: Path) -> Kernel:
    """Import a generated cell from any folder and return its kernel. Raises BuildError."""
    folder = Path(path).resolve()
    file = folder / "__init__.py"
    if not file.is_file():
        raise BuildError(
            f"{folder} holds no generated cell ({file.name} is missing); "
            f"write one with `cellgen build <cell> --out {folder.parent}`"
        )
    name = f"_cellgen_folder_{digest([('folder', str(folder))])}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise BuildError(
            f"{file} defines no `kernel`, so it is not a generated cell; "
            f"write it again with `cellgen build`"
        )
    return kernel


class Results(tuple[Array, ...]):
    """What a kernel function returns: a named tuple whose fields are the names of the results."""

    __slots__ = ()
    _fields: tuple[str, ...]
    _function: str

    if TYPE_CHECKING:

        def __new__(cls, *values: Array) -> Results: ...

        def __getattr__(self, name: str) -> Array: ...

        def _asdict(self) -> dict[str, Array]: ...

    def __reduce__(self) -> tuple[object, ...]:
        return _result, (self._function, self._fields, tuple(self))


# --- one function -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Span:
    """The extent of one array in memory, but for its address."""

    name: str
    bytes: int
    is_result: bool


@dataclass(frozen=True)
class Plan:
    """How to make a call whose arguments have known names, types, dtypes, shapes and flags.

    ``arrays`` and ``given`` are inputs and ``out`` arrays that enter the C struct, ``nulls`` the
    places in it of absent gradients, ``fresh`` the results to allocate, ``spans`` all
    arrays in it that have bytes, by place. A plan exists only where every check has passed, but for
    overlap: that takes addresses.
    """

    call: Callable[..., int]
    dims: tuple[int, ...]
    new: Callable[..., Pointer]
    struct: Pointer
    view: Callable[..., Pointer]
    pointer: Pointer
    dtype: np.dtype[np.floating]
    arrays: tuple[str, ...]
    nulls: tuple[tuple[int, Pointer], ...]
    given: tuple[str, ...]
    fresh: tuple[tuple[str, tuple[int, ...]], ...]
    workspace: int | None
    buffer: Callable[..., bytes]
    layout: Struct
    spans: dict[int, _Span]


class KernelFunction:
    """One function of a kernel: checks its arguments, calls the C, returns a named tuple."""

    def __init__(self, kernel: Kernel, function: Function) -> None:
        _require_callable(kernel.name, function)
        self.__name__ = function.name
        self.__qualname__ = f"{kernel.name}.{function.name}"
        self.__doc__ = _doc(self.__qualname__, function)
        self.__signature__ = _signature(function)
        self.function = function
        self.result = result_class(function.name, tuple(item.name for item in function.results))
        self._kernel = kernel
        self._fields = tuple(item.name for item in function.results)
        self._scalars = _scalar_places(function)
        self._nullable = tuple(
            item.name for item in function.arguments if item.optional or not item.used
        )
        self._plans: dict[object, Plan] = {}

    def __repr__(self) -> str:
        return f"<kernel function {_headline(self.__qualname__, self.function)}>"

    def __call__(self, /, *, out: Out = None, **arguments: object) -> Results:
        """Call the C function. Raises ArgumentError, BuildError, MemoryError."""
        scalars = self._take_scalars(arguments) if self._scalars else ()
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        results = {} if out is None else _take_out(self.__qualname__, self._fields, out)
        plan = self._find_plan(arguments, results)
        view, pointer = plan.view, plan.pointer
        members = [view(pointer, arguments[name]) for name in plan.arrays]
        for place, value in sorted((*plan.nulls, *scalars)) if plan.nulls else scalars:
            members.insert(place, value)
        for name, shape in plan.fresh:
            results[name] = np.empty(shape, plan.dtype)
        ordered = [results[name] for name in self._fields]
        members += [view(pointer, array) for array in ordered]
        if plan.workspace is not None:
            memory = _workspace(self.__qualname__, plan.workspace, plan.dims)
            members += (memory.pointer, memory.bytes)
        struct = plan.new(plan.struct, members)
        if plan.given:
            _refuse_overlap(self.__qualname__, plan, struct)
        code = plan.call(*plan.dims, struct)
        if code:
            raise _defect(self.__qualname__, plan, code)
        return tuple.__new__(self.result, ordered)

    def _find_plan(self, arguments: dict[str, object], results: dict[str, Array]) -> Plan:
        """Return the plan of an earlier call of the same kind, or check this one and make it."""
        try:
            key = (*arguments, *map(_look, arguments.values()), *map(_look, results.values()))
            plan = self._plans.get((key, *results) if results else key)
        except (AttributeError, TypeError):
            plan = None
        return plan if plan is not None else self._plan(arguments, results)

    def _take_scalars(self, arguments: dict[str, object]) -> list[tuple[int, float]]:
        """Move run-time scalars out of the arguments; defaults stand in for absent ones."""
        members = []
        for place, name, default in self._scalars:
            value = arguments.pop(name, default)
            if type(value) is not float:
                value = _scalar(self.__qualname__, name, value, default)
            if place >= 0:
                members.append((place, value))
        return members

    def _plan(self, arguments: dict[str, object], results: dict[str, Array]) -> Plan:
        """Check a call of a new kind and keep how to make it. Raises ArgumentError, BuildError."""
        checked = _check_call(self.__qualname__, self.function, arguments, results)
        plan = _make_plan(self._kernel, self.function, checked)
        key = (*arguments, *map(_look, arguments.values()), *map(_look, results.values()))
        if len(self._plans) >= KEPT_PLANS:
            self._plans.clear()
        self._plans[(key, *results) if results else key] = plan
        return plan


class TimeFunction(KernelFunction):
    """A function over time: runs on a team of threads, saves for its backward pass on request."""

    def __init__(self, kernel: Kernel, function: Function) -> None:
        super().__init__(kernel, function)
        self._fields = tuple(item.name for item in function.results if not item.saved)
        self._saves = tuple(item.name for item in function.results if item.saved)
        self._takes = tuple(item.name for item in function.arguments if item.saved)
        extra = ("saved",) if self._is_forward else ()
        self.result = result_class(function.name, (*self._fields, *extra))
        self.saved = result_class("saved", self._saves)

    @property
    def _is_forward(self) -> bool:
        return self.function.name == "sequence_forward"

    def __call__(  # type: ignore[override]  # adds keywords; arguments are checked at run time
        self,
        /,
        *,
        out: Out = None,
        save: bool = False,
        saved: Results | None = None,
        threads: int | None = None,
        **arguments: object,
    ) -> Results:
        """Call the C function over all steps. Raises ArgumentError, BuildError, MemoryError."""
        self._take_saved(arguments, saved)
        scalars = self._take_scalars(arguments)
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        results = {} if out is None else _take_out(self.__qualname__, self._fields, out)
        plan = self._find_plan(arguments, results)
        library = self._kernel.library()
        members = [plan.view(plan.pointer, arguments[name]) for name in plan.arrays]
        for place, value in sorted((*plan.nulls, *scalars)):
            members.insert(place, value)
        for name, shape in plan.fresh:
            if save or name not in self._saves:
                results[name] = _empty(self.__qualname__, name, shape, plan.dtype)
        for name in (*self._fields, *self._saves):
            array = results.get(name)
            members.append(library.ffi.NULL if array is None else plan.view(plan.pointer, array))
        memory = _workspace(self.__qualname__, plan.workspace or 0, plan.dims)
        team = threads_team(library, self._kernel.interface, thread_count(threads))
        members += (memory.pointer, memory.bytes, team)
        struct = plan.new(plan.struct, members)
        if plan.given:
            _refuse_overlap(self.__qualname__, plan, struct)
        code = plan.call(*plan.dims, struct)
        if code:
            raise _defect(self.__qualname__, plan, code)
        ordered = [results[name] for name in self._fields]
        if not self._is_forward:
            return tuple.__new__(self.result, ordered)
        kept = tuple.__new__(self.saved, [results[n] for n in self._saves]) if save else None
        return tuple.__new__(self.result, [*ordered, kept])

    def _take_saved(self, arguments: dict[str, object], saved: Results | None) -> None:
        """Unfold ``saved`` into the arguments that come from the forward pass."""
        if saved is None:
            if self._takes and not any(name in arguments for name in self._takes):
                raise ArgumentError(
                    f"{self.__qualname__}: saved is missing, expected what "
                    f"sequence_forward(..., save=True).saved holds ({', '.join(self._takes)}); "
                    f"pass saved=..."
                )
            return
        if getattr(saved, "_fields", None) != self._takes:
            raise ArgumentError(
                f"{self.__qualname__}: saved is {_type_name(saved)}, expected the arrays "
                f"{', '.join(self._takes) or '(none)'} of sequence_forward(..., save=True).saved"
            )
        arguments.update(zip(self._takes, saved, strict=True))


def _empty(where: str, name: str, shape: tuple[int, ...], dtype: np.dtype[np.floating]) -> Array:
    try:
        return empty(shape, dtype)
    except MemoryError as error:
        raise MemoryError(f"{where}: no memory for {name} of shape {shape}, {dtype}") from error


_look = attrgetter("__class__", "dtype", "shape", "flags.num")
"""Gather all of an array that a check depends on (but its address)."""


def _make_plan(kernel: Kernel, function: Function, checked: _Checked) -> Plan:
    """Look up the C names, sizes and types for a call that has been checked."""
    library = kernel.library()
    ffi, lib = library.ffi, library.lib
    suffix, c_type = DTYPES[checked.dtype]
    symbols = kernel.interface.symbols(function, suffix)
    dims = tuple(checked.dims[name] for name in function.dims)
    workspace = getattr(lib, symbols.workspace_size)(*dims) if function.workspace else None
    if workspace is not None and workspace < 0:
        raise _defect_of_size(f"{kernel.name}.{function.name}", checked.dims)
    layout, spans = _layout(function, checked)
    return Plan(
        call=getattr(lib, symbols.call),
        dims=dims,
        new=ffi.new,
        struct=ffi.typeof(f"{symbols.struct} *"),
        view=ffi.from_buffer,
        pointer=ffi.typeof(f"{c_type}[]"),
        dtype=checked.dtype,
        arrays=tuple(item.name for item in function.struct_members if item.name in checked.inputs),
        nulls=tuple(
            (place, ffi.NULL)
            for place, item in enumerate(function.struct_members)
            if item.optional and item.name not in checked.inputs
        ),
        given=tuple(checked.outputs),
        fresh=tuple(
            (item.name, _lengths(item, checked.dims))
            for item in function.results
            if item.name not in checked.outputs
        ),
        workspace=workspace,
        buffer=ffi.buffer,
        layout=layout,
        spans=spans,
    )


def _layout(function: Function, checked: _Checked) -> tuple[Struct, dict[int, _Span]]:
    """Describe the C struct to Python's ``struct``, to read the addresses in it at once."""
    codes, spans = [], {}
    for place, item in enumerate((*function.struct_members, *function.results)):
        codes.append(checked.dtype.char if item.is_scalar else "P")
        is_result = place >= len(function.struct_members)
        if not item.is_scalar and (is_result or item.name in checked.inputs):
            size = checked.dtype.itemsize * math.prod(_lengths(item, checked.dims))
            if size:
                spans[place] = _Span(item.name, size, is_result)
    return Struct("@" + "".join(codes)), spans


# --- memory -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Memory:
    """Aligned bytes, and the array that owns them."""

    pointer: Pointer
    bytes: int
    owner: Array


class _PerThread(threading.local):
    """What each thread keeps from one call to the next."""

    memory = _Memory(None, -1, np.empty(0, np.uint8))


_per_thread = _PerThread()
_ffi = _cffi_backend.FFI()


def _workspace(where: str, size: int, dims: tuple[int, ...]) -> _Memory:
    """Return workspace for a call: this thread's, grown if need be. Raises MemoryError."""
    memory = _per_thread.memory
    if memory.bytes >= size:
        return memory
    try:
        owner = np.empty(size + WORKSPACE_ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise MemoryError(
            f"{where}: no memory for a workspace of {size:,} bytes "
            f"(dimensions {dims}); call it with fewer rows or steps at a time"
        ) from error
    address = owner.ctypes.data
    address += -address % WORKSPACE_ALIGNMENT
    memory = _Memory(_ffi.cast("void *", address), size, owner)
    if size <= KEPT_WORKSPACE:
        _per_thread.memory = memory
    return memory


def _refuse_overlap(where: str, plan: Plan, struct: Pointer) -> None:
    """Raise ArgumentError where a result shares memory with another array of the call."""
    addresses = plan.layout.unpack_from(plan.buffer(struct))
    spans = {place: span for place, span in plan.spans.items() if addresses[place]}
    end = 0
    for start, place in sorted([(addresses[place], place) for place in spans]):
        if start < end:
            break
        end = start + spans[place].bytes
    else:
        return
    for place, span in spans.items():
        start, end = addresses[place], addresses[place] + span.bytes
        for other_place, other in spans.items():
            other_start = addresses[other_place]
            apart = end <= other_start or other_start + other.bytes <= start
            if span.is_result and place != other_place and not apart:
                raise _overlap(where, span, other)


def _overlap(where: str, result: _Span, other: _Span) -> ArgumentError:
    kind = "result" if other.is_result else "argument"
    return ArgumentError(
        f"{where}: out {result.name} shares memory with the {kind} {other.name}, expected memory "
        f"of its own (results are written while arguments are read); give another array"
    )


# --- checks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Checked:
    """A call that passed: its dtype, its dimensions, and the arrays that were given, by name."""

    dtype: np.dtype[np.floating]
    dims: dict[str, int]
    inputs: dict[str, Array]
    outputs: dict[str, Array]


@dataclass(frozen=True)
class _Item:
    """One array of a call, with what the interface says of it; ``label`` names it in messages."""

    argument: Argument
    array: Array
    label: str


def _check_call(
    where: str, function: Function, arguments: Mapping[str, object], results: dict[str, Array]
) -> _Checked:
    """Check names, types, dtypes, shapes and memory, in this order. Raises ArgumentError."""
    _check_names(where, function, arguments)
    inputs = [
        _Item(item, _as_array(where, item.name, arguments[item.name]), item.name)
        for item in _by_weight(function.arguments)
        if arguments.get(item.name) is not None
    ]
    outputs = [
        _Item(item, _as_array(where, f"out {item.name}", results[item.name]), f"out {item.name}")
        for item in function.results
        if item.name in results
    ]
    if not inputs:
        known = ", ".join(item.name for item in function.arguments if not item.is_scalar)
        raise ArgumentError(f"{where}: no array is given, expected some of {known}; pass one")
    dtype = _check_dtypes(where, inputs, outputs)
    for item in (*inputs, *outputs):
        _check_rank(where, item)
    dims, origins = _infer_dims(where, inputs)
    _check_dims(where, function, dims)
    for item in (*inputs, *outputs):
        _check_shape(where, item, dims, origins)
        _check_memory(where, item)
    for item in outputs:
        _check_writable(where, item)
    return _Checked(
        dtype,
        dims,
        {item.argument.name: item.array for item in inputs},
        {item.argument.name: item.array for item in outputs},
    )


def _by_weight(arguments: Iterable[Argument]) -> list[Argument]:
    """Order arguments so that those a call must have come first: they fix the dimensions."""
    return sorted(arguments, key=lambda item: item.optional or not item.used)


def _check_names(where: str, function: Function, arguments: Mapping[str, object]) -> None:
    known = [item.name for item in function.arguments]
    for name in arguments:
        if name not in known:
            raise ArgumentError(f"{where}: unknown argument {name!r}; {_suggestion(name, known)}")
    for item in function.arguments:
        needed = item.used and not item.optional and not item.is_scalar
        if needed and arguments.get(item.name) is None:
            found = "is None" if item.name in arguments else "is missing"
            raise ArgumentError(
                f"{where}: argument {item.name} {found}, expected an array {_shape_text(item)}; "
                f"pass {item.name}=..."
            )


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected {', '.join(known)}"


def _as_array(where: str, label: str, value: object) -> Array:
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return value
    raise ArgumentError(
        f"{where}: {label} is a {_type_name(value)}, expected a numpy.ndarray (nothing is copied "
        f"behind your back); pass np.ascontiguousarray({_last_word(label)}, dtype=np.float32)"
    )


def _scalar(where: str, name: str, value: object, default: float | None) -> float:
    """Convert a run-time scalar; only real numbers and 0-d arrays of them pass."""
    plain = (
        value.item() if isinstance(value, np.generic | np.ndarray) and not value.shape else value
    )
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        try:
            return float(plain)
        except OverflowError:
            pass
    found = f"an array {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
    raise ArgumentError(
        f"{where}: scalar {name} is {found}, expected one real number; "
        f"pass {name}={default} (its default) or leave it out"
    )


def _check_dtypes(
    where: str, inputs: Sequence[_Item], outputs: Sequence[_Item]
) -> np.dtype[np.floating]:
    """Find the one dtype of a call; most inputs decide which array is the odd one."""
    for item in (*inputs, *outputs):
        _check_dtype(where, item)
    counts = Counter(item.array.dtype for item in inputs)
    dtype, count = counts.most_common(1)[0]
    for item in (*inputs, *outputs):
        if item.array.dtype != dtype:
            others = f"{count} other arrays are" if count > 1 else f"{inputs[0].label} is"
            raise ArgumentError(
                f"{where}: {item.label} is {item.array.dtype}, but {others} {dtype}; "
                f"{_conversion(item, dtype)}"
            )
    return dtype.newbyteorder("=")


def _check_dtype(where: str, item: _Item) -> None:
    dtype = item.array.dtype
    if dtype in DTYPES:
        return
    native = dtype.newbyteorder("=")
    if native in DTYPES:
        raise ArgumentError(
            f"{where}: {item.label} is {native} in foreign byte order ({dtype.str}), expected "
            f"native order ({native.str}); {_conversion(item, native)}"
        )
    raise ArgumentError(
        f"{where}: {item.label} has dtype {dtype}, expected float32 or float64; "
        f"{_conversion(item, np.dtype(np.float32))}"
    )


def _conversion(item: _Item, dtype: np.dtype[np.floating]) -> str:
    if item.label != item.argument.name:
        return f"allocate it as np.empty({item.array.shape}, np.{dtype.name})"
    return f"pass {item.label}.astype(np.{dtype.name})"


def _check_rank(where: str, item: _Item) -> None:
    rank = len(item.argument.shape)
    if item.array.ndim != rank:
        raise ArgumentError(
            f"{where}: {item.label} has {item.array.ndim} axes, shape {item.array.shape}, expected "
            f"{rank}: {_shape_text(item.argument)}; reshape it"
        )


def _infer_dims(where: str, inputs: Sequence[_Item]) -> tuple[dict[str, int], dict[str, str]]:
    """Solve the axis lengths for the dimensions; also tell which argument fixed each.

    Axes of a single dimension come first; an axis like ``I + H`` gives the one still unknown.
    """
    dims: dict[str, int] = {}
    origins: dict[str, str] = {}
    axes = [
        (axis_terms(axis), length, item)
        for item in inputs
        for axis, length in zip(item.argument.shape, item.array.shape, strict=True)
    ]
    axes.sort(key=lambda axis: (len(axis[0]), axis[0][0][0]))
    progress = True
    while progress:
        progress = False
        for terms, length, item in axes:
            unknown = [(factor, name) for factor, name in terms if name and name not in dims]
            if len(unknown) != 1:
                continue
            factor, name = unknown[0]
            rest = sum(times * (dims[dim] if dim else 1) for times, dim in terms if dim != name)
            value, remainder = divmod(length - rest, factor)
            if remainder or value < 0:
                raise _no_such_length(where, item, length, terms, dims)
            dims[name] = value
            origins[name] = f"{item.label} {_shape_text(item.argument)}"
            progress = True
    return dims, origins


def _no_such_length(
    where: str, item: _Item, length: int, terms: Terms, dims: Mapping[str, int]
) -> ArgumentError:
    axis = " + ".join(f"{factor}*{name}" if factor > 1 else name for factor, name in terms)
    known = ", ".join(f"{name} = {dims[name]}" for _, name in terms if name in dims)
    return ArgumentError(
        f"{where}: {item.label} has shape {item.array.shape}, expected "
        f"{_shape_text(item.argument)}: "
        f"no length >= 0 makes {axis} equal {length}{f' with {known}' if known else ''}; "
        f"check the shape of {item.label}"
    )


def _check_dims(where: str, function: Function, dims: Mapping[str, int]) -> None:
    for name in function.dims:
        if name not in dims:
            givers = [item.name for item in function.arguments if name in _dims_of(item)]
            raise ArgumentError(
                f"{where}: nothing in this call tells the dimension {name}; "
                f"pass one of {', '.join(givers)}"
            )


def _check_shape(
    where: str, item: _Item, dims: Mapping[str, int], origins: Mapping[str, str]
) -> None:
    expected = _lengths(item.argument, dims)
    if item.array.shape == expected:
        return
    reasons = ", ".join(
        f"{name} = {dims[name]} from {origins[name]}" for name in _dims_of(item.argument)
    )
    raise ArgumentError(
        f"{where}: {item.label} has shape {item.array.shape}, expected "
        f"{_shape_text(item.argument)} = {expected} with {reasons}; make the two agree"
    )


def _check_memory(where: str, item: _Item) -> None:
    array = item.array
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{where}: {item.label} is not C-contiguous (shape {array.shape}, strides "
            f"{array.strides}), expected rows one after the other; {_compaction(item)}"
        )
    if not array.flags.aligned:
        raise ArgumentError(
            f"{where}: {item.label} is misaligned (address {array.ctypes.data:#x}), expected a "
            f"multiple of {array.dtype.alignment} bytes; {_compaction(item)}"
        )


def _compaction(item: _Item) -> str:
    if item.label != item.argument.name:
        return f"allocate it as np.empty({item.array.shape}, np.{item.array.dtype.name})"
    if item.array.flags.c_contiguous:
        return f"pass {item.label}.copy()"
    return f"pass np.ascontiguousarray({item.label})"


def _check_writable(where: str, item: _Item) -> None:
    if not item.array.flags.writeable:
        raise ArgumentError(
            f"{where}: {item.label} is read-only, expected an array to write into; "
            f"{_compaction(item)}"
        )


def _take_out(where: str, names: tuple[str, ...], out: object) -> dict[str, Array]:
    """Name the arrays of ``out``; None stands for a result to allocate. Raises ArgumentError."""
    if isinstance(out, tuple):
        if len(out) != len(names):
            raise ArgumentError(
                f"{where}: out has {len(out)} entries, expected {len(names)}: "
                f"({', '.join(names)}); put None where a new array will do"
            )
        return {name: array for name, array in zip(names, out, strict=True) if array is not None}
    if isinstance(out, Mapping):
        for name in out:
            if name not in names:
                raise ArgumentError(
                    f"{where}: out has an unknown result {name!r}; {_suggestion(str(name), names)}"
                )
        return {name: out[name] for name in names if out.get(name) is not None}
    raise ArgumentError(
        f"{where}: out is a {_type_name(out)}, expected a dict or a tuple of arrays; "
        f"pass out={{{names[0]!r}: array}}"
    )


def _defect(where: str, plan: Plan, code: int) -> CellgenError:
    meaning = ERROR_CODES.get(code, "an unknown error code")
    return CellgenError(
        f"{where}: the compiled function returned {code}: {meaning} (dimensions {plan.dims}, "
        f"{plan.dtype}); the arguments passed every check, so the sources do not fit the "
        "interface: write them again with `cellgen build`, and report it if that does not help",
        code="kernel",
    )


def _defect_of_size(where: str, dims: Mapping[str, int]) -> ArgumentError:
    return ArgumentError(
        f"{where}: the workspace for {dims} has no size that 64 bits can hold; "
        "call it with smaller dimensions"
    )


# --- words ------------------------------------------------------------------------------------

Terms: TypeAlias = tuple[tuple[int, str], ...]


def _scalar_places(function: Function) -> tuple[tuple[int, str, float], ...]:
    """List run-time scalars: place in the C struct (-1: not in it), name, default."""
    members = function.struct_members
    return tuple(
        (members.index(item) if item in members else -1, item.name, item.default)
        for item in function.arguments
        if item.default is not None
    )


def _require_callable(cell: str, function: Function) -> None:
    """Raise BuildError where an interface asks for what ``KernelFunction`` cannot do."""
    where = f"{cell}.{function.name}"
    if function.name in (*dir(Kernel), *RESERVED) or function.name.startswith("_"):
        raise BuildError(f"{where}: a kernel function cannot be named {function.name!r}; rename it")
    if any(item.name == "out" for item in function.arguments):
        raise BuildError(f"{where}: an argument cannot be named 'out'; rename it in the cell")
    given = {name for item in function.arguments for name in _dims_of(item)}
    for name in function.dims:
        if name not in given:
            raise BuildError(
                f"{where}: no argument has an axis with the dimension {name}, so a call cannot "
                "tell its length; add an argument that has it"
            )


@cached
def result_class(function: str, fields: tuple[str, ...]) -> type[Results]:
    """Make the named tuple of a function's results: ``weight_gradients`` gives WeightGradients."""
    name = "".join(word.capitalize() for word in function.split("_"))
    named = namedtuple(name, fields)  # type: ignore[misc]
    body = {
        "__slots__": (),
        "__module__": __name__,
        "__doc__": f"Results of {function}: {', '.join(fields)}.",
        "_function": function,
    }
    return type(name, (named, Results), body)


def _result(function: str, fields: tuple[str, ...], values: tuple[Array, ...]) -> Results:
    """Make results again from a pickle."""
    return result_class(function, fields)(*values)


def _dims_of(argument: Argument) -> list[str]:
    return [name for axis in argument.shape for _, name in axis_terms(axis) if name]


def _lengths(argument: Argument, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(axis_length(axis, dict(dims)) for axis in argument.shape)


def _shape_text(argument: Argument) -> str:
    """Write a shape as the equations do: ``(B, 2 H)``."""
    return "(" + ", ".join(re.sub(r"\*", " ", axis) for axis in argument.shape) + ")"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _last_word(label: str) -> str:
    return label.rpartition(" ")[2]


def _headline(where: str, function: Function) -> str:
    arguments = ", ".join(
        f"{item.name}={item.default}" if item.is_scalar else f"{item.name} {_shape_text(item)}"
        for item in function.arguments
    )
    results = ", ".join(f"{item.name} {_shape_text(item)}" for item in function.results)
    return f"{where}({arguments}) -> {results}"


def _doc(where: str, function: Function) -> str:
    """Document a function: its arguments with shapes and meaning, its results, its errors."""
    lines = [function.text or f"Compute {', '.join(item.name for item in function.results)}.", ""]
    lines += ["Arguments, by name; C-contiguous numpy arrays, all float32 or all float64:"]
    lines += [f"    {_argument_line(item)}" for item in function.arguments]
    lines += [
        "    out: dict or tuple of arrays to write results into; None where a new one will do"
    ]
    lines += ["", "Returns a named tuple:"]
    lines += [f"    {_argument_line(item)}" for item in function.results]
    lines += ["", "Raises ArgumentError for a wrong name, dtype, shape or memory; BuildError where"]
    lines += ["the kernel cannot be compiled or loaded; MemoryError. The GIL is released."]
    return "\n".join(lines)


def _argument_line(item: Argument) -> str:
    notes = [item.text] if item.text else []
    if item.is_scalar:
        return f"{item.name}: number, {item.default} when left out" + "".join(
            f"; {note}" for note in notes
        )
    if item.optional:
        notes.append("counts as zero when left out")
    if not item.used:
        notes.append("may be left out; checked, then ignored")
    return f"{item.name}: {_shape_text(item)}" + "".join(f"; {note}" for note in notes)


def _signature(function: Function) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for item in function.arguments:
        default: object = inspect.Parameter.empty
        if item.is_scalar:
            default = item.default
        elif item.optional or not item.used:
            default = None
        annotation = float if item.is_scalar else np.ndarray
        parameters.append(
            inspect.Parameter(item.name, kind, default=default, annotation=annotation)
        )
    parameters.append(inspect.Parameter("out", kind, default=None))
    return inspect.Signature(parameters)
