"""Triton of pointwise functions, a row for each of the language's.

``SPELLINGS`` says how each row is written; ``FUNCTIONS`` has the text of functions of a module that
it may call: what Triton lacks, or gives to too few digits.
"""

from __future__ import annotations

import re

SPELLINGS: dict[str, str] = {
    "exp": "tl.exp({0})",
    "expm1": "expm1({0})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "tanh": "tanh({0})",
    "sigmoid": "sigmoid({0})",
    "softplus": "softplus({0})",
    "log_sigmoid": "log_sigmoid({0})",
    "sqrt": "square_root({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "pow": "power({0}, {1})",
    "abs": "tl.abs({0})",
    "sign": "sign({0})",
    "floor": "tl.floor({0})",
    "round": "round_to_even({0})",
    "relu": "relu({0})",
    "hard_sigmoid": "clip({0} / 6 + 0.5, 0, 1)",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "clip_exact": "clip({0}, {1}, {2})",
    "clip_straight_through": "clip({0}, {1}, {2})",
    "stop_gradient": "{0}",
    "keep": "{0}",
    "zeros_like": "tl.zeros_like({0})",
    "gt": "tl.where({0} > {1}, 1.0, 0.0)",
    "ge": "tl.where({0} >= {1}, 1.0, 0.0)",
    "lt": "tl.where({0} < {1}, 1.0, 0.0)",
    "le": "tl.where({0} <= {1}, 1.0, 0.0)",
    "where": "tl.where({0} != 0, {1}, {2})",
    "strong_product": "strong_product({0}, {1})",
}
"""Triton of pointwise functions, by the names of their rows."""

REFUSED: dict[str, str] = {
    "atan2": "Triton has no arc tangent that its interpreter runs too",
}
"""Rows that are not spelled, and why."""

FUNCTIONS: dict[str, str] = {
    "sigmoid": '''
def sigmoid(x):
    """Logistic function, without overflow at either end."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1 + e)
''',
    "expm1": '''
def expm1(x):
    """exp(x) - 1, by its series where it would cancel."""
    series = tl.zeros_like(x) + 1
    for n in tl.static_range(9 if x.dtype == tl.float32 else 15, 1, -1):
        series = 1 + series * x / n
    return tl.where(tl.abs(x) < 0.4, x * series, tl.exp(x) - 1)
''',
    "log1p": '''
def log1p(x):
    """log(1 + x), by the series of the inverse of tanh where it would cancel."""
    s = x / (2 + x)
    series = tl.zeros_like(x)
    for n in tl.static_range(13 if x.dtype == tl.float32 else 29, 0, -2):
        series = 1.0 / n + series * s * s
    return tl.where(tl.abs(x) < 0.4, 2 * s * series, tl.log(1 + x))
''',
    "tanh": '''
def tanh(x):
    """Hyperbolic tangent, to all digits near 0."""
    e = expm1(-2 * tl.abs(x))
    return tl.where(x < 0, e, -e) / (2 + e)
''',
    "softplus": '''
def softplus(x):
    """log(1 + exp(x)), without overflow."""
    return tl.where(x > 0, x, 0.0) + log1p(tl.exp(-tl.abs(x)))
''',
    "log_sigmoid": '''
def log_sigmoid(x):
    """log(sigmoid(x)), without overflow."""
    return -softplus(-x)
''',
    "square_root": '''
def square_root(x):
    """Square root, rounded to the nearest."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)
''',
    "power": '''
def power(x, p):
    """x to the power of p; a negative base takes whole exponents alone."""
    size = tl.exp(p * tl.log(tl.abs(x)))
    size = tl.where(x == 0, tl.where(p > 0, 0.0, tl.where(p == 0, 1.0, float("inf"))), size)
    is_odd = p * 0.5 != tl.floor(p * 0.5 + 0 * x)
    negative = tl.where(p == tl.floor(p + 0 * x), tl.where(is_odd, -size, size), float("nan"))
    return tl.where(x < 0, negative, size)
''',
    "sign": '''
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))
''',
    "round_to_even": '''
def round_to_even(x):
    """The nearest whole number, the even one of two."""
    upper = tl.floor(x + 0.5)
    is_tie = (upper - x == 0.5) & (tl.floor(upper * 0.5) * 2 != upper)
    return tl.where(is_tie, upper - 1, upper)
''',
    "relu": '''
def relu(x):
    """x where it is positive, else 0."""
    return tl.where((x > 0) | (x != x), x, 0.0)
''',
    "maximum": '''
def maximum(a, b):
    """The greater one, the first of equal ones; NaN where either is."""
    return tl.where((a >= b) | (a != a), a, b)
''',
    "minimum": '''
def minimum(a, b):
    """The lesser one, the first of equal ones; NaN where either is."""
    return tl.where((a <= b) | (a != a), a, b)
''',
    "clip": '''
def clip(x, low, high):
    """x within [low, high]."""
    return maximum(minimum(x, high), low)
''',
    "strong_product": '''
def strong_product(a, b):
    """The product, and 0 where either is 0, whatever the other is."""
    return tl.where((a == 0) | (b == 0), 0.0, a * b)
''',
}
"""Texts of functions of a module, by name, each behind those that it calls."""
_CALL = re.compile(r"(?<![\w.])(\w+)\(")


def functions_called(text: str) -> set[str]:
    """Functions of the module that a spelling or a function calls, itself among them.

    >>> sorted(functions_called(SPELLINGS["hard_sigmoid"])), functions_called("tl.exp({0})")
    (['clip'], set())
    """
    code = "".join(text.split('"""')[::2])
    return FUNCTIONS.keys() & set(_CALL.findall(code))
