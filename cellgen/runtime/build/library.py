"""Load a compiled cell: a shared object whose one exported symbol leads to its descriptor.

Input: a path that ``build`` returned, and the ``Interface`` that it was built for. Output:
``Library``: how each function is called in each precision, and types and memory of C. No wrapper is
compiled: functions are called through addresses in the descriptor
(``generated/include/cellgen_descriptor.h``), by an array of dimensions and a struct of words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import _cffi_backend

from cellgen.errors import BuildError
from cellgen.runtime.abi import (
    ABI_VERSION,
    CONSTANTS,
    PLAN,
    PRECISIONS,
    Function,
    Interface,
    struct_members,
)
from cellgen.runtime.build.half import require_known
from cellgen.runtime.build.steps import FIX_LOADING
from cellgen.runtime.numbers import NUMBERED
from cellgen.runtime.options import c_members

CType: TypeAlias = Any
"""A type of C, as cffi's backend has it."""
CData: TypeAlias = Any
"""A value of C."""

_ffi = _cffi_backend.FFI()


def _struct(name: str, members: Iterable[tuple[str, CType]]) -> CType:
    """Make a struct type from its members in order."""
    struct = _cffi_backend.new_struct_type(name)
    _cffi_backend.complete_struct_or_union(struct, [(m, kind, -1) for m, kind in members])
    return struct


def _pointer(kind: CType) -> CType:
    return _cffi_backend.new_pointer_type(kind)


_INT64, _VOID, _TEXT = _ffi.typeof("int64_t"), _ffi.typeof("void *"), _ffi.typeof("char *")
_NUMBERS = _ffi.typeof("int64_t *")
DIMS = _ffi.typeof("int64_t[]")
"""Dimensions of a call, in its order: what ``Entry`` takes first."""

_CONSTANTS = _struct("cellgen_constants", ((name, _INT64) for name in CONSTANTS))
_PLAN = _struct("cellgen_plan", [*((name, _INT64) for name in PLAN), ("by", _CONSTANTS)])
_OWN = {"cellgen_plan *": _pointer(_PLAN)}


def _option(c_type: str) -> CType:
    """The type of a member of the options; constness is for C alone."""
    name = c_type.replace("const ", "")
    return _OWN.get(name) or _ffi.typeof(name)


_OPTIONS = _struct("cellgen_options", ((m.name, _option(m.c_type)) for m in c_members()))

