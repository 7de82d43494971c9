"""``cellgen_descriptor.h`` in ctypes: what a caller knows of a shared object and one symbol."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_void_p

import numpy as np

ROLES = (
    *("input", "state", "static", "weight", "bias", "scalar", "output", "final", "intermediate"),
    *("saved", "upstream", "gradient"),
)
OPTIONAL, OVER_TIME, SAVED, WRITTEN = 1, 2, 4, 8
WEIGHT, BOUNDED, OPERAND, CARRIED = 16, 32, 64, 128


class Term(Structure):
    _fields_ = (("factor", c_int64), ("dim", c_int64 * 3))


class Axis(Structure):
    _fields_ = (("terms", c_int64), ("term", POINTER(Term)))


class Value(Structure):
    _fields_ = (
        *(("name", c_char_p), ("of", c_char_p), ("role", c_int64), ("flags", c_int64)),
        *(("value", c_double), ("axes", c_int64), ("axis", POINTER(Axis) * 8)),
    )

    def shape(self, sizes: list[int]) -> tuple[int, ...]:
        """Lengths of the axes; ``sizes`` by number of dimension in the cell."""
        lengths = []
        for axis in (item.contents for item in self.axis[: self.axes]):
            length = 0
            for term in axis.term[: axis.terms]:
                product = term.factor
                for dim in term.dim:
                    product *= sizes[dim] if dim >= 0 else 1
                length += product
            lengths.append(length)
        return tuple(lengths)


class Signature(Structure):
    _fields_ = (
        *(("name", c_char_p), ("text", c_char_p), ("dims", c_int64), ("dim", POINTER(c_int64))),
        *(("arguments", c_int64), ("members", c_int64), ("member", POINTER(Value))),
        *(("has_workspace", c_int64), ("has_team", c_int64)),
    )


class Entry(Structure):
    _fields_ = (
        ("call", CFUNCTYPE(c_int, c_void_p, c_void_p)),
        ("size", CFUNCTYPE(c_int64, c_void_p, c_void_p)),
        ("plan", CFUNCTYPE(None, c_void_p, c_int64, c_void_p, c_void_p)),
        ("packed_size", CFUNCTYPE(c_int64, c_void_p, c_void_p)),
        ("pack", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int64)),
    )


class Precision(Structure):
    _fields_ = (("name", c_char_p), ("bytes", c_int64), ("entry", POINTER(Entry)))


class CellOfC(Structure):
    _fields_ = (
        *(("abi", c_int64), ("name", c_char_p), ("digest", c_char_p)),
        *(("dims", c_int64), ("dim", POINTER(c_char_p))),
        *(("functions", c_int64), ("function", POINTER(Signature))),
        *(("precisions", c_int64), ("precision", POINTER(Precision))),
        ("team", CFUNCTYPE(c_void_p, c_int)),
        ("team_create", CFUNCTYPE(c_void_p, c_int)),
        ("team_destroy", CFUNCTYPE(None, c_void_p)),
    )


def open_cell(path: str, symbol: str) -> CellOfC:
    """Load a shared object and return its descriptor."""
    found = getattr(ctypes.CDLL(path), symbol)
    found.restype = POINTER(CellOfC)
    return found().contents


class Call:
    """One function of a cell in one precision, on arrays by name."""

    def __init__(self, cell: CellOfC, name: str, precision: str) -> None:
        self.cell = cell
        names = [item.name.decode() for item in cell.function[: cell.functions]]
        suffixes = [item.name.decode() for item in cell.precision[: cell.precisions]]
        self.signature = cell.function[names.index(name)]
        form = cell.precision[suffixes.index(precision)]
        self.entry = form.entry[names.index(name)]
        self.dtype = np.dtype(f"f{form.bytes}")
        self.members = self.signature.member[: self.signature.members]

    def arrays(self, sizes: dict[str, int], seed: int = 7) -> dict[str, np.ndarray]:
        """Draw arguments; results are not a number until they are written."""
        of_cell = [sizes[dim.decode()] for dim in self.cell.dim[: self.cell.dims]]
        numbers, found = np.random.default_rng(seed), {}
        for item in self.members:
            array = numbers.uniform(0.1, 0.9, item.shape(of_cell)).astype(self.dtype)
            if item.flags & WRITTEN:
                array.fill(np.nan)
            found[item.name.decode()] = array
        return found

    def __call__(
        self,
        sizes: dict[str, int],
        arrays: dict[str, np.ndarray],
        threads: int = 1,
        null: tuple[str, ...] = (),
    ) -> int:
        """Fill the words and call; return the error code."""
        names = [dim.decode() for dim in self.cell.dim[: self.cell.dims]]
        order = [names[number] for number in self.signature.dim[: self.signature.dims]]
        dims = (c_int64 * len(order))(*(sizes[name] for name in order))
        words: list[int | None] = []
        for item in self.members:
            array = arrays[item.name.decode()]
            if item.role == ROLES.index("scalar"):
                words.append(int(np.float64(array).view(np.int64)))
            else:
                words.append(None if item.name.decode() in null else array.ctypes.data)
        keep = []
        if self.signature.has_workspace:
            size = self.entry.size(dims, None)
            keep.append(np.empty(size + 64, np.uint8))
            address = keep[-1].ctypes.data
            words += [address + -address % 64, size]
        if self.signature.has_team:
            words += [self.cell.team(threads), None]
        code: int = self.entry.call(dims, (c_void_p * len(words))(*words))
        return code
