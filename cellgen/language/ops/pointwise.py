"""Pointwise functions: a NumPy meaning, derivatives and a C spelling each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import sympy
from sympy import Expr, Integer, Rational

from cellgen.errors import DeclarationError
from cellgen.language.constants import exact_constant
from cellgen.language.lines import located
from cellgen.language.ops.function import Growth, Pointwise, PointwiseRow, Sign
from cellgen.language.ops.pointwise_help import TEXTS
from cellgen.language.ops.pointwise_numpy import (
    chosen_by,
    compared,
    np_abs,
    np_atan2,
    np_clip,
    np_erf,
    np_sigmoid,
    np_softplus,
    np_strong_product,
    np_where,
    real_part,
)
from cellgen.language.ops.pointwise_signs import (
    not_negative,
    sign_as_argument,
    sign_as_whole,
    sign_of_branches,
    sign_of_exp,
    sign_of_low_limit,
    sign_of_strong_product,
)
from cellgen.language.value import Value, as_operand

_ERF_SLOPE = exact_constant(2 / sympy.sqrt(sympy.pi))


def _inside(y: Expr, x: Expr, low: Expr, high: Expr) -> Expr:
    return ge(x, low) * le(x, high)


def _slope_by_exponent(y: Expr, x: Expr, p: Expr) -> Expr:
    """``x**p log(x)``, and 0 where ``x**p`` is 0: ``0**p`` is 0 for all p > 0."""
    return choose(le(absolute(y), 0), 0, y * log(x))


def _by_square(part: Expr, y: Expr, x: Expr) -> Expr:
    """A slope of the angle of a point, and 0 at the origin, where the angle has none."""
    square = x**2 + y**2
    return choose(le(square, 0), 0, part / square)


_POINTWISE_ROWS = (
    # name, NumPy meaning, derivatives by (y, *arguments), C spelling
    PointwiseRow(
        "exp",
        np.exp,
        (lambda y, x: y,),
        "cg_exp({0})",
        latex=r"\exp\left({0}\right)",
        sign=sign_of_exp,
        growth=Growth.OVERFLOWS,
        underflows=True,
    ),
    PointwiseRow(
        "expm1",
        np.expm1,
        (lambda y, x: y + 1,),
        "cg_expm1({0})",
        sign=sign_as_argument,
        growth=Growth.OVERFLOWS,
    ),
    PointwiseRow(
        "log",
        np.log,
        (lambda y, x: 1 / x,),
        "cg_log({0})",
        latex=r"\log\left({0}\right)",
        domain=Sign.POSITIVE,
        is_singular=True,
    ),
    PointwiseRow(
        "log1p",
        np.log1p,
        (lambda y, x: 1 / (1 + x),),
        "cg_log1p({0})",
        sign=sign_as_argument,
        domain=Sign.NOT_NEGATIVE,
        is_singular=True,
    ),
    PointwiseRow(
        "tanh",
        np.tanh,
        (lambda y, x: 1 - y**2,),
        "cg_tanh({0})",
        latex=r"\tanh",
        growth=Growth.BOUNDED,
    ),
    PointwiseRow(
        "sigmoid",
        np_sigmoid,
        (lambda y, x: y * (1 - y),),
        "cg_sigmoid({0})",
        latex=r"\sigma",
        sign=not_negative,
        growth=Growth.BOUNDED,
    ),
    PointwiseRow(
        "softplus",
        np_softplus,
        (lambda y, x: sigmoid(x),),
        "cg_softplus({0})",
        sign=not_negative,
    ),
    PointwiseRow(
        "log_sigmoid",
        lambda x: -np_softplus(-x),
        (lambda y, x: sigmoid(-x),),
        "cg_log_sigmoid({0})",
        latex=r"\log\sigma",
        never_positive=True,
    ),
    PointwiseRow(
        "sqrt",
        np.sqrt,
        (lambda y, x: 1 / (2 * y),),
        "cg_sqrt({0})",
        latex=r"\sqrt{{{0}}}",
        sign=sign_as_argument,
        domain=Sign.NOT_NEGATIVE,
        is_singular=True,
    ),
    PointwiseRow(
        "sin",
        np.sin,
        (lambda y, x: cos(x),),
        "cg_sin({0})",
        latex=r"\sin",
        growth=Growth.OSCILLATES,
    ),
    PointwiseRow(
        "cos",
        np.cos,
        (lambda y, x: -sin(x),),
        "cg_cos({0})",
        latex=r"\cos",
        growth=Growth.OSCILLATES,
    ),
    PointwiseRow(
        "erf",
        np_erf,
        (lambda y, x: _ERF_SLOPE * exp(-(x**2)),),
        "cg_erf({0})",
        latex=r"\mathrm{erf}",
    ),
    PointwiseRow(
        "pow",
        np.power,
        (
            lambda y, x, p: strong_product(p, power(x, p - 1)),
            _slope_by_exponent,
        ),
        "cg_pow({0}, {1})",
        growth=Growth.ANYTHING,
        is_singular=True,
    ),
    PointwiseRow(
        "abs",
        np_abs,
        (lambda y, x: sign(x),),
        "cg_abs({0})",
        latex=r"\left|{0}\right|",
        kinks=True,
        transcendental=False,
        sign=not_negative,
        turns_at_zero=True,
    ),
    PointwiseRow(
        "sign",
        lambda x: np.sign(real_part(x)),
        (lambda y, x: Integer(0),),
        "cg_sign({0})",
        kinks=True,
        transcendental=False,
        growth=Growth.STEP,
        turns_at_zero=True,
        jumps=True,
    ),
    *(
        PointwiseRow(
            name,
            lambda x, to_whole=to_whole: to_whole(real_part(x)),
            (lambda y, x: Integer(0),),
            f"cg_{name}({{0}})",
            kinks=True,
            transcendental=False,
            latex=rf"\mathrm{{{name}}}",
            sign=sign_as_whole,
            jump=jump,
            jumps=True,
        )
        for name, to_whole, jump in (
            ("floor", np.floor, lambda x: round_(x)),
            ("round", np.round, lambda x: floor(x) + Rational(1, 2)),
        )
    ),
    PointwiseRow(
        "atan2",
        np_atan2,
        (lambda r, y, x: _by_square(x, y, x), lambda r, y, x: _by_square(-y, y, x)),
        "cg_atan2({0}, {1})",
        latex=r"\mathrm{atan2}",
        growth=Growth.BOUNDED,
    ),
    PointwiseRow(
        "relu",
        lambda x: np.where((real_part(x) > 0) | np.isnan(real_part(x)), x, 0),
        (lambda y, x: gt(y, 0),),
        "cg_relu({0})",
        kinks=True,
        transcendental=False,
        latex=r"\mathrm{relu}",
        sign=not_negative,
        turns_at_zero=True,
    ),
    PointwiseRow(
        "hard_sigmoid",
        lambda x: np_clip(x / 6 + 0.5, np.zeros(()), np.ones(())),
        (lambda y, x: _inside(y, x, Integer(-3), Integer(3)) / 6,),
        "cg_hard_sigmoid({0})",
        kinks=True,
        transcendental=False,
        sign=not_negative,
        growth=Growth.BOUNDED,
    ),
    PointwiseRow(
        "maximum",
        chosen_by(np.greater_equal),
        (lambda y, a, b: ge(a, b), lambda y, a, b: lt(a, b)),
        "cg_maximum({0}, {1})",
        kinks=True,
        transcendental=False,
        latex=r"\max",
        sign=max,
        is_upper_bound=True,
    ),
    PointwiseRow(
        "minimum",
        chosen_by(np.less_equal),
        (lambda y, a, b: le(a, b), lambda y, a, b: gt(a, b)),
        "cg_minimum({0}, {1})",
        kinks=True,
        transcendental=False,
        latex=r"\min",
        sign=min,
    ),
    PointwiseRow(
        "clip_exact",
        np_clip,
        (
            _inside,
            lambda y, x, low, high: lt(x, low),
            lambda y, x, low, high: gt(x, high),
        ),
        "cg_clip({0}, {1}, {2})",
        kinks=True,
        transcendental=False,
        latex=r"\mathrm{clip}",
        sign=sign_of_low_limit,
    ),
    PointwiseRow(
        "clip_straight_through",
        np_clip,
        (
            lambda y, x, low, high: Integer(1),
            lambda y, x, low, high: Integer(0),
            lambda y, x, low, high: Integer(0),
        ),
        "cg_clip({0}, {1}, {2})",
        stated=True,
        kinks=True,
        transcendental=False,
        latex=r"\mathrm{clip}",
        sign=sign_of_low_limit,
    ),
    PointwiseRow(
        "stop_gradient",
        lambda x: x,
        (lambda y, x: Integer(0),),
        "{0}",
        stated=True,
        transcendental=False,
        sign=sign_as_argument,
        carries_zero=True,
    ),
    PointwiseRow(
        "keep",
        lambda x: x,
        (lambda y, x: Integer(1),),
        "{0}",
        latex="{0}",
        transcendental=False,
        sign=sign_as_argument,
        carries_zero=True,
        affine_in=(0,),
    ),
    # The direction of what stands still; programs drop what it is a factor or a term of.
    PointwiseRow(
        "zeros_like",
        lambda x: np.zeros_like(real_part(x)),
        (lambda y, x: Integer(0),),
        "(0 * ({0}))",
        transcendental=False,
        sign=not_negative,
        growth=Growth.STEP,
    ),
    *(
        PointwiseRow(
            name,
            compared(test),
            (lambda y, a, b: Integer(0), lambda y, a, b: Integer(0)),
            f"cg_{name}({{0}}, {{1}})",
            kinks=True,
            transcendental=False,
            latex=latex,
            comparison=comparison,
            sign=not_negative,
            growth=Growth.STEP,
            jumps=True,
        )
        for name, test, comparison, latex in (
            ("gt", np.greater, ">", ">"),
            ("ge", np.greater_equal, ">=", r"\ge"),
            ("lt", np.less, "<", "<"),
            ("le", np.less_equal, "<=", r"\le"),
        )
    ),
    PointwiseRow(
        "where",
        np_where,
        (
            lambda y, c, a, b: Integer(0),
            lambda y, c, a, b: choose(c, 1, 0),
            lambda y, c, a, b: choose(c, 0, 1),
        ),
        "cg_where({0}, {1}, {2})",
        latex=r"\begin{{cases}} {{{1}}} & {{{condition}}} \\ {{{2}}} & \text{{else}} \end{{cases}}",
        kinks=True,
        transcendental=False,
        sign=sign_of_branches,
        affine_in=(1, 2),
        is_choice=True,
    ),
    PointwiseRow(
        "strong_product",
        np_strong_product,
        (lambda y, a, b: b, lambda y, a, b: a),
        "cg_strong_product({0}, {1})",
        transcendental=False,
        sign=sign_of_strong_product,
        carries_zero=True,
        is_strong=True,
    ),
)


def define_pointwise(row: PointwiseRow) -> type[Pointwise]:
    """Make the SymPy function of a row."""
    body: dict[str, object] = {"row": row, "nargs": row.arity}
    if row.name in TEXTS:
        body["__doc__"] = TEXTS[row.name]
    if row.is_choice:
        body["_eval_derivative"] = _where_derivative
    return type(row.name, (Pointwise,), body)


def _where_derivative(node: Pointwise, symbol: Value) -> Expr:
    """Differentiate both branches under one condition, so that equal branches fold to one."""
    condition, a, b = node.args
    d_a, d_b = a.diff(symbol), b.diff(symbol)
    return d_a if d_a == d_b else choose(condition, d_a, d_b)


POINTWISE: Mapping[str, type[Pointwise]] = {
    row.name: define_pointwise(row) for row in _POINTWISE_ROWS
}

exp: type[Pointwise] = POINTWISE["exp"]

expm1: type[Pointwise] = POINTWISE["expm1"]

log: type[Pointwise] = POINTWISE["log"]

log1p: type[Pointwise] = POINTWISE["log1p"]

tanh: type[Pointwise] = POINTWISE["tanh"]

sigmoid: type[Pointwise] = POINTWISE["sigmoid"]

sin: type[Pointwise] = POINTWISE["sin"]

cos: type[Pointwise] = POINTWISE["cos"]

erf: type[Pointwise] = POINTWISE["erf"]

softplus: type[Pointwise] = POINTWISE["softplus"]

log_sigmoid: type[Pointwise] = POINTWISE["log_sigmoid"]

sqrt: type[Pointwise] = POINTWISE["sqrt"]

sign: type[Pointwise] = POINTWISE["sign"]

floor: type[Pointwise] = POINTWISE["floor"]

round_: type[Pointwise] = POINTWISE["round"]

atan2: type[Pointwise] = POINTWISE["atan2"]

relu: type[Pointwise] = POINTWISE["relu"]

hard_sigmoid: type[Pointwise] = POINTWISE["hard_sigmoid"]

maximum: type[Pointwise] = POINTWISE["maximum"]

minimum: type[Pointwise] = POINTWISE["minimum"]

stop_gradient: type[Pointwise] = POINTWISE["stop_gradient"]

keep: type[Pointwise] = POINTWISE["keep"]

gt: type[Pointwise] = POINTWISE["gt"]

ge: type[Pointwise] = POINTWISE["ge"]

lt: type[Pointwise] = POINTWISE["lt"]

le: type[Pointwise] = POINTWISE["le"]

power: type[Pointwise] = POINTWISE["pow"]

absolute: type[Pointwise] = POINTWISE["abs"]

choose: type[Pointwise] = POINTWISE["where"]

zeros_like: type[Pointwise] = POINTWISE["zeros_like"]

_strong_product: type[Pointwise] = POINTWISE["strong_product"]

TAKING_INFINITY = (POINTWISE["clip_exact"], POINTWISE["clip_straight_through"], gt, ge, lt, le)
"""Functions of which an argument may be infinite: limits, and what is compared."""


def strong_product(a: Expr, b: Expr) -> Expr:
    """Return ``a * b``, and 0 where either is 0, whatever the other is: infinite, or no number.

    Derivatives are multiplied in this way where one may be 0 by a branch that is not taken. Its own
    derivatives are those of a product.
    """
    a, b = as_operand(a), as_operand(b)
    is_plain = any(factor.is_Number for factor in (a, b))
    return a * b if is_plain else _strong_product(a, b)


@located
def clip(x: Expr, low: Expr, high: Expr, *, gradient: str = "exact") -> Expr:
    """Limit ``x`` to [low, high]; a limit may be infinite.

    ``gradient="exact"`` passes gradients on the closed interval and nothing outside;
    ``"straight_through"`` passes them everywhere, as TensorFlow's LSTM kernels do.
    """
    rows = {"exact": "clip_exact", "straight_through": "clip_straight_through"}
    if gradient not in rows:
        raise DeclarationError(
            f"clip(..., gradient={gradient!r}): expected one of {', '.join(sorted(rows))}",
            code="declaration.clip",
        )
    low, high = as_operand(low), as_operand(high)
    if low.is_Number and high.is_Number and low > high:
        raise DeclarationError(
            f"clip(x, {low}, {high}): the lower limit is above the upper one; expected low <= high",
            code="declaration.clip",
        )
    limits = POINTWISE[rows[gradient]]
    above, below = low != -sympy.oo, high != sympy.oo
    if (above and below) or (gradient == "straight_through" and (above or below)):
        return limits(x, low, high)
    x = maximum(x, low) if above else as_operand(x)
    return minimum(x, high) if below else x


def identity(x: Expr) -> Expr:
    """Return ``x``: the activation that does nothing."""
    return x
