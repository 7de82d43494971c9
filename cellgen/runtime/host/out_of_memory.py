"""Say that there is no memory where NumPy does not.

An iterator of NumPy's that gets no memory fails without a word, and the interpreter raises
SystemError in its place. What works with NumPy's functions, rather than with arrays alone, is
decorated here, so that every call of a kernel that lacks memory ends in MemoryError.

NumPy 2 does worse where arithmetic, or indices, need a buffer for arrays of more than 500 elements
that are not of one shape and contiguous (reversed, or broadcast): without memory for it the process
dies, since NumPy raises the error without the interpreter's lock. Such arrays are copied first: see
``dense``, ``steps_within`` and ``of_steps``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeAlias, TypeVar, cast

import numpy as np

Array: TypeAlias = np.ndarray
Owner = TypeVar("Owner")
Method = TypeVar("Method", bound=Callable[..., object])

SAID_NOTHING = ("without setting an exception", "without exception set")
"""How the interpreter's message ends where a function in C failed and did not say why."""


def named_in_memory_errors(name: Callable[[Owner], str]) -> Callable[[Method], Method]:
    """Let a method raise MemoryError where NumPy fails without a word; ``name`` is its object's."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def wrapped(owner: Owner, /, *args: object, **kwargs: object) -> object:
            try:
                return method(owner, *args, **kwargs)
            except SystemError as error:
                if not str(error).endswith(SAID_NOTHING):
                    raise
                raise MemoryError(
                    f"{name(owner)}: no memory for an array that is needed on the way; call it "
                    f"with fewer rows or steps at a time"
                ) from error

        return cast(Method, wrapped)

    return decorate


def dense(array: Array | float) -> Array:
    """Return an array for arithmetic: itself if it is contiguous, else a copy."""
    return np.asarray(array, order="C")


def of_steps(numbers: Array, rows: int) -> Array:
    """Repeat a number of each step for all rows, (T, B)."""
    return np.repeat(numbers, rows).reshape(len(numbers), rows)


def steps_within(lengths: Array, steps: int) -> Array:
    """Tell which steps are within each row's length, (T, B)."""
    return of_steps(np.arange(steps), len(lengths)) < np.tile(lengths, (steps, 1))
