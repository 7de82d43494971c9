"""Call one function of a compiled cell by the names of its equations.

Every call is checked: names, dtypes, shapes, memory. Arguments are never converted nor copied.
A check costs little because its verdict is kept: it depends on names, types, dtypes, shapes and
memory flags only, so a call like an earlier one needs a single look-up (see ``Plan``).
Not supported: devices, arrays other than NumPy's, non-contiguous arrays.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
from typing import Protocol, TypeAlias

import _cffi_backend
import numpy as np

from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES, WORKSPACE_ALIGNMENT, Function, Interface
from cellgen.runtime.build.compiler import Built, Library
from cellgen.runtime.call.arguments import (
    DTYPES,
    Checked,
    as_base,
    as_scalar,
    check_call,
    document,
    has_elements,
    headline,
    lengths,
    refuse_overflow,
    require_callable,
    scalar_places,
    signature_of,
    take_out,
)
from cellgen.runtime.host.interrupt import heeding_signals
from cellgen.runtime.host.memory import hold
from cellgen.runtime.results import Array, Results, result_class

Out: TypeAlias = Mapping[str, Array | None] | tuple[Array | None, ...] | Array | None
"""What ``out`` may be; an array alone is refused at run time, and typed so that ``**arrays``
passes."""
Pointer: TypeAlias = object

KEPT_PLANS = 256
KEPT_WORKSPACE = 256 << 20
"""Bytes of workspace that each thread keeps for its next call; a larger one is freed at once."""


class Owner(Protocol):
    """The kernel that a function belongs to."""

    name: str
    interface: Interface

    def digest(self) -> str: ...

    def build(self) -> Built: ...

    def library(self) -> Library: ...


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
    element: Pointer
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

    def __init__(self, kernel: Owner, function: Function) -> None:
        require_callable(kernel.name, function)
        self.__name__ = function.name
        self.__qualname__ = f"{kernel.name}.{function.name}"
        self.__doc__ = document(self.__qualname__, function)
        self.__signature__ = signature_of(function)
        self.function = function
        self.result = result_class(function.name, tuple(item.name for item in function.results))
        self._kernel = kernel
        self._fields = tuple(item.name for item in function.results)
        self._scalars = scalar_places(function)
        self._nullable = tuple(
            item.name for item in function.arguments if item.optional or not item.used
        )
        self._plans: dict[object, Plan] = {}

    def __repr__(self) -> str:
        return f"<kernel function {headline(self.__qualname__, self.function)}>"

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as the kernel and a name; a copy is the function itself."""
        return getattr, (self._kernel, self.__name__)

    def __call__(self, /, *, out: Out = None, **arguments: object) -> Results:
        """Call the C function. Raises ArgumentError, BuildError, MemoryError."""
        plan, members, ordered = self._gather(out, arguments)
        if plan.workspace is not None:
            memory = take_workspace(self.__qualname__, plan.workspace, plan.dims)
            members += (memory.pointer, memory.bytes)
        struct = plan.new(plan.struct, members)
        if plan.given:
            refuse_overlap(self.__qualname__, plan, struct)
        code = plan.call(*plan.dims, struct)
        if code:
            raise defect(self.__qualname__, plan, code)
        return tuple.__new__(self.result, ordered)

    def bind(self, /, *, out: Out = None, **arguments: object) -> BoundCall:
        """Check a call once, for many: ``bound = forward.bind(...)``, then ``bound()``.

        Takes what a call takes. Every ``bound()`` reads the arrays that were given, as they are by
        then, writes to the same results and returns those. Raises ArgumentError, BuildError,
        MemoryError.
        """
        plan, members, ordered = self._gather(out, arguments)
        struct = plan.new(plan.struct, members)  # without a workspace: the bound call finds it
        if plan.given:
            refuse_overlap(self.__qualname__, plan, struct)
        where, results = self.__qualname__, tuple.__new__(self.result, ordered)
        return BoundCall(
            where,
            plan,
            struct,
            members,
            results,
            lambda code: defect(where, plan, code),
            plan.workspace,
            arrays=(*arguments.values(), *results),
        )

    def _gather(
        self, out: Out, arguments: dict[str, object]
    ) -> tuple[Plan, list[object], list[Array]]:
        """Check a call; return its plan, the members of its C struct but for the workspace, and
        its results."""
        scalars = self._take_scalars(arguments) if self._scalars else ()
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        results = {} if out is None else take_out(self.__qualname__, self._fields, out)
        plan = self._find_plan(arguments, results)
        view, pointer = plan.view, plan.pointer
        members: list[object] = [view(pointer, arguments[name]) for name in plan.arrays]
        for place, value in sorted((*plan.nulls, *scalars)) if plan.nulls else scalars:
            members.insert(place, value)
        for name, shape in plan.fresh:
            results[name] = np.empty(shape, plan.dtype)
        ordered = [results[name] for name in self._fields]
        members += [view(pointer, array) for array in ordered]
        return plan, members, ordered

    look: Callable[[object], object] = staticmethod(attrgetter("dtype", "shape", "flags.num"))
    """Gather all of an array that a check depends on (but its type and its address)."""

    def _find_plan(self, arguments: dict[str, object], results: dict[str, Array]) -> Plan:
        """Return the plan of an earlier call of the same kind, or check this one and make it."""
        try:
            plan = self._plans.get(self._key(arguments, results))
        except Exception:  # of what is no array; the check says so
            plan = None
        return plan if plan is not None else self._new_plan(arguments, results)

    def _new_plan(self, arguments: dict[str, object], results: dict[str, Array]) -> Plan:
        """Check a call that is unlike earlier ones, or is so once subclasses are set aside."""
        plain = {name: as_base(value) for name, value in arguments.items()}
        if any(plain[name] is not value for name, value in arguments.items()):
            arguments.update(plain)
            return self._find_plan(arguments, results)
        plan = self._plan(arguments, results)
        if len(self._plans) >= KEPT_PLANS:
            self._plans.clear()
        self._plans[self._key(arguments, results)] = plan
        return plan

    def _key(self, arguments: dict[str, object], results: dict[str, Array]) -> object:
        """All that the check of a call depends on but addresses, and a subclass of arrays."""
        given = arguments.values()
        if not results:
            return (*arguments, *map(type, given), *map(self.look, given))
        written = results.values()
        types, looks = map(type, (*given, *written)), map(self.look, (*given, *written))
        return (*arguments, None, *results, *types, *looks)

    def _take_scalars(self, arguments: dict[str, object]) -> list[tuple[int, float]]:
        """Move run-time scalars out of the arguments; defaults stand in for absent ones."""
        members = []
        for place, name, default in self._scalars:
            value = arguments.pop(name, default)
            if type(value) is not float:
                value = as_scalar(self.__qualname__, name, value, default)
            if place >= 0:
                members.append((place, value))
        return members

    def _plan(self, arguments: dict[str, object], results: dict[str, Array]) -> Plan:
        """Check a call of a new kind and say how to make it. Raises ArgumentError, BuildError."""
        checked = check_call(self.__qualname__, self.function, arguments, results)
        return make_plan(self._kernel, self.function, checked)


