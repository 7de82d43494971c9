"""Remember what was made of an object, by which object it is.

Programs and definitions are frozen, and hashing one goes through all of its equations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

REMEMBERED = 256
"""Objects that are kept, with what was made of them."""


class _Same:
    """An object that equals itself alone."""

    __slots__ = ("argument",)

    def __init__(self, argument: object) -> None:
        self.argument = argument

    def __hash__(self) -> int:
        return id(self.argument)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.argument is self.argument


def once_for_each(function: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Call a function of a frozen object once for each of the last ``REMEMBERED`` objects."""
    cached = lru_cache(maxsize=REMEMBERED)(lambda same: function(same.argument))

    @wraps(function)
    def remembered(argument: Argument) -> Result:
        return cached(_Same(argument))

    return remembered
