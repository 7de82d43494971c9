"""How steps of a call lie as segments on a device: rows of one call of the same kernel.

All rows are cut alike, in the order of computation: T steps of B rows are s steps of T / s x B
rows, and what is left is one call more. A row of a kernel has the bits that it has alone, so that
segments which start from the right bits end with them, as those of the CPU do
(``runtime/call/segments.py``). A segment behind the end of its row has no steps: its first state
says nothing, and the row's last one is that of the segment in which it ends.

Input: arrays of a framework. Output: operands of calls, and what their results say. Nothing here
looks at values: each bridge says how it decides by them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from cellgen.frameworks.layout import TensorLayout
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.segments import WARM

Arrays: TypeAlias = Sequence[Any]
Pick: TypeAlias = Callable[[Any, int], Any]
"""Takes some segments of an array, of which they are an axis."""


@dataclass(frozen=True)
class Operands:
    """What one call of the kernel is given."""

    lengths: Any
    reset: Any
    theta: list[Any]


@dataclass(frozen=True)
class Segments:
    """The steps of a call as ``count`` segments, two at least, of as many steps each.

    ``library`` is torch or jax.numpy, ``numbers`` makes the first so many integers, ``theta`` are
    the arrays of the layout, one row and one state at least. Arrays of states have the rows of the
    first segment, then those of the second.
    """

    library: Any
    numbers: Callable[[int], Any]
    layout: TensorLayout
    theta: Arrays
    count: int
    lengths: Any = None
    reset: Any = None
    reverse: bool = False

    @property
    def total(self) -> int:
        """The steps of a row."""
        return int(self._timed.shape[0])

    @property
    def rows(self) -> int:
        """The rows of the call."""
        return int(self._timed.shape[1])

    @property
    def steps(self) -> int:
        """The steps of a segment."""
        return self.total // self.count

    @property
    def _timed(self) -> Any:
        pairs = zip(self.layout.theta, self.theta, strict=True)
        return next(array for item, array in pairs if item.over_time)

    # --- what calls are given ---

    def guess(self) -> Operands:
        """Give the last steps of each segment, which begin with the row's own first state."""
        first = states_of(self.layout, self.theta)
        return self.side_by_side([self._tiled(one, self.count) for one in first], warm=True)

    def side_by_side(
        self, states: Arrays, pick: Pick = lambda array, _: array, *, warm: bool = False
    ) -> Operands:
        """Give segments beside each other, those that ``pick`` takes, from first states."""
        count, at = states[0].shape[0] // self.rows, slice(None)
        if warm:
            few = max(self.steps // WARM, 1)
            at = slice(few) if self.reverse else slice(self.steps - few, None)

        def flat(array: Any) -> Any:
            part = pick(array, 1)[at]
            return part.reshape(part.shape[0], -1, *part.shape[3:])

        lengths, reset = None, None
        if self.lengths is not None:
            begins = self._begins[:, None] + (at.start or 0)
            most = len(range(self.steps)[at])
            own = self.library.clip(self.lengths[None] - begins, 0, most)
            lengths = pick(own, 0).reshape(-1)
        if self.reset is not None:
            reset = flat(self._cut(self.reset))
        cut = iter(self._over_time)
        return self._operands(states, count, lengths, reset, lambda _: flat(next(cut)))

    def rest(self, done: int, states: Arrays) -> Operands:
        """Give the steps behind the first ``done`` ones as they are."""
        at = self._behind(done)
        lengths = self.lengths
        if lengths is not None:
            lengths = self.library.clip(lengths - at.start, 0, self.total - done)
        reset = None if self.reset is None else self.reset[at]
        return self._operands(states, 1, lengths, reset, lambda array: array[at])

    def _operands(
        self, states: Arrays, count: int, lengths: Any, reset: Any, over_time: Callable[[Any], Any]
    ) -> Operands:
        left, theta = iter(states), []
        for item, array in zip(self.layout.theta, self.theta, strict=True):
            if item.over_time:
                theta.append(over_time(array))
            elif item.role == "state":
                theta.append(next(left))
            elif item.shape[:1] == ("B",):
                theta.append(self._tiled(array, count))
            else:
                theta.append(array)
        return Operands(lengths, reset, theta)

    def _tiled(self, array: Any, count: int) -> Any:
        """The rows of an array once for each segment."""
        return self.library.tile(array, (count, *[1] * (array.ndim - 1)))

    @cached_property
    def _begins(self) -> Any:
        """The step at which each segment begins, by time."""
        order = self.numbers(self.count)
        if self.reverse:
            return self.total - (order + 1) * self.steps
        return order * self.steps

    @cached_property
    def _over_time(self) -> list[Any]:
        pairs = zip(self.layout.theta, self.theta, strict=True)
        return [self._cut(array) for item, array in pairs if item.over_time]

    def _behind(self, done: int, *, is_ordered: bool = False) -> slice:
        """Which steps are computed behind the first ``done`` ones."""
        turns = self.reverse and not is_ordered
        return slice(0, self.total - done) if turns else slice(done, self.total)

    def _whole(self, array: Any, done: int, after: Any = None, *, is_ordered: bool = False) -> Any:
        """Put the first ``done`` segments of rows together, and what was left behind them."""
        turns = self.reverse and not is_ordered
        parts = array.reshape(self.steps, self.count, self.rows, *array.shape[2:])
        parts = parts.swapaxes(0, 1)[:done]
        parts = self.library.flip(parts, (0,)) if turns else parts
        own = parts.reshape(done * self.steps, self.rows, *array.shape[2:])
        both = [own] if after is None else [after, own] if turns else [own, after]
        return self.library.concatenate(both)

    def _cut(self, array: Any, *, is_ordered: bool = False) -> Any:
        """An array (T, B, ...) as (s, count, B, ...), without the steps that are left.

        Its steps go on by time, or are in the order of computation.
        """
        length, turns = self.count * self.steps, self.reverse and not is_ordered
        part = array[self.total - length :] if turns else array[:length]
        part = part.reshape(self.count, self.steps, *array.shape[1:])
        return (self.library.flip(part, (0,)) if turns else part).swapaxes(0, 1)

    # --- what results say ---

    def wrong(self, firsts: Arrays, ends: Arrays, tolerance: float) -> Any:
        """Which rows (count - 1, B), from the second segment on, do not follow from those before.

        A first state has the bits of the last one before it, or is near enough, as NaN is to NaN;
        where a row has ended, it may be any.
        """
        library, alike = self.library, []
        for own, last in zip(firsts, ends, strict=True):
            a, b = own[self.rows :], last[: -self.rows]
            word = {4: library.int32, 8: library.int64}[a.dtype.itemsize]
            same = a.view(word) == b.view(word)
            if tolerance:
                near = abs(a - b) <= tolerance * library.clip(abs(b), 1.0, None)
                same = same | (library.isfinite(b) & near) | (library.isnan(a) & library.isnan(b))
            alike.append(same.reshape(self.count - 1, self.rows, -1).all(-1))
        wrong = ~functools.reduce(operator.and_, alike)
        if self.lengths is not None and not self.reverse:
            wrong = wrong & (self._begins[1:, None] < self.lengths)
        return wrong

    def following(self, firsts: Arrays, ends: Arrays, wrong: Any) -> list[Any]:
        """Give first states, those that are wrong from the segment before."""
        chosen, rows = wrong.reshape(-1), self.rows
        return [
            self.library.concatenate(
                [
                    own[:rows],
                    self.library.where(
                        chosen.reshape(-1, *[1] * (own.ndim - 1)), last[:-rows], own[rows:]
                    ),
                ]
            )
            for own, last in zip(firsts, ends, strict=True)
        ]

    def first_of_all(self, ends: Arrays) -> list[Any]:
        """Give first states of all segments from last states of those before."""
        first = states_of(self.layout, self.theta)
        return [
            self.library.concatenate([own, last[: -self.rows]])
            for own, last in zip(first, ends, strict=True)
        ]

    def last(self, ends: Arrays, done: Any) -> list[Any]:
        """Give the states of each row behind so many segments."""
        place = (done - 1) * self.rows + self.numbers(self.rows)
        if self.lengths is not None and not self.reverse:
            own = self.library.clip((self.lengths - 1) // self.steps, 0, None)
            own = self.library.where(own < done, own, done - 1)
            place = own * self.rows + self.numbers(self.rows)
        return [array[place] for array in ends]

    def joined(
        self, items: Sequence[Argument], results: Arrays, done: int, rest: Arrays | None
    ) -> list[Any]:
        """Give the results of the call: of the first ``done`` segments, then of what was left.

        What steps save lies in the order of computation, all else by time.
        """
        states = (item.name for item in self.layout.theta if item.role == "state")
        ends = self.last(last_states(self.layout, results), done)
        by_name = dict(zip(states, ends, strict=True))
        whole: list[Any] = []
        for place, (item, array) in enumerate(zip(items, results, strict=True)):
            after = None if rest is None else rest[place]
            if not has_steps(item):
                whole.append(by_name[item.of] if after is None else after)
                continue
            whole.append(self._whole(array, done, after, is_ordered=item.saved))
        return whole


@dataclass(frozen=True)
class SegmentsBack(Segments):
    """The same steps on their way back: what calls of the backward pass are given, and give."""

    def ends(self, kept: Arrays) -> list[Any]:
        """Give the states behind each segment from what the forward pass of all steps gave.

        Where a row has ended before, they may be any.
        """
        layout, own = self.layout, states_of(self.layout, self.theta)
        by_name = dict(zip((item.name for item in layout.outputs), kept, strict=False))
        after = (by_name[layout.forward.states[i.name]] for i in layout.theta if i.role == "state")
        states = []
        for first, array in zip(own, after, strict=True):
            last = self._cut(array)[0 if self.reverse else -1]
            if self.lengths is not None and self.reverse:  # no step of the row has been computed
                none = self._begins[:, None] >= self.lengths
                none = none.reshape(*none.shape, *[1] * (first.ndim - 1))
                last = self.library.where(none, first[None], last)
            states.append(last.reshape(-1, *first.shape[1:]))
        return states

    def as_rows(self, items: Sequence[Argument], arrays: Arrays) -> list[Any]:
        """Give arrays over time with segments as rows, None for others."""
        return [
            self._cut(array, is_ordered=item.saved).reshape(self.steps, -1, *array.shape[2:])
            if array is not None and has_steps(item)
            else None
            for item, array in zip(items, arrays, strict=True)
        ]

    def of_rest(self, items: Sequence[Argument], arrays: Arrays) -> list[Any]:
        """Give what arrays have of the steps behind the segments, others as they are."""
        done = self.count * self.steps
        return [
            array[self._behind(done, is_ordered=item.saved)]
            if array is not None and has_steps(item)
            else array
            for item, array in zip(items, arrays, strict=True)
        ]

    def gradients(self, items: Sequence[Argument], parts: Arrays, rest: Arrays | None) -> list[Any]:
        """Give the gradients of ``items`` of theta from those of segments, and of what is left."""
        whole: list[Any] = []
        for place, (item, array) in enumerate(zip(items, parts, strict=True)):
            after = None if rest is None else rest[place]
            if array is None:
                whole.append(None)
            elif item.over_time:
                whole.append(self._whole(array, self.count, after))
            elif item.role == "state":
                whole.append(array[: self.rows])
            else:
                if item.shape[:1] == ("B",):
                    array = array.reshape(self.count, self.rows, *array.shape[1:]).sum(0)
                whole.append(array if after is None else array + after)
        return whole


def states_of(layout: TensorLayout, theta: Arrays) -> list[Any]:
    """Give the first states among arrays of the layout."""
    return [a for item, a in zip(layout.theta, theta, strict=True) if item.role == "state"]


def last_states(layout: TensorLayout, results: Arrays) -> list[Any]:
    """Give the last states among results, in the order of the first ones."""
    finals = {o.of: a for o, a in zip(layout.outputs, results, strict=False) if not o.over_time}
    return [finals[item.name] for item in layout.theta if item.role == "state"]


def has_steps(item: Argument) -> bool:
    """Whether a result has all steps: what is saved, too."""
    return item.over_time or item.saved