class BoundCall:
    """A call that has been checked, on arrays that stay: ``bound()`` runs it and returns them.

    What is left of a call is the C function: the way to call over and over, where a call takes
    microseconds. ``results`` are the arrays that every ``bound()`` writes, also the first time.
    Change the contents of the arrays that were given; NumPy refuses to resize them. Scalars and
    lengths stay as they were, and arrays that ``pack`` was given must. Workspace and team are those
    of the thread that calls, but for a workspace so large that none is kept. Two threads cannot run
    the same one at once: each binds its own.
    """

    def __init__(
        self,
        where: str,
        plan: Plan,
        struct: Pointer,
        keep: object,
        results: Results,
        failure: Callable[[int], CellgenError],
        workspace: int | None,
        team: Callable[[], object] | None = None,
        stop: MutableSequence[int] | None = None,
        arrays: Iterable[object] = (),
    ) -> None:
        self.results = results
        self._where, self._plan, self._struct, self._keep = where, plan, struct, keep
        self._failure, self._workspace = failure, -1 if workspace is None else workspace
        self._team, self._stop = team, stop
        self._memory: Memory | None = None
        self._held = hold(arrays)
        self._lock = threading.Lock()
        _bound_calls.add(self)

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self._plan.dims))
        return f"<bound call of {self._where}, dimensions {dims}, {self._plan.dtype}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise CellgenError(
            f"{self._where}: a bound call holds addresses of this process's memory and can be "
            f"neither pickled nor copied; send the kernel and bind again where it arrives",
            code="kernel",
        )

    def __call__(self) -> Results:
        """Run. Raises MemoryError; ArgumentError for a plan that does not fit; CellgenError where
        another thread is running it."""
        if not self._lock.acquire(blocking=False):
            raise CellgenError(
                f"{self._where}: this bound call is running already, expected one thread at a "
                f"time, since all write to the same results; bind one for each thread",
                code="kernel",
            )
        try:
            plan, struct = self._plan, self._struct
            is_own = self._memory is not None and self._workspace > KEPT_WORKSPACE
            if not is_own and self._workspace >= 0:
                memory = take_workspace(self._where, self._workspace, plan.dims)
                if memory is not self._memory:
                    struct.workspace, struct.workspace_bytes = memory.pointer, memory.bytes  # type: ignore[attr-defined]
                    self._memory = memory
            if self._team is not None:
                struct.team = self._team()  # type: ignore[attr-defined]
            if self._stop is None:
                code = plan.call(*plan.dims, struct)
            else:
                self._stop[0] = 0
                with lending(self._memory):
                    code = heeding_signals(lambda: plan.call(*plan.dims, struct), self._stop)
        finally:
            self._lock.release()
        if code:
            raise self._failure(code)
        return self.results


_bound_calls: weakref.WeakSet[BoundCall] = weakref.WeakSet()


