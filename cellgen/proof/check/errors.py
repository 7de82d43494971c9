"""Measure errors: relative to the largest entry of an array, or to what rounding can do to it.

Where the largest entry is itself what is left of larger terms (one unit, one row), the error is
measured against what rounding can do to it, unless it is within the bar without (``error_within``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cellgen.program.interpret import Sizes, interpret
from cellgen.program.ssa import Program
from cellgen.proof.check.points import Array
from cellgen.proof.rounding import PROBES, Scales

FLOAT64_BAR = 1e-13
"""Two float64 evaluations of the same equations: 450 times the spacing of float64, room for sums of
some hundred terms in another order. An error in the mathematics is of order 1, not 1e-13."""


def raise_to(errors: dict[str, float], name: str, error: float) -> None:
    """Keep the larger error, NaN being the largest."""
    known = errors.get(name, 0.0)
    errors[name] = known if math.isnan(known) or error <= known else error


def error_of(actual: Array, expected: Array, scale: float) -> float:
    """The largest difference in units of ``scale``; infinite where shapes or NaN disagree."""
    difference = _difference(actual, expected)
    if difference == 0:
        return 0.0
    return difference / scale if math.isfinite(difference) and scale != 0 else math.inf


def error_within(
    actual: Array, expected: Array, scales: Scales, name: str, bar: float, least: float = 0.0
) -> float:
    """``error_of`` a result: by its largest entry where that is within the bar, else by rounding.

    ``least`` is the smallest scale that there is.
    """
    return error_of(
        actual, expected, max(scales.of(name, _difference(actual, expected), bar), least)
    )


def _difference(actual: Array, expected: Array) -> float:
    """The largest difference of two entries; infinite where shapes or NaN disagree."""
    if actual.shape != expected.shape:
        return math.inf
    unequal = ~((actual == expected) | (np.isnan(actual) & np.isnan(expected)))
    if not unequal.any():
        return 0.0
    difference = float(np.abs(actual[unequal] - expected[unequal]).max())
    return difference if math.isfinite(difference) else math.inf


def result_scales(
    program: Program,
    arguments: Mapping[str, Array],
    sizes: Sizes,
    exact: Mapping[str, Array],
    rng: np.random.Generator,
    probes: int = PROBES,
) -> Scales:
    """What the error of each result of a program is measured against (``rounding``)."""
    plain = {name: np.array(array) for name, array in arguments.items()}  # as they are by now
    return Scales(
        exact,
        lambda nudge, inner: interpret(
            program, {name: nudge(array) for name, array in plain.items()}, sizes, nudge=inner
        ),
        rng,
        probes=probes,
    )