_TERM = _struct("cellgen_term", [("factor", _INT64), ("dim", _ffi.typeof("int64_t[3]"))])
_AXIS = _struct("cellgen_axis", [("terms", _INT64), ("term", _pointer(_TERM))])
_VALUE = _struct(
    "cellgen_value",
    [
        *(("name", _TEXT), ("of", _TEXT), ("role", _INT64), ("flags", _INT64)),
        *(("value", _ffi.typeof("double")), ("axes", _INT64)),
        ("axis", _cffi_backend.new_array_type(_pointer(_pointer(_AXIS)), 8)),
    ],
)
_SIGNATURE = _struct(
    "cellgen_signature",
    [
        *(("name", _TEXT), ("text", _TEXT), ("dims", _INT64), ("dim", _NUMBERS)),
        *(("arguments", _INT64), ("members", _INT64), ("member", _pointer(_VALUE))),
        *(("has_workspace", _INT64), ("has_team", _INT64)),
    ],
)
_ENTRY = _struct(
    "cellgen_entry",
    [
        ("call", _ffi.typeof("int(*)(int64_t *, void *)")),
        ("size", _ffi.typeof("int64_t(*)(int64_t *, void *)")),
        ("plan", _ffi.typeof("void(*)(int64_t *, int64_t, void *, void *)")),
        ("packed_size", _ffi.typeof("int64_t(*)(int64_t *, void *)")),
        ("pack", _ffi.typeof("int(*)(int64_t *, void *, void *, int64_t)")),
    ],
)
_PRECISION = _struct(
    "cellgen_precision", [("name", _TEXT), ("bytes", _INT64), ("entry", _pointer(_ENTRY))]
)
_NUMBERED = _struct("cellgen_numbers", ((option.name, _INT64) for option in NUMBERED))
_AXES = _ffi.typeof("int64_t[9]")
_ARRAY = _struct(
    "cellgen_array",
    [
        *(("value", _pointer(_VALUE)), ("member", _INT64), ("again", _INT64), ("data", _VOID)),
        *(("kind", _INT64), ("rank", _INT64), ("has_gaps", _INT64)),
        *(("length", _AXES), ("stride", _AXES)),
    ],
)
_SCALAR = _struct(
    "cellgen_scalar", [("member", _INT64), ("again", _INT64), ("number", _ffi.typeof("double"))]
)
_REQUEST = _struct(
    "cellgen_request",
    [
        *(("function", _INT64), ("is_double", _INT64), ("narrow", _INT64), ("saves", _INT64)),
        *(("say", _NUMBERED), ("scalars", _INT64), ("scalar", _pointer(_SCALAR))),
        *(("again", _INT64), ("again_flush", _INT64), ("again_products", _INT64)),
        *(("lengths", _VOID), ("flags", _ffi.typeof("void *[2]"))),
        ("flag_stride", _ffi.typeof("int64_t[2][2]")),
        *(("packed", _VOID), ("packed_bytes", _INT64)),
        *(("packed_again", _VOID), ("packed_again_bytes", _INT64)),
        *(("plan", _VOID), ("stop", _VOID), ("checkpoints", _ffi.typeof("void **"))),
    ],
)
_ENGINE = _struct(
    "cellgen_engine",
    [
        ("bytes", _INT64),
        ("bind", _ffi.typeof("int(*)(void *, void *, void *, void *, int64_t, int64_t *)")),
        ("fault", _ffi.typeof("void(*)(void *, void *, int64_t *)")),
        ("results", _ffi.typeof("int64_t(*)(void *, void *)")),
        ("work", _ffi.typeof("double(*)(void *)")),
        ("prepare", _ffi.typeof("int(*)(void *, void *, void *, int64_t)")),
        ("size", _ffi.typeof("int64_t(*)(void *)")),
        ("run", _ffi.typeof("int(*)(void *, void *, int64_t, void *)")),
        ("end", _ffi.typeof("void(*)(void *)")),
        ("words", _ffi.typeof("int(*)(void *, uintptr_t *, uintptr_t *, uintptr_t *)")),
    ],
)


def _array(kind: CType) -> CType:
    return _cffi_backend.new_array_type(_pointer(kind), None)


ARRAYS = _array(_ARRAY)
"""Arrays of a call, as its engine takes them."""
FAR_ARRAYS = _array(
    _struct(
        "cellgen_array",
        (
            (name, _ffi.typeof("uintptr_t") if name == "data" else field.type)
            for name, field in _ARRAY.fields
        ),
    )
)
"""The same, of which Python has addresses as numbers."""
SCALARS = _array(_SCALAR)
REQUEST = _pointer(_REQUEST)
"""What a call is beside its arrays."""
_CELL = _struct(
    "cellgen_cell",
    [
        *(("abi", _INT64), ("name", _TEXT), ("digest", _TEXT)),
        *(("dims", _INT64), ("dim", _ffi.typeof("char **"))),
        *(("functions", _INT64), ("function", _pointer(_SIGNATURE))),
        *(("precisions", _INT64), ("precision", _pointer(_PRECISION))),
        ("team", _ffi.typeof("void *(*)(int)")),
        ("team_create", _ffi.typeof("void *(*)(int)")),
        ("team_destroy", _ffi.typeof("void(*)(void *)")),
        ("engine", _pointer(_ENGINE)),
    ],
)
STRUCTS = (
    *(_ARRAY, _SCALAR, _REQUEST, _ENGINE, _CELL, _NUMBERED, _SIGNATURE, _VALUE, _AXIS, _TERM),
    *(_PRECISION, _ENTRY, _OPTIONS),
)
"""Structs that C has by the same names, with the same members."""
INT64S, TEXTS = _array(_INT64), _array(_TEXT)
TERMS, VALUES, SIGNATURES = _array(_TERM), _array(_VALUE), _array(_SIGNATURE)
ENTRIES, PRECISIONS_OF = _array(_ENTRY), _array(_PRECISION)
AXIS, CELL, ENGINE = _pointer(_AXIS), _pointer(_CELL), _pointer(_ENGINE)
"""What descriptors are made of (``cellgen_descriptor.h``)."""


