"""What the templates of a memory read: its streams by name, and sums over its updates.

Input: a ``Memory``, and the vector that is one more column of it. Output: ``MemoryText``.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.language.value import Value
from cellgen.program.chunks.layers import Decay, Memory
from cellgen.targets.triton.names import held


@dataclass(frozen=True)
class Held:
    """What a buffer holds.

    ``buffer`` is the author's name of it, ``d_`` in front of what reaches it; what else a memory
    needs has a dot in its name. Kernels call it by a name that is free in them, as templates do:
    this is its text.
    """

    buffer: str
    spelled: str

    @staticmethod
    def of(value: Value | str) -> Held:
        """A value of the cell, or what else a memory needs.

        >>> tl = Held.of("tl")
        >>> tl.buffer, str(tl), tl.gradient.buffer, str(tl.gradient)
        ('tl', 'tl_', 'd_tl', 'd_tl_')
        """
        return Held(str(value), held(str(value)))

    def __str__(self) -> str:
        return self.spelled

    @property
    def gradient(self) -> Held:
        """What reaches it."""
        return Held(f"d_{self.buffer}", f"d_{self.spelled}")


@dataclass(frozen=True)
class UpdateText:
    """One update of a memory; ``erased`` pairs erased reads, by number, with coefficients."""

    n: int
    key: Held
    value: Held | None
    scale: Held | None
    erased: tuple[tuple[int, Held], ...]
    added: Held
    held: Held
    left: Held

    @property
    def is_scaled(self) -> bool:
        """Whether what is added is a value, that others multiply by a scale."""
        return bool(self.scale) and not self.erased


@dataclass(frozen=True)
class ReadoutText:
    """What is read of a memory, before a step or after it."""

    n: int
    read: Held
    query: Held
    after: bool

    @property
    def which(self) -> str:
        """Which of the masks and decays is meant."""
        return "after" if self.after else "before"


@dataclass(frozen=True)
class ColumnText:
    """A vector that is one more column of a memory.

    ``is_scale``: that its value is the scale of the matrix.
    """

    name: Held
    value: Held
    is_scale: bool
    read: Held
    first: Held
    last: Held
    states: Held


@dataclass(frozen=True)
class MemoryText:
    """A memory as its templates read it."""

    name: Held
    equation: str
    first: Held
    last: Held
    states: Held
    keys_first: bool
    log_decay: Held | None
    by_key: bool
    by_head: bool
    is_marked: bool
    erasers: tuple[Held, ...]
    updates: tuple[UpdateText, ...]
    readouts: tuple[ReadoutText, ...]
    column: ColumnText | None
    seen: tuple[tuple[int, int, Held], ...]
    """What reads see of what updates that erase add afresh: read, update, buffer."""

    @staticmethod
    def of(memory: Memory, column: Memory | None, equation: str, is_marked: bool) -> MemoryText:
        """Name what a memory's kernels read and write."""
        assert memory.value_axis is not None
        name = Held.of(memory.next)
        updates = _updates(memory)
        erasing = [update.n for update in updates if update.erased]
        return MemoryText(
            name,
            equation,
            Held.of(f"{memory.state}.first"),
            _last(name),
            Held.of(f"{memory.next}.states"),
            memory.key_axis < memory.value_axis,
            _held(memory.log_decay),
            memory.decay is Decay.KEY,
            memory.decay is Decay.HEAD,
            is_marked,
            tuple(map(Held.of, memory.erasers)),
            updates,
            tuple(
                ReadoutText(n, Held.of(one.value), Held.of(one.query), one.after)
                for n, one in enumerate(memory.readouts)
            ),
            _column(column) if column else None,
            tuple(
                (n, u, Held.of(f"{memory.next}.seen.{n}.{u}"))
                for n in range(len(memory.readouts))
                for u in erasing
            ),
        )

    # --- facts ---

    @property
    def state_at(self) -> str:
        """Where an entry of a state lies, by key and value."""
        by_keys, by_values = "ck[:, None] * V + cv[None, :]", "cv[None, :] * K + ck[:, None]"
        return by_keys if self.keys_first else by_values

    @property
    def decays(self) -> bool:
        """Whether anything of the state decays."""
        return self.by_key or self.by_head

    @property
    def sums(self) -> tuple[tuple[str, str], ...]:
        """Sums of logarithms that readers need, after a step and before it."""
        read = {one.which for one in self.readouts} | ({"before"} if self.erasers else set())
        return tuple((which, self.sum_of(which)) for which in ("after", "before") if which in read)

    @staticmethod
    def sum_of(which: str) -> str:
        """The sum of logarithms up to a step, or before it."""
        return "G" if which == "after" else "(G - g)"

    @property
    def each_eraser(self) -> tuple[tuple[int, Held], ...]:
        """Erased reads, by number."""
        return tuple(enumerate(self.erasers))

    @property
    def update_keys(self) -> tuple[Held, ...]:
        """The keys of updates."""
        return tuple(update.key for update in self.updates)

    @property
    def every_key(self) -> tuple[Held, ...]:
        """Queries, erased reads, keys."""
        queries = tuple(readout.query for readout in self.readouts)
        return tuple(dict.fromkeys((*queries, *self.erasers, *self.update_keys)))

    @property
    def read_back(self) -> tuple[Held, ...]:
        """Keys that what goes back from chunk to chunk reads: those that erase are solved for."""
        queries, keys = (one.query for one in self.readouts), (one.key for one in self.plain)
        return tuple(dict.fromkeys((*queries, *self.erasers, *keys)))

    @property
    def erasing(self) -> tuple[UpdateText, ...]:
        """The updates that erase."""
        return tuple(update for update in self.updates if update.erased)

    @property
    def plain(self) -> tuple[UpdateText, ...]:
        """The updates that erase nothing: what they add is known before the state is."""
        return tuple(update for update in self.updates if not update.erased)

    @property
    def erasing_pairs(self) -> tuple[tuple[int, int], ...]:
        """The blocks of (I + M)^-1, by the updates that erase."""
        return tuple((w.n, u.n) for w in self.erasing for u in self.erasing)

    # --- sums over updates ---

    def erasing_sum(self, row: UpdateText, column: int) -> str:
        """M: what an update erases of what another one added at earlier steps."""
        return " + ".join(
            f"{coefficient}[:, None] * X_{read}_{column}" for read, coefficient in row.erased
        )

    def erased_sum(self, read: int) -> str:
        """What reaches an erased read by way of what the same step adds, but for its sign."""
        return " + ".join(
            f"{coefficient}[:, None] * {update.added.gradient}"
            for update, coefficient in self._erasing_by(read)
        )

    def erased_gradient(self, read: int) -> str:
        """What reaches the key of an erased read."""
        return " - ".join(
            ("" if n else "-") + f"{coefficient}[:, None] * Z_{update.n}"
            for n, (update, coefficient) in enumerate(self._erasing_by(read))
        )

    def _erasing_by(self, read: int) -> list[tuple[UpdateText, Held]]:
        return [(u, c) for u in self.updates for e, c in u.erased if e == read]


def _updates(memory: Memory) -> tuple[UpdateText, ...]:
    return tuple(
        UpdateText(
            n,
            Held.of(update.key),
            _held(update.value),
            _held(update.scale),
            tuple((read, Held.of(value)) for read, value in update.erased.items()),
            Held.of(f"{memory.next}.added.{n}"),
            Held.of(f"{memory.next}.held.{n}"),
            Held.of(f"{memory.next}.left.{n}"),
        )
        for n, update in enumerate(memory.updates)
    )


def _column(column: Memory) -> ColumnText:
    value, name = column.updates[0].value, Held.of(column.next)
    assert value is not None
    return ColumnText(
        name,
        Held.of(value),
        column.is_scale,
        Held.of(column.readouts[0].value),
        Held.of(f"{column.state}.first"),
        _last(name),
        Held.of(f"{column.next}.states"),
    )


def _held(value: Value | None) -> Held | None:
    return Held.of(value) if value else None


def _last(state: Held) -> Held:
    """A state after the last step: an output of the cell, which callers know by this name."""
    return Held(f"{state.buffer}_last", f"{state}_last")
