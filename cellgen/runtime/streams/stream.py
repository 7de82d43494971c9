"""Run cells step by step: ``kernel.stream(weights, rows=...)``, ``layers.stream(rows=...)``.

Input: layers with their states, one step of every row. Output: the last layer's output. Results
have the bits of ``sequence_forward`` over all steps at once. A step allocates nothing and takes no
lock; the interpreter's lock is free while C runs. Not supported: two directions, a team of threads
(streams of several threads run side by side).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, TracebackType
from typing import IO

import numpy as np

from cellgen.errors import CellgenError
from cellgen.runtime.results import Array
from cellgen.runtime.streams import saved
from cellgen.runtime.streams.frame import Inputs, StreamFrame, StreamFrames
from cellgen.runtime.streams.part import SOME, StreamedLayer
from cellgen.runtime.streams.rows import Id, RowsById, StreamSizes, id_of
from cellgen.runtime.streams.turn import StreamTurn
from cellgen.runtime.waiting import interrupts_held_back


class Stream:
    """Cells that go on step by step, for rows that come and go; states live inside.

    ``ids`` names the rows in their order, ``room`` is how many there may be, ``block`` the most
    steps of one ``run``. What ``step`` and ``run`` return is the stream's own array, which the next
    call writes over: copy what is to stay. One thread at a time may use a stream; several streams
    run side by side. After an error, states are as before the call; after Ctrl-C no row or layer is
    ahead. It cannot be pickled: ``save`` its states, ``restore`` them where the weights are equal.
    """

    def __init__(
        self, label: str, layers: Sequence[StreamedLayer], sizes: StreamSizes, ids: Sequence[Id]
    ) -> None:
        self._label, self._layers, self._sizes = label, tuple(layers), sizes
        self._step_label, self._run_label = f"{label}.step", f"{label}.run"
        self._rows = RowsById(label, sizes.room, ids)
        self._turn = StreamTurn(label, self, CALLS)
        self._copy = 0
        self._picked = np.zeros(sizes.room, np.intp)
        self._frames = self._frames_for(len(ids))

    def __repr__(self) -> str:
        state = "" if self._turn.is_open else ", closed"
        return f"<{self._label}: {len(self)} rows, room for {self.room}{state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise CellgenError(
            f"{self._label}: a stream holds addresses of this process's memory and can be neither "
            f"pickled nor copied; save its states with to_bytes(), and restore them where they "
            f"arrive",
            code="kernel",
        )

    def __len__(self) -> int:
        return len(self._rows.order)

    def __contains__(self, name: object) -> bool:
        return id_of(name) in self._rows.places

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def ids(self) -> tuple[Id, ...]:
        """The names of the rows, in the order of the rows of x."""
        return tuple(self._rows.order)

    @property
    def room(self) -> int:
        """How many rows there may be."""
        return self._sizes.room

    @property
    def block(self) -> int:
        """The most steps of one ``run``."""
        return self._sizes.block

    # --- running ---

    def step(self, x: Inputs, rows: Sequence[Id] | None = None) -> Array:
        """Compute one step: x (B, ...) in the order of ``ids``; return the output (B, ...).

        Where a cell has several inputs or statics, ``x`` is a dict of them by name. With ``rows``,
        ids of rows that differ, these alone go on, x in their order: their states are gathered and
        put back, for which small arrays are made. Raises ArgumentError; CellgenError where the
        stream is closed, or another thread is using it.
        """
        self._turn.take("step")
        try:
            if rows is not None:
                return self._go_on_some(x, rows)
            return self._go_on(self._step_label, self._frames.one, x)
        finally:
            self._turn.give()

    def run(self, x: Inputs) -> Array:
        """Compute up to ``block`` steps: x (T, B, ...); return the outputs (T, B, ...).

        Statics are (B, ...). Raises as ``step``.
        """
        self._turn.take("run")
        try:
            return self._go_on(self._run_label, self._frames.of_steps(self._run_label, x), x)
        finally:
            self._turn.give()

    def _go_on(self, label: str, frame: StreamFrame, x: Inputs) -> Array:
        frame.read(label, x)
        if frame.rows:
            frame.call(self._label, self._copy)
            self._copy = 1 - self._copy
        return frame.output

    def _go_on_some(self, x: Inputs, rows: Sequence[Id]) -> Array:
        """Compute one step of some rows, in the order in which they are named."""
        places = self._rows.places_of("step", rows)
        picked = self._picked[: len(places)]
        picked[:] = places
        frame = self._frames.of_some(len(places))
        frame.read(self._step_label, x)
        if places:
            for layer in self._layers:
                layer.gather(self._copy, picked)
            frame.call(self._label, SOME)
            with interrupts_held_back():
                for layer in self._layers:
                    layer.scatter(self._copy, picked)
        return frame.output

    # --- rows ---

    def join(self, name: Id) -> int:
        """Give a row to an id, its states as they begin; return its place in x.

        Raises ArgumentError: no id, one that is there, no room; CellgenError as ``step``.
        """
        with self._changing("join"):
            own, row = self._rows.new_id("join", name), len(self)
            frames = self._frames_for(row + 1)
            for layer in self._layers:
                layer.begin(self._copy, row)
            self._rows.add(own)
            self._frames = frames
            return row

    def leave(self, name: Id) -> None:
        """Give up the row of an id; the last row takes its place, as ``ids`` then shows.

        Raises ArgumentError for an id that has no row; CellgenError as ``step``.
        """
        with self._changing("leave"):
            row, last = self._rows.place("leave", name), len(self) - 1
            frames = self._frames_for(last)
            for layer in self._layers:
                layer.move(self._copy, last, row)
            self._rows.remove(row)
            self._frames = frames

    def reset(self, name: Id | None = None) -> None:
        """Let the states of a row be as they begin; of all rows where none is named.

        Raises as ``leave``.
        """
        with self._changing("reset"):
            rows = slice(None) if name is None else self._rows.place("reset", name)
            for layer in self._layers:
                layer.begin(self._copy, rows)

    def states(self, name: Id) -> tuple[dict[str, Array], ...]:
        """Copy the states of a row, by name for each layer. Raises as ``leave``."""
        self._turn.take("states")
        try:
            row = self._rows.place("states", name)
            return tuple(
                {state: array[row].copy() for state, array in own.items()}
                for own in self._snapshot().states
            )
        finally:
            self._turn.give()

    @contextmanager
    def _changing(self, call: str) -> Iterator[None]:
        """This thread's turn, with Ctrl-C at its end: rows and layers change together."""
        self._turn.take(call)
        try:
            with interrupts_held_back():
                yield
        finally:
            self._turn.give()

    def _frames_for(self, rows: int) -> StreamFrames:
        return StreamFrames(self._layers, self.block, rows)

    # --- saving ---

    def save(self, file: str | Path | IO[bytes]) -> None:
        """Write ids and states as an .npz, which ``restore`` reads. Weights are not among them.

        Raises ArgumentError: no path and no file; OSError; CellgenError as ``step``.
        """
        saved.write(f"{self._label}.save", file, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return what ``save`` writes. Raises CellgenError as ``step``."""
        self._turn.take("to_bytes")
        try:
            return saved.as_bytes(self._snapshot())
        finally:
            self._turn.give()

    def restore(self, source: str | Path | IO[bytes] | bytes) -> None:
        """Take over ids and states that ``save`` or ``to_bytes`` gave, in place of those here.

        Raises ArgumentError: no saved stream, one of another cell, version of its equations, dtype
        or dimensions, more rows than there is room for; OSError; CellgenError as ``step``.
        """
        label = f"{self._label}.restore"
        self._turn.take("restore")
        try:
            snapshot = saved.read(label, source)
            saved.require_same(label, snapshot, self._snapshot(), self.room)
            rows = RowsById(self._label, self.room, snapshot.ids)
            frames = self._frames_for(len(snapshot.ids))
            with interrupts_held_back():
                for layer, states in zip(self._layers, snapshot.states, strict=True):
                    layer.put(self._copy, list(states.values()))
                self._rows = rows
                self._frames = frames
        finally:
            self._turn.give()

    def _snapshot(self) -> saved.Snapshot:
        """Ids and views of the states, as they are."""
        states = tuple(
            {n: a[: len(self)] for n, a in zip(p.names, p.copies[self._copy], strict=True)}
            for p in self._layers
        )
        return saved.Snapshot(self._layers[0].cell, self._layers[0].digest, self.ids, states)

    def close(self) -> None:
        """Let nothing use the stream any more; it may be closed twice."""
        self._turn.close()


_TAKE_A_TURN = (
    *(Stream.step, Stream.run, Stream.join, Stream.leave, Stream.reset, Stream.states),
    *(Stream.to_bytes, Stream.restore),
)
CALLS: frozenset[CodeType] = frozenset(call.__code__ for call in _TAKE_A_TURN)
"""The code of the methods that take a turn."""
