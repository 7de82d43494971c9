"""Call prebuilt kernels by the names of their equations.

Input: a cell's descriptor. Output: ``PrebuiltKernel``, with each function. Arrays are
NumPy's, all float32 or all float64; results are new arrays. Calls run without the interpreter's
lock.
"""

from __future__ import annotations

import ctypes
import os
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cellgen.wheel.packed.loader import (
    EntryRecord,
    Objects,
    SignatureRecord,
    ValueRecord,
)

Array = npt.NDArray[np.floating[npt.NBitBase]]
Results: TypeAlias = Any
"""A named tuple of arrays."""
AnyArgument: TypeAlias = Any
"""An argument or an option of a call."""
ALIGNMENT, MOST_THREADS = 64, 1024
SCALAR, UPSTREAM, GRADIENT = 5, 10, 11
"""Roles of values (``cellgen_role``)."""
OPTIONAL, SAVED, WRITTEN = 1, 4, 8
"""Flags of values (``cellgen_flag``)."""
PRODUCTS = ("full", "bf16", "int8")
OWN = ("name", "dims", "option_order", "team", "functions", "names")
"""Attributes of a kernel itself."""
ERRORS = {
    1: "a required array is missing",
    2: "a dimension is negative",
    3: "the workspace is too small",
    4: "lengths has a row of fewer than 0 or more than T steps",
}
"""What functions return (``cellgen_error``), as far as calls from here can."""


class KernelError(ValueError):
    """A call with a name, a shape, a type or an option that the kernel does not take."""


@dataclass(frozen=True)
class PackedMember:
    """A value of a function: its name, what it is, the terms of its axes.

    A term is a factor, and the numbers of the dimensions that it multiplies.
    """

    name: str
    of: str
    role: int
    flags: int
    value: float
    axes: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]

    @classmethod
    def read(cls, value: ValueRecord) -> PackedMember:
        """Read one of a descriptor."""
        axes = []
        for axis in value.axis[: value.axes]:
            terms = axis.contents.term[: axis.contents.terms]
            axes.append(tuple((t.factor, tuple(d for d in t.dim if d >= 0)) for t in terms))
        names = (value.name.decode(), value.of.decode())
        return cls(*names, value.role, value.flags, value.value, tuple(axes))

    def shape(self, sizes: Mapping[int, int]) -> tuple[int, ...]:
        """Its shape, for dimensions by number."""
        return tuple(sum(_product(f, dims, sizes) for f, dims in axis) for axis in self.axes)

    def text(self, names: Sequence[str]) -> str:
        """Its shape in words: ``(B, 2*H)``."""
        return f"({', '.join(_axis_text(axis, names) for axis in self.axes)})"


def _product(factor: int, dims: Sequence[int], sizes: Mapping[int, int]) -> int:
    for dim in dims:
        factor *= sizes[dim]
    return factor


def _axis_text(axis: Sequence[tuple[int, tuple[int, ...]]], names: Sequence[str]) -> str:
    def term(factor: int, dims: tuple[int, ...]) -> str:
        parts = ([str(factor)] if factor != 1 or not dims else []) + [names[d] for d in dims]
        return "*".join(parts)

    return " + ".join(term(*one) for one in axis)


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


@dataclass(frozen=True)
class CallOptions:
    """Which steps of a sequence are valid, and how a call runs.

    ``lengths`` (B) integers, ``mask`` and ``reset`` (T, B) bool: steps of each row, steps that
    keep the state, steps before which states start anew. ``products``: "full", "bf16" or "int8".
    ``threads``: all that the process may use where it is None; results do not depend on it.
    """

    lengths: npt.ArrayLike | None = None
    mask: npt.ArrayLike | None = None
    reset: npt.ArrayLike | None = None
    reverse: bool = False
    zero_output_for_mask: bool = False
    products: str = "full"
    threads: int | None = None

    def words(
        self, function: str, order: Sequence[str], T: int, B: int
    ) -> tuple[ctypes.Array[c_int64], object]:
        """The options in C, and what keeps their arrays. Raises KernelError."""
        if self.products not in PRODUCTS:
            raise KernelError(
                f"{function}: products is {self.products!r}, expected {', '.join(PRODUCTS)}"
            )
        arrays = {
            "lengths": _rows(function, "lengths", self.lengths, (B,), np.int64),
            "mask": _rows(function, "mask", self.mask, (T, B), np.bool_),
            "reset": _rows(function, "reset", self.reset, (T, B), np.bool_),
        }
        words = dict.fromkeys(order, 0)
        words |= {name: _address(array) for name, array in arrays.items() if array is not None}
        words["reverse"] = int(bool(self.reverse))
        words["hold"] = int(not self.zero_output_for_mask)
        words["products"] = PRODUCTS.index(self.products)
        return (c_int64 * len(order))(*(words[name] for name in order)), arrays


OPTIONS = tuple(CallOptions.__dataclass_fields__)
RUNS = ("save", "saved")
"""What a call says beside them: whether a run is kept, and which one."""
OVER_TIME = ("lengths", "mask", "reset")
"""Options that are arrays; a saved run has copies of them."""


