"""What pointwise functions reach, of arguments that lie in intervals.

A function that is not listed may reach anything. Ends are rounded outward where they are not exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cellgen.language.ops.function import Pointwise


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        low, high = self.low + other.low, self.high + other.high
        is_exact = low - self.low == other.low and high - self.high == other.high
        return Interval(low, high) if is_exact else Interval(low, high).outward

    def __mul__(self, other: Interval) -> Interval:
        pairs = [(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        ends = [_times(a, b) for a, b in pairs]
        is_exact = all(abs(a) in (0, 1) or abs(b) in (0, 1) for a, b in pairs)
        product = Interval(min(ends), max(ends))
        return product if is_exact else product.outward

    @property
    def outward(self) -> Interval:
        """The interval, two roundings wider."""
        low, high = self.low, self.high
        for _ in range(2):
            low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        return Interval(low, high)

    def within(self, low: float, high: float) -> Interval:
        """The interval, cut at exact ends."""
        return Interval(max(self.low, low), min(self.high, high))


ANY = Interval(-math.inf, math.inf)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _exp(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


def _sigmoid(x: float) -> float:
    return 1 / (1 + _exp(-x))


def _softplus(x: float) -> float:
    return x if x > 700 else math.log1p(_exp(x))


def _rising(function: Callable[[float], float], low: float, high: float) -> _Row:
    """A function that rises, with its limits."""

    def bound(*of: Interval) -> Interval:
        formed = Interval(function(of[0].low), function(of[0].high)).outward
        return formed.within(low, high)

    return bound


def _between(low: float, high: float) -> _Row:
    return lambda *of: Interval(low, high)


_Row: TypeAlias = Callable[..., Interval]

_FUNCTIONS: Mapping[str, _Row] = {
    "exp": _rising(_exp, 0.0, math.inf),
    "expm1": _rising(lambda x: math.expm1(x) if x < 709 else math.inf, -1.0, math.inf),
    "sigmoid": _rising(_sigmoid, 0.0, 1.0),
    "tanh": _rising(math.tanh, -1.0, 1.0),
    "erf": _rising(math.erf, -1.0, 1.0),
    "softplus": _rising(_softplus, 0.0, math.inf),
    "log_sigmoid": _rising(lambda x: -_softplus(-x), -math.inf, 0.0),
    "relu": _rising(lambda x: max(x, 0.0), 0.0, math.inf),
    "hard_sigmoid": _between(0.0, 1.0),
    "sqrt": _between(0.0, math.inf),
    "abs": _between(0.0, math.inf),
    "sin": _between(-1.0, 1.0),
    "cos": _between(-1.0, 1.0),
    "gt": _between(0.0, 1.0),
    "ge": _between(0.0, 1.0),
    "lt": _between(0.0, 1.0),
    "le": _between(0.0, 1.0),
    "keep": lambda x: x,
    "stop_gradient": lambda x: x,
    "maximum": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
    "minimum": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "where": lambda c, a, b: Interval(min(a.low, b.low), max(a.high, b.high)),
}


def bound_of(function: Pointwise, of: Sequence[Interval]) -> Interval:
    """Bound a function of arguments in some intervals."""
    row = _FUNCTIONS.get(function.row.name)
    return ANY if row is None else row(*of)
