"""Watch memory element by element: what was written, by which program, read by which.

Input: addresses of one access of one program of a kernel. Output: nothing, or AccessError. The
programs of a launch have no order: what one writes, no other may write or read, but through
atomics, or behind them: what a program wrote before a barrier and told by an atomic that releases
is there for one that acquires it, and has a barrier before it reads. ``watched`` feeds it from
Triton's interpreter.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from cellgen.errors import CellgenError

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Program = tuple[int, int, int]
NOBODY, SEVERAL, ATOMIC = -1, -2, -3


class AccessError(CellgenError):
    """A kernel reads or writes what it must not."""

    code = "proof.access"


@dataclass
class WatchedStorage:
    """Memory of some elements: whether each was written, and who touched it in this launch.

    ``is_input``: it came from outside, is whole, and may not be written.
    """

    start: int
    elements: int
    width: int
    is_input: bool
    written: Flags
    launch: int = -1
    writer: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    barriers: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Of its writer before it wrote."""
    reader: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @staticmethod
    def of(
        start: int, elements: int, width: int, *, is_input: bool, is_written: bool
    ) -> WatchedStorage:
        """Watch memory at an address, of elements of ``width`` bytes."""
        written = np.full(elements, is_written)
        return WatchedStorage(start, elements, width, is_input, written)

    def begin(self, launch: int) -> None:
        """Forget who touched what, for a new launch."""
        if self.launch != launch:
            self.launch = launch
            self.writer = np.full(self.elements, NOBODY, np.int32)
            self.barriers = np.zeros(self.elements, np.int32)
            self.reader = np.full(self.elements, NOBODY, np.int32)


