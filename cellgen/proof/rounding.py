"""How far rounding spreads: what an error of a result is measured against.

A result is wrong by as much as one rounding of each argument and each computed value can do to it,
however little is left of it where terms cancel. So everything is nudged by a relative ``NUDGE`` of
random sign, and the effect on a result, divided by ``NUDGE``, is its scale, or its largest entry
where that is more. What is infinite stays as it is. An error that is within a bar of the largest
entry is within it of the scale, whatever that is: then nothing is nudged (``Scales.of``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray
Nudge: TypeAlias = Callable[[Array], Array]

NUDGE = 2.0**-20
"""Relative size of the nudges: small enough to be linear, far above float64's own rounding."""

PROBES = 3
"""Nudges with independent signs; the largest effect counts, as signs may cancel in one of them."""

PROBES_OF_FEW = 12
"""The same for results of few entries (``FEW``), where the signs of all may cancel: once in 600
cells three nudges of a result of one entry did, each with probability 1/2."""

FEW = 8

DRAWN = 4096
"""Signs that are drawn at a time."""


def largest(array: Array) -> float:
    """The largest size of an entry; 0 where there is none."""
    return float(np.abs(array).max(initial=0))


class _Nudges:
    """Nudges of random signs, drawn many at a time: the arrays that are nudged are small."""

    def __init__(self, rng: np.random.Generator, of_arguments: float, of_values: float) -> None:
        self._rng = np.random.default_rng(rng.integers(2**63))
        self._sizes = of_arguments, of_values
        self._factors: tuple[Array, Array] = np.empty(0), np.empty(0)
        self._length = self._taken = 0

    def argument(self, array: Array) -> Array:
        """Nudge what is given."""
        taken = self._take(array.size)
        return np.asarray(array * self._factors[0][taken].reshape(array.shape))

    def value(self, array: Array) -> Array:
        """Nudge a value on the way."""
        taken = self._take(array.size)
        return np.asarray(array * self._factors[1][taken].reshape(array.shape))

    def _take(self, count: int) -> slice:
        """Where as many factors are that were not taken yet."""
        if self._taken + count > self._length:
            self._length, self._taken = max(count, DRAWN), 0
            self._factors = self._drawn(self._length)
        self._taken += count
        return slice(self._taken - count, self._taken)

    def _drawn(self, count: int) -> tuple[Array, Array]:
        signs = 2.0 * self._rng.integers(0, 2, count, dtype=np.int8) - 1
        arguments, values = (1 + by * signs for by in self._sizes)
        return arguments, values


class Scales:
    """What the error of each result of ``exact`` is measured against.

    ``run`` computes the results once more; it passes every argument through the first function that
    it is given, and every value on the way through the second, whose nudges are ``values`` times as
    large. ``by`` is the size of the nudges, ``probes`` how many there are at least.
    """

    def __init__(
        self,
        exact: Mapping[str, Array],
        run: Callable[[Nudge, Nudge], Mapping[str, Array]],
        rng: np.random.Generator,
        values: float = 1.0,
        by: float = NUDGE,
        probes: int = PROBES,
    ) -> None:
        """Draw the seed of the signs: what ``rng`` gives next is the same, run or not."""
        self._exact, self._run, self._by = exact, run, by
        self._nudges = _Nudges(rng, by, by * values)
        few = any(array.size <= FEW for array in exact.values())
        self._probes = PROBES_OF_FEW if few else probes
        self.largest = {name: largest(array) for name, array in exact.items()}

    @cached_property
    def rounded(self) -> dict[str, float]:
        """The largest entry of each result, or what rounding can do to it where that is more."""
        scales = dict(self.largest)
        for _ in range(self._probes):
            for name, array in self._run(self._nudges.argument, self._nudges.value).items():
                scales[name] = max(scales[name], largest(array - self._exact[name]) / self._by)
        return scales

    def of(self, name: str, difference: float, bar: float) -> float:
        """The largest entry where a difference is within ``bar`` of it, else ``rounded``.

        What rounding can do is asked, which takes several runs, where it decides.
        """
        scale = self.largest[name]
        return scale if difference <= bar * scale else self.rounded[name]


def scales_of(
    exact: Mapping[str, Array],
    run: Callable[[Nudge, Nudge], Mapping[str, Array]],
    rng: np.random.Generator,
    by: float = NUDGE,
) -> dict[str, float]:
    """What the error of each result is measured against, rounding run at once (``Scales``)."""
    return Scales(exact, run, rng, by=by).rounded
