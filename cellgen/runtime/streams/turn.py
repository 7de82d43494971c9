"""Whose turn it is to use a stream: one thread's at a time, known without a lock."""

from __future__ import annotations

import weakref

from cellgen.errors import CellgenError
from cellgen.runtime.system import after_fork_in_child


class StreamTurn:
    """A token that one thread at a time holds: ``pop`` of a list is one step of the interpreter."""

    def __init__(self, label: str) -> None:
        self._label, self.is_open = label, True
        self._token: list[None] = [None]
        _turns.add(self)

    def take(self, call: str) -> None:
        """Take the token; ``give`` it back. Raises CellgenError: closed, or another has it."""
        try:
            self._token.pop()
        except IndexError:
            self._refuse(call)

    def give(self) -> None:
        """Give the token back."""
        if self.is_open:
            self._token.append(None)

    def close(self) -> None:
        """Let nobody take it again."""
        self.is_open = False
        self._token.clear()

    def renew(self) -> None:
        """Let a forked child use what a thread of its parent was using."""
        if self.is_open:
            self._token = [None]

    def _refuse(self, call: str) -> None:
        if self.is_open:
            raise CellgenError(
                f"{self._label}.{call}: another thread is using this stream, expected one at a "
                f"time; make a stream for each thread, or let one thread call it",
                code="kernel",
            )
        raise CellgenError(
            f"{self._label}.{call}: the stream is closed, expected an open one; make another",
            code="kernel",
        )


_turns: weakref.WeakSet[StreamTurn] = weakref.WeakSet()


def _renew_all() -> None:
    for turn in _turns:
        turn.renew()


after_fork_in_child(_renew_all)
