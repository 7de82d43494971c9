"""Memory over time: what every step saves, or states at some steps alone.

A forward pass that saves keeps, for each step, what its backward pass reads: T * B numbers of each
saved value. With checkpoints it keeps the states before every k-th step instead; the backward pass
runs one segment of k steps after the other forward once more, from the last one on, and holds what
these steps save. That is one forward pass more, whatever k is.

Input: the interface of ``sequence_forward``, dimensions, a limit in bytes. Output: the number of
steps of a segment (0: every step saves), and how many bytes each choice takes. What counts is what
one call keeps for the other and what a segment holds; results, inputs and weights do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import lengths
from cellgen.runtime.names import state_of
from cellgen.runtime.options import Options, skips

IN_CACHE = 1 << 20
"""Bytes of a segment that a core's second-level cache holds beside what else a step touches."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes of one run of T ``steps``.

    ``saved`` by every step, ``resident`` by each of a segment, and ``kept`` by each checkpoint.
    """

    steps: int
    saved: int
    resident: int
    kept: int

    @property
    def whole(self) -> int:
        """Bytes where every step saves."""
        return self.steps * self.saved

    def total(self, steps: int) -> int:
        """Bytes with segments of so many steps: checkpoints, and a segment and its start."""
        return (
            checkpoints(self.steps, steps) * self.kept
            + (min(steps, self.steps) + 1) * self.resident
        )

    @property
    def least(self) -> int:
        """Steps of the segments that take the fewest bytes, about sqrt(T)."""
        root = math.isqrt(self.steps * self.kept // max(self.resident, 1)) + 1
        lengths = range(1, max(1, min(self.steps, 4 * root + 64)) + 1)
        return min(lengths, key=self.total)


def checkpoints(steps: int, segment: int) -> int:
    """How many states are kept of T ``steps``: before the steps k, 2 k, ... for segments of k."""
    return max(steps - 1, 0) // segment


def kept_items(function: Function, options: Options) -> tuple[tuple[str, Argument], ...]:
    """What a checkpoint holds, in the order of C: names, and results with one step's shape.

    States; where steps may be left out, outputs that are no states too, since those steps repeat
    them.
    """
    finals = {a.of: a for a in function.results if a.role == "final"}
    items = list(finals.items())
    if skips(options):
        states = function.states.values()
        stateless = [a for a in function.results if a.over_time and a.name not in states]
        items += [(state_of(a.name), replace(a, shape=a.shape[1:])) for a in stateless]
    return tuple(items)


def step_bytes(
    function: Function,
    dims: Mapping[str, int],
    itemsize: int,
    options: Options,
    in_full: Collection[str] | None = None,
    stored: np.dtype[Any] | None = None,
) -> StepBytes:
    """Count the bytes of a run with these options.

    Outputs over time are saved too but for those shown ``in_full``; None: all are.
    ``stored``: the type of saved arrays where it is another; segments have that of the call.
    """
    one = {**dims, "T": 1}

    def count(items: list[Argument], size: int = itemsize) -> int:
        return sum(size * math.prod(lengths(item, one)) for item in items)

    over_time = [a for a in function.results if a.shape[:1] == ("T",)]
    saved = [a for a in over_time if a.saved or not (in_full is None or a.name in in_full)]
    kept = [a for _, a in kept_items(function, options)]
    kept_size = itemsize if stored is None else stored.itemsize
    return StepBytes(dims["T"], count(saved, kept_size), count(over_time), count(kept))


def limit_bytes(label: str, limit: object) -> int:
    """A limit as a number of bytes. Raises ArgumentError."""
    expected = "a number of bytes, or None for no limit"
    return accept.whole(label, "memory_limit", limit, 0, expected=expected)


def segment_steps(label: str, needs: StepBytes, limit: object) -> int:
    """Choose the steps of a segment for a limit in bytes; 0: every step saves, which fits.

    About sqrt(T), and as many as a core's cache holds where the limit allows: the cost of a segment
    beside its steps is shared by more of them. Raises ArgumentError where nothing fits.
    """
    most = limit_bytes(label, limit)
    if needs.whole <= most:
        return 0
    steps = needs.least
    if needs.total(steps) > most:
        raise ArgumentError(
            f"{label}: memory_limit is {most:,} bytes, expected {needs.total(steps):,} at least, "
            f"for checkpoints every {steps} of {needs.steps:,} steps ({needs.whole:,} bytes "
            f"without any); allow that, or run fewer rows or steps at a time"
        )
    near = min(needs.steps, IN_CACHE // max(needs.resident, 1))
    while near > steps and needs.total(near) > most:
        near = (steps + near) // 2
    return max(steps, near)


def within_limit(label: str, needs: StepBytes, options: Options) -> Options:
    """Return the options of a run that saves with the steps of a segment in place of a limit.

    Raises ArgumentError where both are given, or nothing fits.
    """
    if options.checkpoint:
        raise ArgumentError(
            f"{label}: memory_limit and checkpoint={options.checkpoint} are both given, expected "
            f"one of them; leave out checkpoint, which memory_limit chooses"
        )
    steps = segment_steps(label, needs, options.memory_limit)
    return replace(options, checkpoint=steps, memory_limit=None)


def empty_checkpoints(
    function: Function, dims: Mapping[str, int], dtype: np.dtype[np.floating], options: Options
) -> dict[str, Any]:
    """Make the arrays of a run's checkpoints, (checkpoints, B, ...), by name."""
    count = checkpoints(dims["T"], options.checkpoint)
    return {
        name: np.empty((count, *lengths(item, dims)), dtype)
        for name, item in kept_items(function, options)
    }
