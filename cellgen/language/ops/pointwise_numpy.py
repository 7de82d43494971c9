"""Pointwise functions in NumPy, for real numbers and for complex steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cellgen.language.ops.operator import Array


def real_part(value: Array) -> Array:
    """The real part, by which branches are chosen."""
    return np.real(value)


def chosen_by(first_wins: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Choose between two arguments, entry by entry, by their real parts."""

    def selected(a: Array, b: Array) -> Array:
        return np.where(first_wins(real_part(a), real_part(b)) | np.isnan(real_part(a)), a, b)

    return selected


def compared(test: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Compare two arguments by their real parts: 1 or 0."""
    return lambda a, b: test(real_part(a), real_part(b)).astype(np.float64)


def np_sigmoid(x: Array) -> Array:
    """Logistic function, without overflow at either end."""
    positive = real_part(x) >= 0
    e = np.exp(np.where(positive, -x, x))
    return np.asarray(np.where(positive, 1, e) / (1 + e))


def np_softplus(x: Array) -> Array:
    """``log(1 + exp(x))``, without overflow."""
    positive = real_part(x) > 0
    return np.where(positive, x, 0) + np.log1p(np.exp(np.where(positive, -x, x)))


_erf_of_floats = np.vectorize(math.erf, otypes=[np.float64])


def np_erf(x: Array) -> Array:
    """On the real line, and beside it to the first order."""
    real_part: Array = _erf_of_floats(np.real(x))
    if not np.iscomplexobj(x):
        return real_part
    slope: Array = (2 / math.sqrt(math.pi)) * np.exp(-(np.real(x) ** 2))
    return real_part + 1j * np.imag(x) * slope


def np_abs(x: Array) -> Array:
    """Absolute value with the derivative of the sign."""
    return np.where(real_part(x) < 0, -x, x)


def np_atan2(y: Array, x: Array) -> Array:
    """On the real line, and beside it to the first order."""
    real_part: Array = np.arctan2(np.real(y), np.real(x))
    if not np.iscomplexobj(y) and not np.iscomplexobj(x):
        return real_part
    cross = np.real(x) * np.imag(y) - np.real(y) * np.imag(x)
    angle: Array = real_part + 1j * cross / (np.real(x) ** 2 + np.real(y) ** 2)
    return angle


def np_where(condition: Array, a: Array, b: Array) -> Array:
    """Choose where a condition is not 0."""
    return np.where(real_part(condition) != 0, a, b)


def np_strong_product(a: Array, b: Array) -> Array:
    """Product that is 0 where either factor is 0."""
    return np.where((a == 0) | (b == 0), 0, a * b)


def np_clip(x: Array, low: Array, high: Array) -> Array:
    """Clip with the derivative of the branch that is taken."""
    maximum, minimum = chosen_by(np.greater_equal), chosen_by(np.less_equal)
    return maximum(minimum(x, high), low)
