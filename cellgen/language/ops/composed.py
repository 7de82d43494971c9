"""Functions that are made of rows of the table: what authors call, as compositions."""

from __future__ import annotations

import builtins
from typing import Any

import sympy
from sympy import Expr, sympify

from cellgen.errors import DeclarationError
from cellgen.language.lines import located
from cellgen.language.ops.author import units_mean, units_sum
from cellgen.language.ops.pointwise import (
    absolute,
    clip,
    erf,
    exp,
    floor,
    ge,
    log1p,
    round_,
    sigmoid,
    sqrt,
)
from cellgen.language.ops.sympy_functions import where
from cellgen.language.value import as_operand, check_divisor

_PYTHON_ROUND = builtins.round


@located
def silu(x: Expr) -> Expr:
    """``x sigmoid(x)``, the sigmoid linear unit (Elfwing et al. 2018)."""
    return x * sigmoid(x)


@located
def gelu(x: Expr) -> Expr:
    """``x`` times the normal distribution's share below it (Hendrycks and Gimpel 2016), exact."""
    return x * (1 + erf(x / sympy.sqrt(2))) / 2


@located
def hard_tanh(x: Expr) -> Expr:
    """``clip(x, -1, 1)``: derivative 1 on the closed interval, 0 outside."""
    return clip(x, sympify(-1), sympify(1))


@located
def leaky_relu(x: Expr, slope: Expr | float = 0.01) -> Expr:
    """``x`` above 0 and ``slope * x`` elsewhere; at 0 the derivative is the slope."""
    return where(x > 0, x, as_operand(slope) * x)


@located
def logaddexp(a: Expr, b: Expr) -> Expr:
    """``log(exp(a) + exp(b))`` without overflow; of -infinity twice it is that."""
    a, b = as_operand(a), as_operand(b)
    largest, least = where(ge(a, b), a, b), where(ge(a, b), b, a)  # gradients agree at ties
    is_infinite = ge(absolute(largest), sympy.oo)  # NaN is not, and goes on to derivatives
    below = where(is_infinite, 0, least - largest)
    return where(is_infinite, largest, largest + log1p(exp(below)))


@located
def mod(a: Expr, b: Expr) -> Expr:
    """The remainder ``a - b floor(a / b)``, of the sign of ``b``, as NumPy's.

    The derivative is that of the remainder between its jumps: by ``a`` 1, by ``b``
    ``-floor(a / b)``.
    """
    a, b = as_operand(a), as_operand(b)
    check_divisor(a, b)
    return a - b * floor(a / b)


@located
def nearest(x: Any, *python: Any, **named: Any) -> Any:
    """The nearest whole number, of two the even one, with derivative 0.

    Of what is no expression, Python's ``round``.
    """
    if not isinstance(x, Expr):
        return _PYTHON_ROUND(x, *python, **named)
    if python or named:
        raise DeclarationError(
            "round of an expression takes no digits, it is to whole numbers; write "
            "round(100 * x) / 100 for two digits",
            code="declaration.arity",
        )
    return round_(x)


@located
def l2_normalise(a: Expr, axis: object = None, epsilon: float = 0) -> Expr:
    """``a / sqrt(sum(a * a) + epsilon)`` over units, or the axes of ``sum``.

    Without epsilon it is 0 where ``a`` is, with the derivative 0.
    """
    a = as_operand(a)
    squares = units_sum(a * a, axis)
    if epsilon:
        return a / sqrt(squares + epsilon)
    return a * where(squares > 0, 1 / sqrt(squares), 0)


@located
def rms_norm(a: Expr, axis: object = None, epsilon: float = 1e-6) -> Expr:
    """``a / sqrt(mean(a * a) + epsilon)`` over units, or the axes of ``mean``.

    Zhang and Sennrich 2019; without epsilon 0 where ``a`` is 0, with the derivative 0.
    """
    a = as_operand(a)
    squares = units_mean(a * a, axis)
    if epsilon:
        return a / sqrt(squares + epsilon)
    return a * where(squares > 0, 1 / sqrt(squares), 0)
