"""Operators that go along units, one after the other, and carry a number from each to the next.

A row says what is carried into the first unit, what a unit gives and what it hands on, in NumPy and
in C; its routines in C and in CUDA, for both precisions, are written from that.

Derivatives stay within this table, for a derivative of what is carried is carried as well: along a
step ``y_k = f(y_(k-1), a_k)`` the tangent is a linear scan, ``t_k = f_y t_(k-1) + f_a t_a_k``, and
the adjoint is its transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import sympy
from sympy import Expr, Integer

from cellgen.language.ops.operator import (
    AdjointRule,
    Array,
    Motion,
    Operator,
    Running,
    TangentRule,
    mismatch,
)
from cellgen.language.ops.pointwise import absolute, choose, exp, ge, le, log1p, lt, maximum
from cellgen.language.value import Apply, Shape, Value, format_shape

Attributes: TypeAlias = Sequence[Expr]
Tangents: TypeAlias = Sequence[Value | None]
LEAST = -sympy.oo


def axes_after(attributes: Attributes) -> int:
    """How many axes stand behind the one along which an operator goes."""
    return int(attributes[0]) if attributes else 0


def _row(
    name: str,
    running: Running,
    adjoint: AdjointRule,
    tangent: Motion | TangentRule,
    fill: Expr | None = None,
) -> Operator:
    """A row of this table; ``fill`` stands in the result where no unit comes before."""

    def shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
        if len(shapes[0]) <= axes_after(attributes):
            raise mismatch(f"{name} along the units of a scalar")
        if any(other != shapes[0] for other in shapes[1:]):
            listed = " and ".join(map(format_shape, shapes))
            raise mismatch(f"{name} of {listed}: both go along the same units")
        return shapes[0]

    def meaning(
        arrays: Sequence[Array], attributes: Attributes, size: Callable[[Expr], int]
    ) -> Array:
        axis = arrays[0].ndim - 1 - axes_after(attributes)
        moved = [np.moveaxis(array, axis, 0) for array in arrays]
        result = np.empty(moved[0].shape, np.result_type(*arrays))
        total = np.full(moved[0].shape[1:], float(running.begins))
        for unit in range(len(result))[:: -1 if running.is_reversed else 1]:
            result[unit], total = running.numpy(total, *(array[unit] for array in moved))
        return np.moveaxis(result, 0, axis)

    return Operator(
        name,
        shape,
        meaning,
        adjoint,
        tangent=tangent,
        mixes_units=True,
        is_routine=True,
        running=running,
        fill=fill,
        axes_after=axes_after,
        stem=name,
    )


def _linear(adjoint: str) -> AdjointRule:
    """The adjoint of a row that is linear in its only operand."""
    return lambda y, d_y, operands, attributes: (Apply(adjoint, (d_y,), attributes),)


# --- sums, and what lies before or after --------------------------------------------------------

ZERO, ONE = Integer(0), Integer(1)


def _sums(total: Array, a: Array) -> tuple[Array, Array]:
    return total + a, total + a


def _hands_on(total: Array, a: Array) -> tuple[Array, Array]:
    return total, a


def _before(name: str, fill: Expr) -> Operator:
    """Each unit that before it; the first ``fill``. It moves as the row does that fills with 0."""

    def tangent(
        y: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Attributes,
    ) -> tuple[Expr, ...]:
        return tuple(Apply("shifted", (t,), attributes) for t in tangents if t is not None)

    return _row(
        name,
        Running("each unit that before it", fill, "{total}", "{a}", _hands_on),
        _linear("shifted_back"),
        Motion.LINEAR if fill == 0 else tangent,
        fill,
    )


# --- linear scans -------------------------------------------------------------------------------


def _scans(total: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """A coefficient of 0 begins anew: what was carried shows in nothing, if it is no number too."""
    y = np.where(a == 0, b, a * total + b)
    return y, y


def _scans_transposed(total: Array, a: Array, b: Array) -> tuple[Array, Array]:
    y = total + b
    return y, np.where(a == 0, 0, a * y)


def _scan_tangent(
    y: Value, tangents: Tangents, operands: Sequence[Value], attributes: Attributes
) -> tuple[Expr, ...]:
    (t_a, t_b), a = tangents, operands[0]
    moved = [] if t_a is None else [t_a * Apply("shifted", (y,), attributes)]
    added = [*moved, *([] if t_b is None else [t_b])]
    return (Apply("linear_scan", (a, sympy.Add(*added)), attributes),)


def _scan_adjoint(
    y: Value, d_y: Value, operands: Sequence[Value], attributes: Attributes
) -> tuple[Expr | None, ...]:
    d_b = Apply("linear_scan_transposed", (operands[0], d_y), attributes)
    return Apply("shifted", (y,), attributes) * d_b, d_b


def _transposed_tangent(
    y: Value, tangents: Tangents, operands: Sequence[Value], attributes: Attributes
) -> tuple[Expr, ...]:
    (t_a, t_b), a = tangents, operands[0]
    moved = [] if t_a is None else [Apply("shifted_back", (t_a * y,), attributes)]
    added = [*moved, *([] if t_b is None else [t_b])]
    return (Apply("linear_scan_transposed", (a, sympy.Add(*added)), attributes),)


def _transposed_adjoint(
    y: Value, d_y: Value, operands: Sequence[Value], attributes: Attributes
) -> tuple[Expr | None, ...]:
    d_b = Apply("linear_scan", (operands[0], d_y), attributes)
    return Apply("shifted", (d_b,), attributes) * y, d_b


# --- what is carried by a step y_k = f(y_(k-1), a_k) --------------------------------------------

Slopes: TypeAlias = Callable[[Value, Value, Attributes], tuple[Expr, Expr]]
"""Maps (y, a, attributes) to the derivatives of a step by what is carried, and by the unit."""


def _carried(
    name: str, running: Running, slopes: Slopes, weigh: Callable[[Expr, Expr], Expr]
) -> Operator:
    """A row whose step has these slopes; ``weigh`` multiplies by that of the unit."""

    def tangent(
        y: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Attributes,
    ) -> tuple[Expr, ...]:
        carried, own = slopes(y, operands[0], attributes)
        moving = [weigh(own, t) for t in tangents if t is not None]
        return tuple(Apply("linear_scan", (carried, term), attributes) for term in moving)

    def adjoint(
        y: Value, d_y: Value, operands: Sequence[Value], attributes: Attributes
    ) -> tuple[Expr | None, ...]:
        carried, own = slopes(y, operands[0], attributes)
        return (weigh(own, Apply("linear_scan_transposed", (carried, d_y), attributes)),)

    return _row(name, running, adjoint, tangent)


def _product(total: Array, a: Array) -> tuple[Array, Array]:
    return total * a, total * a


def _product_slopes(y: Value, a: Value, attributes: Attributes) -> tuple[Expr, Expr]:
    return a, Apply("shifted_from_1", (y,), attributes)


def _largest(total: Array, a: Array) -> tuple[Array, Array]:
    y = np.where((np.real(a) >= np.real(total)) | np.isnan(np.real(a)), a, total)
    return y, y


def _largest_slopes(y: Value, a: Value, attributes: Attributes) -> tuple[Expr, Expr]:
    stays = lt(a, Apply("shifted_from_least", (y,), attributes))
    return stays, stays


def _where_it_rises(stays: Expr, factor: Expr) -> Expr:
    return choose(stays, 0, factor)


def _log_sum(total: Array, a: Array) -> tuple[Array, Array]:
    above = np.real(a) > np.real(total)
    below = np.where(above, total - a, a - total)
    below = np.where(np.real(a) == np.real(total), 1j * np.imag(below), below)  # infinite as well
    y = np.where(above, a, total) + np.log1p(np.exp(below))
    is_real = not any(map(np.iscomplexobj, (total, a)))
    return (np.real(y), np.real(y)) if is_real else (y, y)


def _log_sum_slopes(y: Value, a: Value, attributes: Attributes) -> tuple[Expr, Expr]:
    """Shares of what is carried and of the unit; of an infinite sum the last infinite unit's.

    Conditions compare with infinity alone: the first unit is always its own sum.
    """
    is_most, is_least = ge(y, sympy.oo), le(y, LEAST)  # of NaN neither is
    before = Apply("shifted_from_least", (y,), attributes)
    carried = choose(is_least, 0, exp(before - y))
    own = choose(is_least, 1, exp(a - y))
    return choose(is_most, lt(a, sympy.oo), carried), choose(is_most, ge(a, sympy.oo), own)


def _log_of_both(before: Expr, after: Expr) -> Expr:
    largest = maximum(after, before)
    is_infinite = ge(absolute(largest), sympy.oo)
    below = choose(is_infinite, 0, -absolute(after - before))
    return choose(is_infinite, largest, largest + log1p(exp(below)))


def _times(factor: Expr, other: Expr) -> Expr:
    return factor * other


RUNNING = (
    # y_k = a_1 + ... + a_k:  d_a_k = d_y_k + ... + d_y_n
    _row(
        "cumsum",
        Running(
            "each unit the sum of those up to it",
            ZERO,
            "{total} + {a}",
            "{y}",
            _sums,
            adds=True,
            combine=lambda before, after: before + after,
        ),
        _linear("cumsum_reversed"),
        Motion.LINEAR,
    ),
    _row(
        "cumsum_reversed",
        Running(
            "each unit the sum of those from it on",
            ZERO,
            "{total} + {a}",
            "{y}",
            _sums,
            is_reversed=True,
            adds=True,
        ),
        _linear("cumsum"),
        Motion.LINEAR,
    ),
    _before("shifted", ZERO),
    _before("shifted_from_1", ONE),
    _before("shifted_from_least", LEAST),
    _row(
        "shifted_back",
        Running("each unit that after it, the last 0", ZERO, "{total}", "{a}", _hands_on, True),
        _linear("shifted"),
        Motion.LINEAR,
        ZERO,
    ),
    # y_k = a_k y_(k-1) + b_k:  s_k = d_y_k + a_(k+1) s_(k+1),  d_b = s,  d_a_k = y_(k-1) s_k
    _row(
        "linear_scan",
        Running(
            "y_k = a_k y_(k-1) + b_k; an a_k of 0 begins anew",
            ZERO,
            "{a} == 0 ? {b} : {a} * {total} + {b}",
            "{y}",
            _scans,
        ),
        _scan_adjoint,
        _scan_tangent,
    ),
    _row(
        "linear_scan_transposed",
        Running(
            "y_k = b_k + a_(k+1) y_(k+1), from the last on",
            ZERO,
            "{total} + {b}",
            "{a} == 0 ? 0 : {a} * {y}",
            _scans_transposed,
            True,
        ),
        _transposed_adjoint,
        _transposed_tangent,
    ),
    _carried(
        "cumprod",
        Running(
            "each unit the product of those up to it",
            ONE,
            "{total} * {a}",
            "{y}",
            _product,
            combine=_times,
        ),
        _product_slopes,
        _times,
    ),
    _carried(
        "cummax",
        Running(
            "each unit the largest of those up to it; a NaN counts as the largest",
            LEAST,
            "{a} >= {total} || {a} != {a} ? {a} : {total}",
            "{y}",
            _largest,
            combine=lambda before, after: maximum(after, before),
        ),
        _largest_slopes,
        _where_it_rises,
    ),
    _carried(
        "logcumsumexp",
        Running(
            "log(exp(y_(k-1)) + exp(a_k)), with no overflow",
            LEAST,
            "({a} > {total} ? {a} : {total}) + "
            "cg_log1p(cg_exp({a} == {total} ? 0 : -cg_abs({a} - {total})))",
            "{y}",
            _log_sum,
            combine=_log_of_both,
        ),
        _log_sum_slopes,
        _times,
    ),
)
