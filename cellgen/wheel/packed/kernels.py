"""Call prebuilt kernels by the names of their equations.

Input: a cell's descriptor. Output: ``PrebuiltKernel``, with each function. Arrays are NumPy's, of
one type of 16, 32 or 64 bits, bfloat16 as ``ml_dtypes`` has it; results are new arrays. The engine
of the cell (``cellgen_engine.h``) says what follows from them, shapes and types of the results
above all. Calls run without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cellgen.wheel.packed.loader import Objects
from cellgen.wheel.packed.options import (
    OPTIONS,
    OVER_TIME,
    RUNS,
    AnyArgument,
    CallOptions,
    KernelError,
    address_of,
    array_of,
    thread_count,
)
from cellgen.wheel.packed.structs import (
    AXES,
    NOWHERE,
    ArrayRecord,
    FaultRecord,
    RequestRecord,
    ScalarRecord,
    SignatureRecord,
    ValueRecord,
)

Array = npt.NDArray[np.floating[npt.NBitBase]]
Results: TypeAlias = Any
"""A named tuple of arrays."""
ALIGNMENT = 64
SCALAR, UPSTREAM, GRADIENT = 5, 10, 11
"""Roles of values (``cellgen_role``)."""
OPTIONAL, SAVED, WRITTEN = 1, 4, 8
"""Flags of values (``cellgen_flag``)."""
FITS, NOTHING = 0, 4
"""What the engine says of a call that it takes (``cellgen_refusal``), with or without elements."""
GAPS, UNBOUND = 0, 4
FIXES = {
    GAPS: "reshape it",
    1: "reshape it",
    2: "no dimensions make axis {axis} as long",
    3: "axis {axis} must be {expected} long",
}
"""Why it refuses one (``cellgen_reason``), and what to do about an array."""
REAL, BF16, F16 = 0, 1, 2
"""What arrays hold (``cellgen_stored``)."""
KINDS = {"float32": REAL, "float64": REAL, "float16": F16, "bfloat16": BF16}
"""By the names of types."""
_HALF, _FLOAT, _DOUBLE = map(np.dtype, (np.float16, np.float32, np.float64))
OWN = ("name", "dims", "team", "address", "engine", "functions", "names")
"""Attributes of a kernel itself."""
ERRORS = {
    1: "a required array is missing",
    2: "a dimension is negative",
    3: "the workspace is too small",
    4: "lengths has a row of fewer than 0 or more than T steps",
}
"""What functions return (``cellgen_error``), as far as calls from here can."""


@dataclass(frozen=True)
class PackedMember:
    """A value of a function: its name, what it is, its place and its record in C."""

    name: str
    of: str
    role: int
    flags: int
    place: int
    address: int

    @classmethod
    def read(cls, place: int, value: ValueRecord) -> PackedMember:
        """Read one of a descriptor."""
        names = (value.name.decode(), value.of.decode())
        return cls(*names, value.role, value.flags, place, ctypes.addressof(value))

    def text(self, dims: Sequence[str]) -> str:
        """Its shape in words: ``(B, 2*H)``."""

        def factors(term: Any) -> str:
            names = [dims[number] for number in term.dim if number >= 0]
            return "*".join([str(term.factor)] * (term.factor != 1 or not names) + names)

        value = ValueRecord.from_address(self.address)
        axes = [axis.contents for axis in value.axis[: value.axes]]
        return f"({', '.join(' + '.join(map(factors, a.term[: a.terms])) for a in axes)})"


@lru_cache(maxsize=64)
def _kind(dtype: np.dtype[Any]) -> int | None:
    """What arrays of a type hold; None: no kernel has it."""
    return KINDS.get(dtype.name) if dtype.isnative else None


@dataclass(frozen=True)
class SavedArrays:
    """What a forward pass keeps for its backward pass: arrays by name, options of the run.

    Scalars that the run got are among the arrays.
    """

    arrays: Mapping[str, object]
    options: Mapping[str, object]

    def __getattr__(self, name: str) -> object:
        arrays: Mapping[str, object] = self.__dict__.get("arrays", {})
        if name not in arrays:
            raise AttributeError(f"saved has {', '.join(arrays) or 'nothing'}, not {name!r}")
        return arrays[name]


class PrebuiltFunction:
    """One function of a cell: ``f(x=..., h_prev=..., ...)`` returns a named tuple of arrays."""

    def __init__(self, kernel: PrebuiltKernel, number: int, signature: SignatureRecord) -> None:
        self.name: str = signature.name.decode()
        self.label = f"{kernel.name}.{self.name}"
        self.__doc__ = signature.text.decode()
        self.kernel, self.number = kernel, number
        self.dims = [kernel.dims[dim] for dim in signature.dim[: signature.dims]]
        values = enumerate(signature.member[: signature.members])
        self.members = tuple(PackedMember.read(place, value) for place, value in values)
        self.arguments = {m.name: m for m in self.members if not m.flags & WRITTEN}
        self.results = {m.name: m for m in self.members if m.flags & WRITTEN}
        self.saved = tuple(n for n, m in self.results.items() if m.flags & SAVED)
        self.over_time = bool(signature.has_team)
        self._required = tuple(
            n for n, m in self.arguments.items() if m.role != SCALAR and not m.flags & OPTIONAL
        )
        plain = [name for name in self.results if name not in self.saved]
        self._result: Results = namedtuple(self.name, plain)  # type: ignore[misc]
        self._result_saved: Results = namedtuple(self.name, [*plain, "saved"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<{self.label}({', '.join(self.arguments)}) -> {', '.join(self.results)}>"

    def __call__(self, **arguments: AnyArgument) -> Results:
        """Compute, of arrays by name and ``CallOptions``, and return the results by name.

        ``save=True`` keeps what a backward pass needs, ``saved=`` is what a run kept.
        Raises KernelError.
        """
        save, saved = bool(arguments.pop("save", False)), arguments.pop("saved", None)
        stated = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        if saved is not None:
            if not isinstance(saved, SavedArrays):
                raise KernelError(
                    f"{self.label}: saved is a {type(saved).__name__}, expected what a run with "
                    f"save=True has as its saved"
                )
            arguments, stated = {**saved.arrays, **arguments}, {**saved.options, **stated}
        if (stated or save) and not self.over_time:
            raise KernelError(
                f"{self.label} has no option {next(iter(stated), 'save')!r}: one step"
            )
        arrays, scalars = self._taken(arguments)
        with _Call(self, arrays, CallOptions(**stated), scalars, saves=save) as call:
            results = call.run()
        if not save:
            return self._result._make(results.values())
        kept: dict[str, object] = {name: results.pop(name) for name in self.saved}
        run = {n: np.array(v) if n in OVER_TIME and v is not None else v for n, v in stated.items()}
        return self._result_saved(**results, saved=SavedArrays(kept | scalars, run))

    def named(self, results: Iterable[object]) -> Results:
        """Results that another library has as its arrays, by name."""
        return self._result._make(results)

    def specs(
        self, arrays: Mapping[str, Any], *, save: bool = False
    ) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each result, of arguments that have these alone. Raises KernelError."""
        known = {name: array for name, array in arrays.items() if name in self.arguments}
        with _Call(self, known, CallOptions(), {}, saves=save) as call:
            return {name: (shape, dtype) for name, shape, dtype in call.specs()}

    def _taken(
        self, arguments: Mapping[str, AnyArgument]
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Arguments as arrays, and numbers. Raises KernelError."""
        arrays: dict[str, Any] = {}
        scalars: dict[str, float] = {}
        for name, value in arguments.items():
            member = self.arguments.get(name)
            if member is not None and member.role == SCALAR:
                scalars[name] = self._number(name, value)
            elif member is not None:
                if value is not None:
                    array = array_of(self.label, name, value)
                    arrays[name] = array if array.flags.aligned else array.copy()
            elif name not in self.kernel.names:
                also = f"; options are {', '.join((*OPTIONS, *RUNS))}" if self.over_time else ""
                raise KernelError(
                    f"{self.label} takes no {name!r}; it takes {', '.join(self.arguments)}{also}"
                )
        lacking = [name for name in self._required if name not in arrays]
        if lacking:
            fix = ", ".join(f"{name}=..." for name in lacking)
            raise KernelError(f"{self.label}: {', '.join(lacking)} missing; pass {fix}")
        return arrays, scalars

    def _number(self, name: str, value: AnyArgument) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise KernelError(f"{self.label}: {name} is no number: {error}") from error


class _Call:
    """A call that the engine has bound, of arrays, or of what has their shapes and types alone.

    Raises KernelError. What is refused holds nothing.
    """

    def __init__(
        self,
        function: PrebuiltFunction,
        arrays: dict[str, Any],
        options: CallOptions,
        scalars: Mapping[str, float],
        *,
        saves: bool,
    ) -> None:
        self._function, self._arrays, self._options = function, arrays, options
        self._dtype = self._element()
        self._request = RequestRecord(
            function=function.number,
            is_double=self._dtype == _DOUBLE,
            narrow=_kind(self._dtype),
            saves=saves,
            say=options.numbers(function.label),
            again=NOWHERE,
        )
        if scalars:
            rows: list[Any] = [
                (function.arguments[n].place, NOWHERE, x) for n, x in scalars.items()
            ]
            self._request.scalars = len(rows)
            self._request.scalar = (ScalarRecord * len(rows))(*rows)
        self._engine = function.kernel.engine
        self._memory = np.empty(self._engine.bytes, np.uint8)
        self._call = address_of(self._memory)
        self._sizes = (c_int64 * len(function.dims))()
        while self._bind() not in (FITS, NOTHING):
            name = self._apart()
            arrays[name] = np.require(arrays[name], None, "C")
        self._formed = (ArrayRecord * len(function.results))()
        self._count = self._engine.results(self._call, self._formed)

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.end(self._call)

    def specs(self) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """Name, shape and type of each result that it forms."""
        own, members = self._dtype, self._function.members
        types: dict[int | None, np.dtype[Any]]
        types = {REAL: _FLOAT, F16: _HALF, _kind(own): own}
        return [
            (members[r.member].name, tuple(r.length[: r.rank]), types[r.kind])
            for r in self._formed[: self._count]
        ]

    def run(self) -> dict[str, Array]:
        """Compute, and return the results by name. Raises KernelError, MemoryError."""
        function, engine, call = self._function, self._engine, self._call
        results = {name: np.empty(shape, dtype) for name, shape, dtype in self.specs()}
        for record, array in zip(self._formed, results.values(), strict=False):
            record.data = address_of(array)
        keep = team = None
        if function.over_time:
            sizes = dict(zip(function.dims, self._sizes, strict=True))
            steps, rows = (sizes.get(name, 1) for name in "TB")
            keep = self._options.put(function.label, self._request, steps, rows)
            team = function.kernel.team(thread_count(function.label, self._options.threads))
        if not any(array.size for array in results.values()):
            return results  # a dimension beside one of 0 may be any
        request = ctypes.byref(self._request)
        code = engine.prepare(call, request, self._formed, self._count)
        size = engine.size(call)
        if code or size < 0:
            raise MemoryError(f"{function.label}: these dimensions need too much memory")
        memory = np.empty(size + ALIGNMENT, np.uint8)
        start = address_of(memory)
        code = engine.run(call, start + -start % ALIGNMENT, size, team)
        del keep
        if code:
            said = ERRORS.get(code, f"the kernel returned {code}")
            raise KernelError(f"{function.label}: {said}")
        return results

    def _bind(self) -> int:
        rows: list[Any] = [
            _row(self._function.arguments[n], array) for n, array in self._arrays.items()
        ]
        cell, request = self._function.kernel.address, ctypes.byref(self._request)
        in_c = (ArrayRecord * len(rows))(*rows)
        code: int = self._engine.bind(self._call, cell, request, in_c, len(rows), self._sizes)
        return code

    def _element(self) -> np.dtype[Any]:
        """The one type of the arrays; what a run in 16 bits kept is as it kept it."""
        types = {array.dtype: name for name, array in self._arrays.items()}
        own: list[np.dtype[Any]] = [*types]
        if len(types) > 1:
            members, arrays = self._function.arguments, self._arrays.items()
            own = [*{a.dtype for n, a in arrays if not members[n].flags & SAVED}]
        is_one = len(own) == 1 and None not in map(_kind, types)
        if is_one and (len(types) == 1 or (_kind(own[0]) and _DOUBLE not in types)):
            return own[0]
        listed = ", ".join(f"{name} is {dtype}" for dtype, name in types.items())
        raise KernelError(
            f"{self._function.label}: {listed}; expected all {' or all '.join(KINDS)}: convert them"
        )

    def _apart(self) -> str:
        """The array that lies as no kernel reads it. Raises KernelError: shapes do not fit."""
        function = self._function
        dims, fault = function.kernel.dims, FaultRecord()
        known = (c_int64 * len(dims))()
        self._engine.fault(self._call, ctypes.byref(fault), known)
        if fault.reason == UNBOUND:
            raise KernelError(
                f"{function.label}: no argument tells {dims[fault.axis]}; pass one that has it"
            )
        name: str = [*self._arrays][fault.array]
        array = self._arrays[name]
        is_numpys = isinstance(array, np.ndarray)
        if fault.reason == GAPS and is_numpys and not array.flags.c_contiguous:
            return name
        sizes = ", ".join(f"{d} = {n}" for d, n in zip(dims, known, strict=True) if n >= 0)
        fix = FIXES[fault.reason].format(axis=fault.axis, expected=fault.expected)
        raise KernelError(
            f"{function.label}: {name} is {tuple(array.shape)}, expected "
            f"{function.arguments[name].text(dims)}{' with ' * bool(sizes)}{sizes}; {fix}"
        )


def _row(member: PackedMember, array: Any) -> tuple[Any, ...]:
    """An array as ``ArrayRecord`` has it; without memory, what is none of NumPy's."""
    shape, data = array.shape, None
    strides: tuple[int, ...] = ()
    if isinstance(array, np.ndarray):
        data = address_of(array)
        strides = () if array.flags.c_contiguous else array.strides
    which = member.address, member.place, NOWHERE, data, _kind(array.dtype)
    return *which, len(shape), bool(strides), shape[:AXES], strides[:AXES]


class PrebuiltKernel:
    """A cell: each of its functions by name, ``kernel.sequence_forward(x=..., ...)``."""

    def __init__(self, objects: Objects, name: str) -> None:
        cell = objects.cell(name)
        self.name = name
        self.dims: list[str] = [dim.decode() for dim in cell.dim[: cell.dims]]
        self.team = cell.team
        self.address = ctypes.addressof(cell)
        self.engine = cell.engine.contents
        self._signatures: list[SignatureRecord] = cell.function[: cell.functions]

    @cached_property
    def functions(self) -> dict[str, PrebuiltFunction]:
        """By name; read of the descriptor when first asked for."""
        functions = [PrebuiltFunction(self, n, s) for n, s in enumerate(self._signatures)]
        return {function.name: function for function in functions}

    @cached_property
    def names(self) -> frozenset[str]:
        """Of every value of every function: a call may have those that it does not take."""
        return frozenset(m.name for f in self.functions.values() for m in f.members)

    def __getattr__(self, name: str) -> PrebuiltFunction:
        if name.startswith("_") or name in OWN:
            raise AttributeError(name)
        functions = self.functions
        if name not in functions:
            raise AttributeError(
                f"{self.__dict__.get('name')} has {', '.join(functions)}; no {name!r}"
            )
        return functions[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __repr__(self) -> str:
        return f"<prebuilt kernel {self.name}: {', '.join(self.functions)}>"