@dataclass(frozen=True)
class WatchedView:
    """An argument of a kernel: its name, the elements of a storage that it has, its shape."""

    name: str
    storage: WatchedStorage
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def address(self) -> int:
        """Of its first element."""
        return self.storage.start + self.first * self.storage.width

    @property
    def span(self) -> int:
        """Elements from its first to its last, gaps included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def place(self, offset: int) -> str:
        """Write an offset as indices, for a message."""
        left, indices = offset, []
        by_stride = sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis])
        at = dict.fromkeys(by_stride, 0)
        for axis in by_stride:
            if self.shape[axis] > 1:
                at[axis], left = divmod(left, self.strides[axis])
        indices = [at[axis] for axis in range(len(self.shape))]
        return f"{self.name}[{', '.join(map(str, indices))}]"


@dataclass
class Traffic:
    """Bytes that one kernel moves through one argument, in all launches: lane by lane.

    ``distinct``: bytes that were touched at least once, summed over launches.
    """

    read: int = 0
    written: int = 0
    distinct_read: int = 0
    distinct_written: int = 0


@dataclass
class Order:
    """What programs of a launch know of each other: up to which barrier they have seen others.

    ``taken`` is known behind the next barrier; ``handed`` is what elements of atomics hand on.
    """

    barriers: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    taken: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    handed: dict[tuple[int, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def barrier(self, program: int) -> None:
        """All lanes of a program have come as far."""
        self.barriers[program] += 1
        _join(self.seen[program], self.taken.pop(program, {}))

    def release(self, program: int, elements: list[tuple[int, int]]) -> None:
        """Tell what was written before the last barrier, and what was known."""
        for element in elements:
            _join(self.handed[element], self.seen[program])
            _join(self.handed[element], {program: self.barriers[program]})

    def acquire(self, program: int, elements: list[tuple[int, int]]) -> None:
        """Take what others have told."""
        for element in elements:
            _join(self.taken[program], self.handed[element])

    def is_seen(self, program: int, writer: int, barriers: int) -> bool:
        """Whether a program knows what another wrote behind some barriers."""
        return self.seen[program].get(writer, 0) > barriers


def _join(into: dict[int, int], of: dict[int, int]) -> None:
    for program, barriers in of.items():
        into[program] = max(into.get(program, 0), barriers)


@dataclass
class Shadow:
    """The arguments of the launch that runs, and what is counted of all launches."""

    cell: str
    kernel: str = ""
    launch: int = 0
    views: tuple[WatchedView, ...] = ()
    traffic: dict[tuple[str, str], Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    order: Order = field(default_factory=Order)

    def begin(self, kernel: str, views: tuple[WatchedView, ...]) -> None:
        """Start a launch."""
        self.kernel, self.views, self.launch = kernel, views, self.launch + 1
        self.order = Order()
        for view in views:
            view.storage.begin(self.launch)

    def read(self, addresses: npt.NDArray[np.uint64], width: int, program: Program) -> None:
        """Check a load of one program; addresses of the lanes that are on, in any order."""
        if not addresses.size:
            return
        view, at = self._find(addresses, width, "reads", program)
        storage, number = view.storage, _number(program)
        unwritten = at[~storage.written[at]]
        if unwritten.size:
            self._fail(view, unwritten, program, "reads {}, which nobody has written")
        writer = storage.writer[at]
        others = at[(writer != NOBODY) & (writer != number)]
        others = others[~self._are_seen(storage, others, number)]
        if others.size:
            self._fail(
                view, others, program, "reads {}, which another program of the same launch writes"
            )
        self._count(view, at, width, is_read=True)
        reader = storage.reader[at]
        storage.reader[at] = np.where((reader == NOBODY) | (reader == number), number, SEVERAL)

    def _are_seen(self, storage: WatchedStorage, at: Indices, number: int) -> Flags:
        """Which elements a program may read that others wrote in this launch."""
        wrote = np.stack([storage.writer[at], storage.barriers[at]], 1)
        pairs, which = np.unique(wrote, axis=0, return_inverse=True)
        seen = [self.order.is_seen(number, int(w), int(n)) for w, n in pairs]
        return np.array(seen, bool)[which.reshape(-1)]

    def barrier(self, program: Program) -> None:
        """All lanes of a program have come as far."""
        self.order.barrier(_number(program))

    def write(
        self,
        addresses: npt.NDArray[np.uint64],
        width: int,
        program: Program,
        values: npt.NDArray[np.generic] | None = None,
    ) -> None:
        """Check a store of one program, with its values where lanes may meet."""
        if not addresses.size:
            return
        view, at = self._find(addresses, width, "writes", program)
        storage, number = view.storage, _number(program)
        self._require_output(view, at, program)
        writer, reader = storage.writer[at], storage.reader[at]
        met = at[(writer != NOBODY) & (writer != number)]
        if met.size:
            self._fail(
                view, met, program, "writes {}, which another program of the same launch writes"
            )
        seen = at[(reader != NOBODY) & (reader != number)]
        if seen.size:
            self._fail(
                view, seen, program, "writes {}, which another program of the same launch reads"
            )
        if values is not None:
            self._require_one_value(view, at, values, program)
        self._count(view, at, width, is_read=False)
        storage.written[at] = True
        storage.writer[at] = number
        storage.barriers[at] = self.order.barriers[number]

    def add(
        self,
        addresses: npt.NDArray[np.uint64],
        width: int,
        program: Program,
        *,
        releases: bool = False,
        acquires: bool = False,
    ) -> None:
        """Check an atomic of one program: others may add to the same elements, and no more."""
        if not addresses.size:
            return
        view, at = self._find(addresses, width, "adds to", program)
        storage, number = view.storage, _number(program)
        self._require_output(view, at, program)
        unwritten = at[~storage.written[at]]
        if unwritten.size:
            self._fail(view, unwritten, program, "adds to {}, which nobody has written")
        for others, verb in ((storage.writer[at], "writes"), (storage.reader[at], "reads")):
            met = at[(others != NOBODY) & (others != ATOMIC) & (others != number)]
            if met.size:
                text = f"adds to {{}}, which another program of the same launch {verb}"
                self._fail(view, met, program, text)
        self._count(view, at, width, is_read=True)
        self._count(view, at, width, is_read=False)
        storage.writer[at] = ATOMIC
        elements = [(storage.start, int(element)) for element in at]
        if releases:
            self.order.release(number, elements)
        if acquires:
            self.order.acquire(number, elements)

    def _require_output(self, view: WatchedView, at: Indices, program: Program) -> None:
        if view.storage.is_input:
            self._fail(view, at, program, "writes {}, an input")

    def _require_one_value(
        self,
        view: WatchedView,
        at: Indices,
        values: npt.NDArray[np.generic],
        program: Program,
    ) -> None:
        """Lanes of one store that meet have to bring one value: their order is not said."""
        if np.unique(at).size == at.size:
            return
        order = np.argsort(at, kind="stable")
        bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")[order]
        sorted_at = at[order]
        clash = (sorted_at[1:] == sorted_at[:-1]) & (bits[1:] != bits[:-1])
        if clash.any():
            place = sorted_at[1:][clash]
            self._fail(view, place, program, "writes {} twice in one store, two values")

    def _find(
        self, addresses: npt.NDArray[np.uint64], width: int, verb: str, program: Program
    ) -> tuple[WatchedView, Indices]:
        """The argument that all lanes lie in, and their elements of its storage."""
        offsets = addresses.astype(np.int64)
        low, high = int(offsets.min()), int(offsets.max())
        view = min(self.views, key=lambda v: _distance(v, low), default=None)
        if view is None:
            raise AccessError(f"{self._who(program)} {verb} memory and has no array argument")
        bytes_ = view.span * view.storage.width
        if low < view.address or high + width > view.address + bytes_:
            raise AccessError(
                f"{self._who(program)} {verb} bytes {low - view.address} to "
                f"{high + width - view.address} from the start of {view.name} {view.shape}, which "
                f"has {bytes_} bytes"
            )
        if width != view.storage.width:
            raise AccessError(
                f"{self._who(program)} {verb} {width} bytes an element of {view.name}, whose "
                f"elements have {view.storage.width}"
            )
        if ((offsets - view.address) % width).any():
            raise AccessError(f"{self._who(program)} {verb} {view.name} between two elements")
        at = (offsets - view.storage.start) // width
        self._require_no_gap(view, at, verb, program)
        return view, at

    def _require_no_gap(self, view: WatchedView, at: Indices, verb: str, program: Program) -> None:
        if view.span == int(np.prod(view.shape, dtype=np.int64)):
            return
        has = np.zeros(view.span, bool)
        np.lib.stride_tricks.as_strided(has, view.shape, view.strides)[...] = True
        outside = at[~has[at - view.first]]
        if outside.size:
            self._fail(view, outside, program, f"{verb} {{}}, in a gap of a view")

    def _count(self, view: WatchedView, at: Indices, width: int, *, is_read: bool) -> None:
        traffic = self.traffic[self.kernel, view.name]
        storage = view.storage
        touched = np.unique(at)
        mine = storage.reader if is_read else storage.writer
        fresh = int((mine[touched] == NOBODY).sum()) * width
        if is_read:
            traffic.read += at.size * width
            traffic.distinct_read += fresh
        else:
            traffic.written += at.size * width
            traffic.distinct_written += fresh

    def _who(self, program: Program) -> str:
        return f"{self.cell}: {self.kernel}, program {program},"

    def _fail(self, view: WatchedView, at: Indices, program: Program, text: str) -> NoReturn:
        place = view.place(int(at[0]) - view.first)
        more = f" ({at.size} elements)" if at.size > 1 else ""
        raise AccessError(f"{self._who(program)} {text.format(place)}{more}")


def _number(program: Program) -> int:
    x, y, z = program
    return x | y << 12 | z << 24


def _distance(view: WatchedView, address: int) -> int:
    end = view.address + view.span * view.storage.width
    return max(view.address - address, address - end + 1, 0)
