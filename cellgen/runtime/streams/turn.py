"""Whose turn it is to use a stream: one thread's at a time, known without a lock."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection
from types import CodeType, FrameType

from cellgen.errors import CellgenError


class _Shut(list[None]):
    """No token, and none is taken back."""

    def append(self, item: None) -> None:
        """Drop the token."""


SHUT = _Shut()


class StreamTurn:
    """A token that one thread at a time holds: ``pop`` of a list is one step of the interpreter.

    Ctrl-C between two steps of the interpreter may lose it. Who finds none looks whether a call
    goes on: ``calls`` has the code of those methods of ``owner`` that take a turn.
    """

    def __init__(self, label: str, owner: object, calls: Collection[CodeType]) -> None:
        self._label, self._owner, self._calls = label, weakref.ref(owner), calls
        self.is_open = True
        self._token: list[None] = [None]

    def take(self, call: str) -> None:
        """Take the token; ``give`` it back. Raises CellgenError: closed, or another has it."""
        try:
            self._token.pop()
        except IndexError:
            self._take_lost(call)

    def give(self) -> None:
        """Give the token back."""
        self._token.append(None)

    def close(self) -> None:
        """Let nobody take it again."""
        self.is_open = False
        self._token = SHUT

    def _take_lost(self, call: str) -> None:
        """Take a token that nobody has: one that Ctrl-C lost, or a thread that a fork ended.

        While it looks, none is taken and none given back, so there are never two: who begins then
        finds this call, and one that is given back then is lost, and taken here the next time.
        """
        self._token, is_free = SHUT, False
        if self.is_open:
            is_free = sum(map(self._is_call, _frames())) <= 1  # this one
            self._token = []
        if not self.is_open:  # closed meanwhile
            self._token = SHUT
            raise CellgenError(
                f"{self._label}.{call}: the stream is closed, expected an open one; make another",
                code="kernel",
            )
        if not is_free:
            raise CellgenError(
                f"{self._label}.{call}: another thread, or an outer call of this one, is using "
                f"this stream, expected one call at a time; make a stream for each thread, or let "
                f"one thread call it",
                code="kernel",
            )

    def _is_call(self, frame: FrameType) -> bool:
        return frame.f_code in self._calls and frame.f_locals.get("self") is self._owner()


def _frames() -> list[FrameType]:
    """What all threads are in, at one moment."""
    frames: list[FrameType] = []
    for last in sys._current_frames().values():
        frame: FrameType | None = last
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    return frames
