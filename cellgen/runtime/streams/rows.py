"""The rows of a stream: which id has which, and how many there may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cellgen import accept
from cellgen.errors import ArgumentError

Id: TypeAlias = str | int
"""What names a row: of a client, a microphone, a symbol."""
MOST_BITS = 1024
"""Of a number that is an id: a saved stream has its digits."""


@dataclass(frozen=True)
class StreamSizes:
    """How large a stream is: the most rows, and the most steps of one call."""

    room: int
    block: int


class RowsById:
    """Ids in the order of their rows. Messages begin with ``label`` and the name of the call."""

    def __init__(self, label: str, room: int, ids: Sequence[Id]) -> None:
        self._label, self._room = label, room
        self.order: list[Id] = list(ids)
        self.places: dict[Id, int] = {name: row for row, name in enumerate(ids)}

    def place(self, call: str, name: object) -> int:
        """The row of an id. Raises ArgumentError for one that has none."""
        own = id_of(name)
        row = None if own is None else self.places.get(own)
        if row is None:
            some = ", ".join(map(repr, self.order[:3])) or "none"
            more = f" ... ({len(self.order)} ids)" if len(self.order) > 3 else ""
            raise ArgumentError(
                f"{self._label}.{call}: {accept.quoted(name)} has no row, expected one of "
                f"{some}{more}; let it join first"
            )
        return row

    def places_of(self, call: str, names: object) -> list[int]:
        """The rows of several ids. Raises ArgumentError where one has none, or is there twice."""
        label = f"{self._label}.{call}"
        ids = accept.items(label, "rows", names, "ids of rows")
        rows = [self.place(call, name) for name in ids]
        _refuse_twins(label, [self.order[row] for row in rows])
        return rows

    def new_id(self, call: str, name: object) -> Id:
        """The id that a new row would have. Raises ArgumentError: no id, a known one, no room."""
        label = f"{self._label}.{call}"
        own = _checked_id(label, name)
        if own in self.places:
            raise ArgumentError(
                f"{label}: {accept.quoted(own)} has a row already, expected a new id; reset it to "
                f"begin anew"
            )
        if len(self.order) == self._room:
            raise ArgumentError(
                f"{label}: all {self._room} rows are taken, expected a free one for "
                f"{accept.quoted(own)}; let another leave, or make the stream with more room"
            )
        return own

    def add(self, name: Id) -> None:
        """Give a new id the row behind the last."""
        self.order.append(name)
        self.places[name] = len(self.order) - 1

    def remove(self, row: int) -> None:
        """Take the id of a row out; the last one takes its row."""
        del self.places[self.order[row]]
        last = self.order.pop()
        if row < len(self.order):
            self.order[row] = last
            self.places[last] = row


def checked_ids(label: str, rows: int | Iterable[Id]) -> list[Id]:
    """The ids that a stream begins with: 0, 1, ... where their number is given.

    Raises ArgumentError.
    """
    if accept.plain(rows) is not None:
        return list(range(accept.whole(label, "rows", rows, 0)))
    names = accept.items(label, "rows", list(rows) if isinstance(rows, set) else rows, "ids")
    ids = [_checked_id(label, name) for name in names]
    _refuse_twins(label, ids)
    return ids


def checked_sizes(label: str, ids: Sequence[Id], room: object, block: object) -> StreamSizes:
    """The most rows and steps. Raises ArgumentError."""
    least = max(len(ids), 1)
    most = least if room is None else accept.whole(label, "room", room, least)
    return StreamSizes(most, accept.whole(label, "block", block, 1))


def id_of(name: object) -> Id | None:
    """The id that a value is, a number of NumPy as Python's; None where it is none, as True."""
    if isinstance(name, str):
        return name
    number = accept.plain(name)
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number if number.bit_length() <= MOST_BITS else None


def _checked_id(label: str, name: object) -> Id:
    own = id_of(name)
    if own is None:
        raise ArgumentError(
            f"{label}: the id is {accept.quoted(name)}, expected a text or an integer of at most "
            f"{MOST_BITS} bits"
        )
    return own


def _refuse_twins(label: str, ids: Sequence[object]) -> None:
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ArgumentError(f"{label}: rows has {twice!r} twice, expected each id once")