def _renew_locks() -> None:
    """Let a forked child run bound calls that a thread of its parent was running."""
    for bound in _bound_calls:
        bound._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def make_plan(kernel: Owner, function: Function, checked: Checked) -> Plan:
    """Look up the C names, sizes and types for a call that has been checked.

    Where no result has an element the plan runs nothing: there may be as many steps, or as wide
    weights without rows, as 64 bits can count.
    """
    where = f"{kernel.name}.{function.name}"
    refuse_overflow(where, function, checked.dims, checked.dtype.itemsize)
    runs = has_elements(function.results, checked.dims)
    library = kernel.library()
    ffi, lib = library.ffi, library.lib
    suffix, c_type = DTYPES[checked.dtype]
    symbols = kernel.interface.symbols(function, suffix)
    dims = tuple(checked.dims[name] for name in function.dims)
    options = (ffi.NULL,) if function.team else ()
    size = getattr(lib, symbols.workspace_size) if function.workspace else None
    workspace = None if size is None else size(*dims, *options) if runs else 0
    if workspace is not None and workspace < 0:
        raise defect_of_size(where, checked.dims)
    layout, spans = _layout(function, checked)
    return Plan(
        call=getattr(lib, symbols.call) if runs else run_nothing,
        dims=dims,
        new=ffi.new,
        struct=ffi.typeof(f"{symbols.struct} *"),
        view=ffi.from_buffer,
        pointer=ffi.typeof(f"{c_type}[]"),
        element=ffi.typeof(f"{c_type} *"),
        dtype=checked.dtype,
        arrays=tuple(item.name for item in function.struct_members if item.name in checked.inputs),
        nulls=tuple(
            (place, ffi.NULL)
            for place, item in enumerate(function.struct_members)
            if item.optional and item.name not in checked.inputs
        ),
        given=tuple(checked.outputs),
        fresh=tuple(
            (item.name, lengths(item, checked.dims))
            for item in function.results
            if item.name not in checked.outputs
        ),
        workspace=workspace,
        buffer=ffi.buffer,
        layout=layout,
        spans=spans,
    )


def run_nothing(*_: object) -> int:
    """Stand in for a function, or for the size of its workspace, where nothing is computed."""
    return 0


def _layout(function: Function, checked: Checked) -> tuple[Struct, dict[int, _Span]]:
    """Describe the C struct to Python's ``struct``, to read the addresses in it at once."""
    codes, spans = [], {}
    for place, item in enumerate((*function.struct_members, *function.results)):
        codes.append("d" if item.is_scalar else "P")
        is_result = place >= len(function.struct_members)
        if not item.is_scalar and (is_result or item.name in checked.inputs):
            size = checked.dtype.itemsize * math.prod(lengths(item, checked.dims))
            if size:
                spans[place] = _Span(item.name, size, is_result)
    return Struct("@" + "".join(codes)), spans


# --- memory -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Aligned bytes, and the array that owns them."""

    pointer: Pointer
    bytes: int
    owner: Array
    address: int = 0


NOTHING = Memory(None, -1, np.empty(0, np.uint8))


class _PerThread(threading.local):
    """What each thread keeps from one call to the next."""

    memory = NOTHING


_per_thread = _PerThread()
_ffi = _cffi_backend.FFI()


def take_workspace(where: str, size: int, dims: tuple[int, ...]) -> Memory:
    """Return workspace for a call: this thread's, grown if need be. Raises MemoryError."""
    memory = _per_thread.memory
    if memory.bytes >= size:
        return memory
    memory = new_memory(where, size, dims)
    if size <= KEPT_WORKSPACE:
        _per_thread.memory = memory
    return memory


@contextmanager
def lending(memory: Memory | None) -> Iterator[None]:
    """Let the workspace of a call be its own while Python runs in its thread, as in handlers."""
    if memory is None or _per_thread.memory is not memory:
        yield
        return
    _per_thread.memory = NOTHING
    try:
        yield
    finally:
        if _per_thread.memory.bytes < memory.bytes:
            _per_thread.memory = memory


def new_memory(where: str, size: int, dims: tuple[int, ...]) -> Memory:
    """Return aligned bytes. Raises MemoryError."""
    try:
        owner = np.empty(size + WORKSPACE_ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise MemoryError(
            f"{where}: no memory for a workspace of {size:,} bytes "
            f"(dimensions {dims}); call it with fewer rows or steps at a time"
        ) from error
    address = owner.ctypes.data
    address += -address % WORKSPACE_ALIGNMENT
    return Memory(_ffi.cast("void *", address), size, owner, address)


def refuse_overlap(where: str, plan: Plan, struct: Pointer) -> None:
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


def defect(where: str, plan: Plan, code: int) -> CellgenError:
    meaning = ERROR_CODES.get(code, "an unknown error code")
    return CellgenError(
        f"{where}: the compiled function returned {code}: {meaning} (dimensions {plan.dims}, "
        f"{plan.dtype}); the arguments passed every check, so the sources do not fit the "
        "interface: write them again with `cellgen build`, and report it if that does not help",
        code="kernel",
    )


def defect_of_size(where: str, dims: Mapping[str, int]) -> ArgumentError:
    return ArgumentError(
        f"{where}: the workspace for {dims} has no size that 64 bits can hold; "
        "call it with smaller dimensions"
    )