def _rows(
    function: str, name: str, value: npt.ArrayLike | None, shape: tuple[int, ...], kind: type
) -> npt.NDArray[np.generic] | None:
    if value is None:
        return None
    array = _array(function, name, value)
    fits = array.dtype.kind in ("iu" if kind is np.int64 else "bu")
    if array.shape != shape or not fits:
        raise KernelError(
            f"{function}: {name} is {array.dtype} {array.shape}, expected {shape} of "
            f"{'integers' if kind is np.int64 else 'bool'}"
        )
    return np.ascontiguousarray(array, kind)


def _array(function: str, name: str, value: AnyArgument) -> npt.NDArray[np.generic]:
    """A value as an array. Raises KernelError: rows that differ in length, a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise KernelError(f"{function}: {name} is a masked array; pass it filled, and mask=")
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise KernelError(f"{function}: {name} is no array: {error}") from error


def _address(array: npt.NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _threads(name: str, threads: int | None) -> int:
    """How many threads a call runs on: as asked for, ``CELLGEN_NUM_THREADS``, every processor."""
    if threads is None:
        text = os.environ.get("CELLGEN_NUM_THREADS", "")
        if text and not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_THREADS):
            raise KernelError(
                f"{name}: CELLGEN_NUM_THREADS is {text[:40]!r}, expected a number from 1 to "
                f"{MOST_THREADS}; set it to one or unset it, then all processors are used"
            )
        usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
        threads = int(text) if text else min(len(usable(0)), MOST_THREADS)
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise KernelError(
            f"{name}: threads is {threads!r}, expected a number from 1 to {MOST_THREADS}"
        )
    return threads


class PrebuiltFunction:
    """One function of a cell: ``f(x=..., h_prev=..., ...)`` returns a named tuple of arrays."""

    def __init__(
        self, kernel: PrebuiltKernel, signature: SignatureRecord, entries: Mapping[str, EntryRecord]
    ) -> None:
        self.name: str = signature.name.decode()
        self.label = f"{kernel.name}.{self.name}"
        self.__doc__ = signature.text.decode()
        self._kernel, self._entries = kernel, entries
        self._order: list[int] = signature.dim[: signature.dims]
        members = [PackedMember.read(value) for value in signature.member[: signature.members]]
        self.members = tuple(members)
        self.arguments = {m.name: m for m in members if not m.flags & WRITTEN}
        self.results = {m.name: m for m in members if m.flags & WRITTEN}
        self.saved = tuple(n for n, m in self.results.items() if m.flags & SAVED)
        self.over_time = bool(signature.has_team)
        self._has_workspace = bool(signature.has_workspace)
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
        options = CallOptions(**stated)
        arrays, scalars, dtype = self._taken(arguments)
        sizes = self._sizes({name: array.shape for name, array in arrays.items()})
        wanted = [n for n in self.results if save or n not in self.saved]
        arrays_out = {n: np.empty(self.results[n].shape(sizes), dtype) for n in wanted}
        addresses = {name: _address(array) for name, array in (arrays | arrays_out).items()}
        words = [
            int(np.float64(scalars[m.name]).view(np.int64))
            if m.role == SCALAR
            else addresses.get(m.name)
            for m in self.members
        ]
        self._run(words, sizes, dtype, options)
        kept = {n: arrays_out.pop(n) for n in self.saved if n in arrays_out}
        if save:
            own = {name: scalars[name] for name in scalars if name in arguments}
            run = {
                n: np.array(v) if n in OVER_TIME and v is not None else v for n, v in stated.items()
            }
            return self._result_saved(**arrays_out, saved=SavedArrays({**kept, **own}, run))
        return self._result(**arrays_out)

    def named(self, results: Iterable[object]) -> Results:
        """Results that another library has as its arrays, by name."""
        return self._result._make(results)

    def shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Shapes of the results, for shapes of arguments. Raises KernelError."""
        sizes = self._sizes(shapes)
        return {name: member.shape(sizes) for name, member in self.results.items()}

    def _run(
        self,
        words: list[int | None],
        sizes: Mapping[int, int],
        dtype: np.dtype[np.generic],
        options: CallOptions,
    ) -> None:
        entry = self._entries["f32" if dtype.itemsize == 4 else "f64"]
        dims = (c_int64 * len(self._order))(*(sizes[number] for number in self._order))
        stated, keep, address = None, None, None
        if self.over_time:
            names = [self._kernel.dims[number] for number in self._order]
            T, B = (sizes[self._order[names.index(n)]] if n in names else 1 for n in "TB")
            stated, keep = options.words(self.label, self._kernel.option_order, T, B)
            address = ctypes.addressof(stated)
        if self._has_workspace:
            size = entry.size(dims, address)
            if size < 0:
                raise MemoryError(f"{self.label}: these dimensions need too much memory")
            memory = np.empty(size + ALIGNMENT, np.uint8)
            start = _address(memory)
            words += [start + -start % ALIGNMENT, size]
        if self.over_time:
            team = self._kernel.team(_threads(self.label, options.threads))
            words += [team, address]
        code = entry.call(dims, (c_void_p * len(words))(*words))
        del keep, stated
        if code:
            raise KernelError(f"{self.label}: {ERRORS.get(code, f'the kernel returned {code}')}")

    def _taken(
        self, arguments: Mapping[str, AnyArgument]
    ) -> tuple[dict[str, Array], dict[str, float], np.dtype[np.generic]]:
        """Arguments as arrays of one type, without gaps; scalars; the type. Raises KernelError."""
        arrays: dict[str, Array] = {}
        scalars = {n: m.value for n, m in self.arguments.items() if m.role == SCALAR}
        for name, value in arguments.items():
            if name in scalars:
                scalars[name] = self._number(name, value)
            elif name in self.arguments:
                if value is not None:
                    arrays[name] = np.require(_array(self.label, name, value), None, ("C", "A"))
            elif name not in self._kernel.names:
                also = f"; options are {', '.join((*OPTIONS, *RUNS))}" if self.over_time else ""
                raise KernelError(
                    f"{self.label} takes no {name!r}; it takes {', '.join(self.arguments)}{also}"
                )
        lacking = [
            n
            for n, m in self.arguments.items()
            if n not in arrays and n not in scalars and not m.flags & OPTIONAL
        ]
        if lacking:
            raise KernelError(f"{self.label}: {', '.join(lacking)} missing")
        kinds = {array.dtype: name for name, array in arrays.items()}
        if len(kinds) != 1 or next(iter(kinds)) not in (np.float32, np.float64):
            types = ", ".join(f"{name} is {kind}" for kind, name in kinds.items())
            raise KernelError(f"{self.label}: {types}; expected all float32 or all float64")
        return arrays, scalars, next(iter(kinds))

    def _number(self, name: str, value: AnyArgument) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise KernelError(f"{self.label}: {name} is no number: {error}") from error

    def _sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[int, int]:
        """Dimensions by number, from the shapes of arguments. Raises KernelError."""
        sizes: dict[int, int] = {}
        axes = []
        for name, shape in shapes.items():
            if name in self.arguments:
                member = self.arguments[name]
                if len(shape) != len(member.axes):
                    raise self._unfit(name, shape, sizes)
                axes += list(zip(member.axes, shape, strict=True))
        before = -1
        while before != len(sizes):
            before = len(sizes)
            for axis, length in axes:
                _solve(axis, length, sizes)
        unknown = [self._kernel.dims[n] for n in self._order if n not in sizes]
        if unknown:
            raise KernelError(f"{self.label}: no argument tells {', '.join(unknown)}")
        for name, shape in shapes.items():
            if name in self.arguments and self.arguments[name].shape(sizes) != tuple(shape):
                raise self._unfit(name, shape, sizes)
        return sizes

    def _unfit(self, name: str, shape: tuple[int, ...], sizes: Mapping[int, int]) -> KernelError:
        dims = self._kernel.dims
        known = ", ".join(f"{dims[number]} = {size}" for number, size in sorted(sizes.items()))
        expected = self.arguments[name].text(dims)
        return KernelError(
            f"{self.label}: {name} is {tuple(shape)}, expected {expected}"
            + (f" with {known}" if known else "")
        )