class Types:
    """Types and memory of C by name: those of C itself, of ``cellgen.h``, and of a cell's structs.

    ``cast``, ``from_buffer``, ``buffer`` and ``NULL`` are cffi's own.
    """

    NULL = _ffi.NULL
    TEXT = _ffi.typeof("char[]")
    cast = staticmethod(_ffi.cast)
    from_buffer = staticmethod(_ffi.from_buffer)
    buffer = staticmethod(_ffi.buffer)
    make: Callable[..., CData] = staticmethod(_ffi.new)
    """``new`` of a type that ``typeof`` has given."""

    def __init__(self, structs: Mapping[str, CType]) -> None:
        own = {"cellgen_constants": _CONSTANTS, "cellgen_plan": _PLAN, "cellgen_options": _OPTIONS}
        known = {**own, **structs}
        self._known = {**known, **{f"{name} *": _pointer(kind) for name, kind in known.items()}}

    def typeof(self, name: str) -> CType:
        """The type of a name."""
        known = self._known.get(name)
        return _ffi.typeof(name) if known is None else known

    def sizeof(self, name: str) -> int:
        """Bytes of a type."""
        return int(_ffi.sizeof(self.typeof(name)))

    def new(self, name: str, initial: object = None) -> CData:
        """Memory of a type, zero but for what ``initial`` gives."""
        return _ffi.new(self.typeof(name), initial)


@dataclass(frozen=True)
class Entry:
    """How one function is called in one precision; each takes dimensions (``DIMS``) first.

    ``call(dims, struct)`` returns an error code, ``size(dims, options)`` the bytes of workspace,
    ``plan(dims, threads, constants, plan)`` fills a plan, ``packed_size(dims, options)`` and
    ``pack(dims, struct, memory, bytes)`` lay out weights. ``struct`` is the type of a pointer to
    its arguments. NULL is what it does not have.
    """

    struct: CType
    call: Callable[..., int]
    size: Callable[..., int]
    plan: Callable[..., None]
    packed_size: Callable[..., int]
    pack: Callable[..., int]


