"""What the templates of a memory read: its streams by name, and sums over its updates.

Input: a ``Memory``, and the vector that is one more column of it. Output: ``MemoryText``; buffers
go by the author's names of what they hold, ``d_`` in front of what reaches them, and what else a
memory needs has a dot in its name; kernels go by names that are free in them (``names.held``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cellgen.program.chunks.layers import Decay, Memory
from cellgen.targets.triton.names import held

Naming: TypeAlias = Callable[[str], str]
"""Names of what buffers hold."""


@dataclass(frozen=True)
class UpdateText:
    """One update of a memory; ``erased`` pairs erased reads, by number, with coefficients."""

    n: int
    key: str
    value: str
    scale: str
    erased: tuple[tuple[int, str], ...]
    added: str
    held: str
    left: str

    @property
    def is_scaled(self) -> bool:
        """Whether what is added is a value, that others multiply by a scale."""
        return bool(self.scale) and not self.erased


@dataclass(frozen=True)
class ReadoutText:
    """What is read of a memory, before a step or after it."""

    n: int
    read: str
    query: str
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

    value: str
    is_scale: bool
    read: str
    first: str
    last: str
    states: str


@dataclass(frozen=True)
class MemoryText:
    """A memory as its templates read it."""

    name: str
    equation: str
    first: str
    last: str
    states: str
    keys_first: bool
    log_decay: str
    by_key: bool
    by_head: bool
    is_marked: bool
    erasers: tuple[str, ...]
    updates: tuple[UpdateText, ...]
    readouts: tuple[ReadoutText, ...]
    column: ColumnText | None
    seen: tuple[tuple[int, int, str], ...]
    """What reads see of what updates that erase add afresh: read, update, buffer."""

    @staticmethod
    def both(
        memory: Memory, column: Memory | None, equation: str, is_marked: bool
    ) -> tuple[MemoryText, MemoryText]:
        """A memory in the names of buffers, and in those of its kernels."""
        buffers, kernels = (
            MemoryText.of(memory, column, equation, is_marked, named) for named in (str, held)
        )
        return buffers, kernels

    @staticmethod
    def of(
        memory: Memory, column: Memory | None, equation: str, is_marked: bool, named: Naming
    ) -> MemoryText:
        """Name what a memory's kernels read and write."""
        assert memory.value_axis is not None
        name = str(memory.next)
        updates = _updates(memory, named)
        erasing = [update.n for update in updates if update.erased]
        return MemoryText(
            named(name),
            equation,
            named(f"{memory.state}.first"),
            _last(name, named),
            named(f"{name}.states"),
            memory.key_axis < memory.value_axis,
            named(str(memory.log_decay)) if memory.log_decay else "",
            memory.decay is Decay.KEY,
            memory.decay is Decay.HEAD,
            is_marked,
            tuple(named(str(eraser)) for eraser in memory.erasers),
            updates,
            tuple(
                ReadoutText(n, named(str(one.value)), named(str(one.query)), one.after)
                for n, one in enumerate(memory.readouts)
            ),
            _column(column, named) if column else None,
            tuple(
                (n, u, named(f"{name}.seen.{n}.{u}"))
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
    def each_eraser(self) -> tuple[tuple[int, str], ...]:
        """Erased reads, by number."""
        return tuple(enumerate(self.erasers))

    @property
    def update_keys(self) -> tuple[str, ...]:
        """The keys of updates."""
        return tuple(update.key for update in self.updates)

    @property
    def every_key(self) -> tuple[str, ...]:
        """Queries, erased reads, keys."""
        queries = tuple(readout.query for readout in self.readouts)
        return tuple(dict.fromkeys((*queries, *self.erasers, *self.update_keys)))

    @property
    def read_back(self) -> tuple[str, ...]:
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
            f"{coefficient}[:, None] * d_{update.added}"
            for update, coefficient in self._erasing_by(read)
        )

    def erased_gradient(self, read: int) -> str:
        """What reaches the key of an erased read."""
        return " - ".join(
            ("" if n else "-") + f"{coefficient}[:, None] * Z_{update.n}"
            for n, (update, coefficient) in enumerate(self._erasing_by(read))
        )

    def erased_scores(self, read: int, update: int) -> str:
        """What reaches the scores of an erased read and the key of an update."""
        return " - ".join(
            ("" if n else "-") + f"{coefficient}[:, None] * d_A_{other.n}_{update}"
            for n, (other, coefficient) in enumerate(self._erasing_by(read))
        )

    def _erasing_by(self, read: int) -> list[tuple[UpdateText, str]]:
        return [(u, c) for u in self.updates for e, c in u.erased if e == read]


def _updates(memory: Memory, named: Naming) -> tuple[UpdateText, ...]:
    return tuple(
        UpdateText(
            n,
            named(str(update.key)),
            named(str(update.value)) if update.value else "",
            named(str(update.scale)) if update.scale else "",
            tuple((read, named(str(value))) for read, value in update.erased.items()),
            named(f"{memory.next}.added.{n}"),
            named(f"{memory.next}.held.{n}"),
            named(f"{memory.next}.left.{n}"),
        )
        for n, update in enumerate(memory.updates)
    )


def _column(column: Memory, named: Naming) -> ColumnText:
    value = column.updates[0].value
    assert value is not None
    name = str(column.next)
    return ColumnText(
        named(str(value)),
        column.is_scale,
        named(str(column.readouts[0].value)),
        named(f"{column.state}.first"),
        _last(name, named),
        named(f"{name}.states"),
    )


def _last(name: str, named: Naming) -> str:
    """A state after the last step: an output of the cell, which callers know by this name."""
    return f"{named(name)}_last"
