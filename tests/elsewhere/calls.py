"""Calls of every function of a cell, as a file for ``main.c``, and what they return here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

import cellgen
from cellgen.runtime.kernel import Kernel
from tests.descriptor import ROLES, WEIGHT, WRITTEN, Call, CellOfC, Value, open_cell

SIZES = (3, 2, 5, 7, 17, *(2, 3) * 8)
"""Lengths of T, B, I and H where a cell has them, then of any other dimension, in its order."""
NAMES = ("T", "B", "I", "H")
MORE = {"T": 9, "B": 4, "I": 6, "H": 19}
"""A second shape: more than a vector of units, more rows than one tile of some."""

BOUNDS = {"f32": 4e-6, "f64": 2e-14}
"""Largest difference between two machines, of the largest entry of an array: some 32 roundings in
float32 and 90 in float64. Products are the same chain of multiplications and additions; lanes of
sums and functions of libm in double differ. Machines without fma are held to this one without:
where sums cancel, or an exponential multiplies what was lost, one rounding less is all there is."""


@dataclass(frozen=True)
class Made:
    """One call made here: how ``main.c`` reads it, what its results are."""

    label: str
    text: bytes
    code: int
    results: tuple[tuple[str, np.ndarray], ...]


@dataclass(frozen=True)
class Compared:
    """How far results from elsewhere are off; ``equal`` of ``arrays`` are the same to the bit."""

    label: str
    largest: float
    bound: float
    arrays: int
    equal: int

    @property
    def ok(self) -> bool:
        """Whether no entry differs by more than the bound."""
        return self.largest <= self.bound


def calls_of(name: str, shapes: Sequence[dict[str, int]] | None = None) -> list[Made]:
    """Make every call of a shipped cell here, in both precisions and two shapes."""
    kernel = cellgen.load(name)
    cell = open_cell(str(kernel.build().path), f"{name}_cellgen")
    return [
        made
        for number, sizes in enumerate(shapes or _shapes(kernel))
        for precision in BOUNDS
        for made in _chain(cell, sizes, precision, threads=1 + number)
    ]


def _shapes(kernel: Kernel) -> tuple[dict[str, int], dict[str, int]]:
    dims = dict.fromkeys(dim for f in kernel.interface.functions for dim in f.dims)
    first = dict(zip(NAMES, SIZES, strict=False))
    rest = iter(SIZES[len(NAMES) + 1 :])
    small = {dim: first[dim] if dim in first else next(rest) for dim in dims}
    return small, {dim: MORE.get(dim, length) for dim, length in small.items()}


def _chain(cell: CellOfC, sizes: dict[str, int], precision: str, threads: int) -> Iterator[Made]:
    """Functions one after the other: what one returns the later ones are given."""
    for positive in (False, True):
        made = list(_calls(cell, sizes, precision, threads, positive))
        if all(np.isfinite(array).all() for one in made for _, array in one.results):
            break
    yield from made


def _calls(
    cell: CellOfC, sizes: dict[str, int], precision: str, threads: int, positive: bool
) -> Iterator[Made]:
    known: dict[bool, dict[str, np.ndarray]] = {False: {}, True: {}}
    place = [item.name.decode() for item in cell.precision[: cell.precisions]].index(precision)
    for number, signature in enumerate(cell.function[: cell.functions]):
        call = Call(cell, signature.name.decode(), precision)
        before = known[bool(signature.has_team)]
        arrays = call.arrays(sizes)
        for member, item in enumerate(call.members):
            name = item.name.decode()
            if not item.flags & WRITTEN:
                array = before.get(name)
                drawn = _drawn(item, arrays[name], seed=1000 * number + member, positive=positive)
                arrays[name] = drawn if array is None else array
        code = call(sizes, arrays)
        head = [number, place, threads, *(sizes[dim] for dim in _dims(cell, signature))]
        written = [item.name.decode() for item in call.members if item.flags & WRITTEN]
        results = tuple((name, arrays[name].copy()) for name in written)
        label = f"{cell.name.decode()} {call.signature.name.decode()} {precision}"
        yield Made(label, _text(head, call, arrays), code, results)
        before.update(arrays)


def _dims(cell: CellOfC, signature) -> list[str]:
    names = [dim.decode() for dim in cell.dim[: cell.dims]]
    return [names[number] for number in signature.dim[: signature.dims]]


def _drawn(item: Value, like: np.ndarray, seed: int, positive: bool) -> np.ndarray:
    """Arguments of ordinary size: weights by their fan-in, scalars at their defaults."""
    if item.role == ROLES.index("scalar"):
        return np.array(item.value)
    scale = 1 / np.sqrt(max(like.shape[0], 1)) if item.flags & WEIGHT and like.ndim > 1 else 0.5
    array = scale * np.random.default_rng(seed).standard_normal(like.shape)
    return (np.abs(array) + 0.05 if positive else array).astype(like.dtype)


def _text(head: list[int], call: Call, arrays: dict[str, np.ndarray]) -> bytes:
    named = [(item, arrays[item.name.decode()]) for item in call.members]
    counts = [
        8 if item.role == ROLES.index("scalar") else -1 if not array.size else array.nbytes
        for item, array in named
    ]
    parts = [np.array([*head, *counts], np.int64).tobytes()]
    parts += [_whole(array.tobytes()) for item, array in named if not item.flags & WRITTEN]
    return b"".join(parts)


def _whole(text: bytes) -> bytes:
    return text + bytes(-len(text) % 8)


def returned(made: Sequence[Made], found: bytes) -> list[Made]:
    """The same calls with the results that ``main.c`` wrote; a code that is no 0 is an error."""
    elsewhere, at = [], 0
    for one in made:
        code = int(np.frombuffer(found, np.int64, 1, at)[0]) if len(found) >= at + 8 else -1
        at += 8
        if code != one.code or code:
            raise AssertionError(f"{one.label}: code {code} elsewhere, {one.code} here")
        results = []
        for name, array in one.results:
            other = np.frombuffer(found, array.dtype, array.size, at).reshape(array.shape)
            at += (array.nbytes + 7) // 8 * 8
            results.append((name, other))
        elsewhere.append(replace(one, results=tuple(results)))
    if at != len(found):
        raise AssertionError(f"{len(found)} bytes of results, expected {at}")
    return elsewhere


def compare(made: Sequence[Made], found: bytes) -> list[Compared]:
    """Hold what ``main.c`` wrote to the results of ``made``.

    An array that is smaller than the bound of the call's largest entry is what sums that cancel
    leave, rounding alone: its scale is that entry, any other's its own largest one.
    """
    compared = []
    for one, other in zip(made, returned(made, found), strict=True):
        bound = BOUNDS[one.label.rpartition(" ")[2]]
        whole = max((_largest(array) for _, array in one.results), default=0.0)
        largest, equal = 0.0, 0
        for (name, here), (_, there) in zip(one.results, other.results, strict=True):
            if not np.array_equal(np.isfinite(here), np.isfinite(there)):
                raise AssertionError(f"{one.label} {name}: finite entries differ")
            own = _largest(here)
            scale = (whole if own < bound * whole else own) or 1.0
            finite = np.isfinite(here)
            largest = max(largest, _largest(here[finite] - there[finite]) / scale)
            equal += here.tobytes() == there.tobytes()
        compared.append(Compared(one.label, largest, bound, len(one.results), equal))
    return compared


def _largest(array: np.ndarray) -> float:
    """The largest finite entry, by its size."""
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))
