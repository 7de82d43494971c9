"""Remember what was made of an object, by which object it is.

Programs and definitions are frozen, and hashing one goes through all of its equations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

REMEMBERED = 256
"""Objects that are kept, with what was made of them."""


class _Same:
    """An object that equals itself alone."""

    __slots__ = ("given",)

    def __init__(self, given: object) -> None:
        self.given = given

    def __hash__(self) -> int:
        return id(self.given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.given is self.given


def once_for_each(function: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """Call a function of a frozen object once for each of the last ``REMEMBERED`` objects."""
    cached = lru_cache(maxsize=REMEMBERED)(lambda same: function(same.given))

    @wraps(function)
    def remembered(given: Given) -> Made:
        return cached(_Same(given))

    return remembered