class LibrarySymbols:
    """A cell's functions under the names that they have in C, with one argument a dimension."""

    def __init__(self, interface: Interface, entries: Mapping[tuple[str, str], Entry]) -> None:
        self._found: dict[str, Callable[..., Any]] = {}
        for function in interface.functions:
            for suffix, _ in PRECISIONS:
                names, entry = interface.symbols(function, suffix), entries[function.name, suffix]
                count = len(function.dims)
                self._found[names.call] = _by_dimension(entry.call, count)
                if function.workspace:
                    null = () if function.team else (_ffi.NULL,)
                    self._found[names.workspace_size] = _by_dimension(entry.size, count, *null)
                if function.team:
                    self._found[names.plan] = _by_dimension(entry.plan, count)
                    self._found[names.packed_size] = _by_dimension(entry.packed_size, count)
                    self._found[names.pack] = _by_dimension(entry.pack, count)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        functions: dict[str, Callable[..., Any]] = self.__dict__.get("_found", {})
        if name not in functions:
            raise AttributeError(
                f"this kernel has no function {name!r}; it has {', '.join(functions)}"
            )
        return functions[name]

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Give a name to a further function."""
        self._found[name] = function


def _by_dimension(function: Callable[..., Any], count: int, *rest: object) -> Callable[..., Any]:
    return lambda *values: function(_ffi.new(DIMS, values[:count]), *values[count:], *rest)


@dataclass(frozen=True)
class Library:
    """A loaded cell: ``ffi`` (types and memory), ``entry`` (how to call), ``lib`` (names in C).

    ``cell`` is what it says of itself (``cellgen_descriptor.h``), ``descriptor`` its address, and
    ``engine`` what makes its calls (``cellgen_engine.h``).
    """

    ffi: Types
    lib: LibrarySymbols
    entries: Mapping[tuple[str, str], Entry]
    shared: ctypes.CDLL
    descriptor: int
    cell: CData
    engine: CData

    def entry(self, function: str, suffix: str) -> Entry:
        """How a function is called in the precision ``f32`` or ``f64``."""
        return self.entries[function, suffix]


def load(path: Path, interface: Interface) -> Library:
    """Load a shared object that ``build`` returned.

    Raises:
        BuildError: it cannot be loaded, or is not of this interface; CELLGEN_BF16 is no name.
    """
    require_known()
    try:
        shared = ctypes.CDLL(str(path))
        find = shared[interface.descriptor_symbol]
    except (OSError, AttributeError) as error:
        raise BuildError(
            f"cannot load {path}: {error}; {FIX_LOADING}; else `cellgen cache clear`"
        ) from error
    find.restype = ctypes.c_void_p
    descriptor: int = find()
    cell = _ffi.cast(_pointer(_CELL), descriptor)
    _require_same(path, cell, interface)
    structs = {
        interface.symbols(function, suffix).struct: _struct(
            interface.symbols(function, suffix).struct, _members(function, c_type)
        )
        for function in interface.functions
        for suffix, c_type in PRECISIONS
    }
    ffi = Types(structs)
    entries = {
        (function.name, suffix): _entry(
            ffi.typeof(f"{interface.symbols(function, suffix).struct} *"),
            cell.precision[place].entry[number],
        )
        for number, function in enumerate(interface.functions)
        for place, (suffix, _) in enumerate(PRECISIONS)
    }
    lib = LibrarySymbols(interface, entries)
    if interface.has_team:
        for name, function in zip(
            interface.team_symbols, (cell.team_create, cell.team_destroy), strict=True
        ):
            lib.add(name, function)
    return Library(ffi, lib, entries, shared, descriptor, cell, cell.engine)


def _entry(struct: CType, entry: CData) -> Entry:
    return Entry(struct, entry.call, entry.size, entry.plan, entry.packed_size, entry.pack)


def _members(function: Function, c_type: str) -> Iterable[tuple[str, CType]]:
    """Members of a function's struct and their types: words of eight bytes."""
    array = _ffi.typeof(f"{c_type} *")
    kinds = {"array": array, "scalar": _ffi.typeof("double"), "memory": _VOID, "bytes": _INT64}
    kinds["options"] = _pointer(_OPTIONS)
    return ((name, kinds[kind]) for name, kind in struct_members(function))


def _require_same(path: Path, cell: CData, interface: Interface) -> None:
    """Hold what was compiled to what calls will take it for. Raises BuildError."""
    said = (cell.abi, *_described(cell)) if cell.abi == ABI_VERSION else (cell.abi,)
    functions = tuple(
        (f.name, len(f.dims), tuple(a.name for a in (*f.struct_members, *f.results)))
        for f in interface.functions
    )
    expected = (ABI_VERSION, interface.name, interface.digest, functions)
    if said != expected:
        raise BuildError(
            f"{path} says that it is {said}, expected {expected}: its sources do not fit the "
            f"interface; write them again with `cellgen build {interface.name}`"
        )


def _described(cell: CData) -> tuple[object, ...]:
    """Name, digest and functions of a descriptor."""
    functions = tuple(
        (
            _text(one.name),
            one.dims,
            tuple(_text(one.member[place].name) for place in range(one.members)),
        )
        for one in (cell.function[number] for number in range(cell.functions))
    )
    return _text(cell.name), _text(cell.digest), functions


def _text(characters: CData) -> str:
    said: bytes = _ffi.string(characters)
    return said.decode()