def _solve(axis: Sequence[tuple[int, tuple[int, ...]]], length: int, sizes: dict[int, int]) -> None:
    """Find the one dimension of an axis that is not known, where it stands in one term alone."""
    open_terms = [(f, dims) for f, dims in axis if any(d not in sizes for d in dims)]
    if len(open_terms) != 1:
        return
    factor, dims = open_terms[0]
    unknown = [d for d in dims if d not in sizes]
    if len(unknown) != 1:
        return
    rest = length - sum(_product(f, ds, sizes) for f, ds in axis if (f, ds) != (factor, dims))
    by = _product(factor, [d for d in dims if d in sizes], sizes)
    if by > 0 and rest >= 0 and rest % by == 0:
        sizes[unknown[0]] = rest // by


class PrebuiltKernel:
    """A cell: each of its functions by name, ``kernel.sequence_forward(x=..., ...)``."""

    def __init__(self, objects: Objects, name: str) -> None:
        cell = objects.cell(name)
        self.name = name
        self.dims: list[str] = [dim.decode() for dim in cell.dim[: cell.dims]]
        self.option_order = objects.options
        self.team = cell.team
        self._cell = cell

    @cached_property
    def functions(self) -> dict[str, PrebuiltFunction]:
        """By name; read of the descriptor when first asked for."""
        cell, functions = self._cell, {}
        precisions = cell.precision[: cell.precisions]
        for number, signature in enumerate(cell.function[: cell.functions]):
            entries = {p.name.decode(): p.entry[number] for p in precisions}
            functions[signature.name.decode()] = PrebuiltFunction(self, signature, entries)
        return functions

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
