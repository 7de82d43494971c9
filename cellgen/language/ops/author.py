"""What authors call: operators across elements and what is made of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import sympy
from sympy import Expr, Integer, sympify

from cellgen.accept import is_whole, quoted
from cellgen.errors import DeclarationError
from cellgen.language.lines import located
from cellgen.language.ops.operator import mismatch
from cellgen.language.ops.pointwise import absolute, exp, ge, log, sqrt, stop_gradient
from cellgen.language.ops.rows import as_shape
from cellgen.language.ops.sympy_functions import where
from cellgen.language.ops.table import shape_of
from cellgen.language.ops.views import part
from cellgen.language.value import (
    Apply,
    B,
    Dim,
    Shape,
    as_operand,
    format_axis,
    format_shape,
)

MOST_SHARING = 1024
"""Heads that may share one: each is written out."""


def matmul(a: Expr, b: Expr) -> Apply:
    """Matrix product over the last axis of ``a``; the same as ``a @ b``.

    Python itself refuses ``@`` between two compound expressions, ``(r * h_prev) @ (2 * w)``: write
    ``matmul(r * h_prev, 2 * w)``, or name one of them first.
    """
    return Apply("matmul", (a, b))


@located
def transpose(w: Expr) -> Apply:
    """Transpose a weight: (K, N) to (N, K)."""
    return Apply("transpose", (w,))


@located
def concat(*operands: Expr) -> Expr:
    """Join along the last axis: (B, I) and (B, H) give (B, I + H), head by head where there are.

    Units of heads lie apart, so that joining (B, N, K) and (B, N, D) to (B, N, K + D) copies them.
    """
    if not operands:
        raise DeclarationError("concat() needs at least one operand", code="declaration.arity")
    if len(operands) == 1:
        return as_operand(operands[0])
    shape = shape_of(as_operand(operands[0]))
    axis = len(shape) - 1
    if axis > 1 and B in shape:
        return _joined_by_head([as_operand(operand) for operand in operands])
    if axis < 0:
        raise mismatch("concat takes values with at least one axis, found a scalar")
    node = Apply("concat", operands, (Integer(axis),))
    shape_of(node)
    return node


@located
def split(a: Expr, parts: int | Sequence[Expr]) -> tuple[Apply, ...]:
    """Split the last axis into equal parts, or into parts of the given lengths, head by head.

    Raises:
        DeclarationError: the axis is no multiple of ``parts``, or the lengths do not add up.
    """
    a = as_operand(a)
    shape = shape_of(a)
    if not shape:
        raise mismatch("split takes a value with at least one axis, found a scalar")
    if len(shape) > 2 and B not in shape:
        raise mismatch(
            f"split of {format_shape(shape)}: the parts of heads lie apart; use a weight for each"
        )
    axis, total = len(shape) - 1, shape[-1]
    sizes = _split_sizes(total, parts)
    if len(shape) > 2:
        return _parted_by_head(a, sizes)
    starts = [sympy.Add(*sizes[:index]) for index in range(len(sizes))]
    return tuple(part(a, axis, start, size) for start, size in zip(starts, sizes, strict=True))


@located
def repeat_heads(a: Expr, count: int) -> Expr:
    """Repeat every head for ``count`` heads that share it: (B, G, K) gives (B, count * G, K).

    Heads of one group lie side by side. It copies; a key (B, G, 1, K) beside heads (B, G, R, K)
    broadcasts without a copy.
    """
    a = as_operand(a)
    shape = shape_of(a)
    if not is_whole(count, 1, MOST_SHARING) or len(shape) < 3 or B not in shape:
        raise mismatch(
            f"repeat_heads({format_shape(shape)}, {quoted(count)}): give a value with heads, such "
            f"as (B, G, K), and a whole number from 1"
        )
    if count == 1:
        return a
    joined = _joined_by_head([a] * count)
    return as_shape(joined, (*shape[:-2], count * shape[-2], shape[-1]))


def _joined_by_head(operands: Sequence[Expr]) -> Expr:
    """Join the units of every head: with units first, heads of one unit lie side by side."""
    shapes = [shape_of(operand) for operand in operands]
    for shape in shapes[1:]:
        if shape[:-1] != shapes[0][:-1]:
            raise mismatch(
                f"concat of {format_shape(shapes[0])} and {format_shape(shape)} differs off its "
                f"last axis; expected {format_shape((*shapes[0][:-1], *shape[-1:]))}"
            )
    rows, *before = shapes[0][:-1]
    count, total = sympy.Mul(*before), sympy.Add(*(shape[-1] for shape in shapes))
    transposed = [
        as_shape(_units_first(operand, count), (rows, sympy.expand(shape[-1] * count)))
        for operand, shape in zip(operands, shapes, strict=True)
    ]
    whole = as_shape(Apply("concat", transposed, (Integer(1),)), (rows, total, count))
    return _laid(Apply("transpose", (whole,)), (rows, *before, total))


def _parted_by_head(a: Expr, sizes: Sequence[Expr]) -> tuple[Apply, ...]:
    """Split the units of every head."""
    rows, *before, _ = shape_of(a)
    count = sympy.Mul(*before)
    whole = as_shape(_units_first(a, count), (rows, sympy.expand(sympy.Add(*sizes) * count)))
    parts, start = [], sympy.Integer(0)
    for size in sizes:
        length = sympy.expand(size * count)
        transposed = as_shape(part(whole, 1, start, length), (rows, size, count))
        parts.append(_laid(Apply("transpose", (transposed,)), (rows, *before, size)))
        start += length
    return tuple(parts)


def _units_first(a: Expr, count: Expr) -> Apply:
    """A value with so many heads in all, (B, ..., K), as (B, K, count)."""
    rows, *_, units = shape_of(a)
    return Apply("transpose", (_laid(a, (rows, count, units)),))


def _laid(a: Expr, shape: Shape) -> Apply:
    """A value along other axes, as it is where it has those."""
    return a if shape_of(a) == shape else as_shape(a, shape)


def _split_sizes(total: Expr, parts: int | Sequence[Expr]) -> list[Expr]:
    if isinstance(parts, int):
        size = total / parts
        if parts < 1 or any(not c.is_Integer for c in size.as_coefficients_dict().values()):
            raise mismatch(
                f"split of an axis of length {format_axis(total)} into {parts} equal parts"
            )
        return [size] * parts
    sizes = [sympify(size) for size in parts]
    if sympy.Add(*sizes) != total:
        listed = ", ".join(format_axis(size) for size in sizes)
        raise mismatch(f"split of an axis of length {format_axis(total)} into ({listed})")
    return sizes


_PYTHON_MAX: Callable[..., object] = builtins.max
_PYTHON_SUM: Callable[..., object] = builtins.sum


@overload
def units_sum(a: Expr, axis: object = None) -> Apply: ...
@overload
def units_sum(a: Iterable[object], axis: object = None, **python: object) -> object: ...
@located
def units_sum(a: object, axis: object = None, **python: object) -> object:
    """Sum over units (the last axis), kept with length 1: (B, H) gives (B, 1).

    With heads, (B, K, D) gives (B, K, 1), and with ``axis=all`` (the built-in) (B, 1, 1).
    Of what is no expression, Python's ``sum``: of the items of a list.
    """
    if not isinstance(a, Expr | int | float):
        return _PYTHON_SUM(*_given(a, axis), **python)
    shape = _reduced_shape("sum", a, axis)
    return Apply("sum_to", (as_operand(a),), shape)


@located
def units_mean(a: Expr, axis: object = None) -> Expr:
    """Mean over units (the last axis), or with ``axis=all`` over heads and units; as ``sum``."""
    before, after = shape_of(as_operand(a)), _reduced_shape("mean", a, axis)
    count = sympy.Mul(*(n for n, kept in zip(before, after, strict=True) if n != kept))
    return Apply("sum_to", (as_operand(a),), after) / count


@located
def softmax(a: Expr, axis: object = None) -> Expr:
    """Exponentials of the units as shares of their sum, with no overflow; axes as ``sum``."""
    axes_of("softmax", shape_of(as_operand(a)), axis)
    powers = exp(as_operand(a) - stop_gradient(units_max(a, axis)))
    return powers / units_sum(powers, axis)


@located
def logsumexp(a: Expr, axis: object = None) -> Expr:
    """Logarithm of the sum of the units' exponentials, with no overflow; axes as ``sum``.

    Where the largest unit is infinite, it is that.
    """
    axes_of("logsumexp", shape_of(as_operand(a)), axis)
    largest = units_max(a, axis)
    is_infinite = ge(absolute(largest), sympy.oo)  # NaN is not, and goes on to derivatives
    most = stop_gradient(largest)
    below = where(is_infinite, 0, as_operand(a) - most)
    return where(is_infinite, largest, most + log(units_sum(exp(below), axis)))


@overload
def units_max(a: Expr, axis: object = None) -> Apply: ...
@overload
def units_max(a: object, axis: object = None, *others: object, **python: object) -> object: ...
@located
def units_max(a: object, axis: object = None, *others: object, **python: object) -> object:
    """Maximum over units (the last axis), or with ``axis=all`` over heads and units; as ``sum``.

    The derivative goes to the first of equal units. Of what is no expression, Python's ``max``.
    """
    if not any(isinstance(item, Expr) for item in (a, axis, *others)):
        return _PYTHON_MAX(*_given(a, axis), *others, **python)
    is_value = isinstance(axis, Expr) and not all(isinstance(s, Dim) for s in axis.free_symbols)
    if others or is_value or not isinstance(a, Expr):
        raise DeclarationError(
            "max of several expressions: max(a) is over the units of one; write maximum(a, b)",
            code="declaration.axis",
        )
    return Apply("sum_to", (where(_largest("max", a, axis), a, 0),), _reduced_shape("max", a, axis))


@located
def hardmax(a: Expr, axis: object = None) -> Expr:
    """1 at the largest unit, at the first of equal ones, else 0; axes as ``sum``; derivative 0.

    With Gumbel noise (``-log(-log(u))``) it draws by ``softmax(a)``: ``hardmax(a + noise)``. For a
    gradient that goes straight through: ``p + stop_gradient(hardmax(p) - p)``.
    """
    return _largest("hardmax", as_operand(a), axis)


def _largest(what: str, a: Expr, axis: object) -> Apply:
    axes = axes_of(what, shape_of(a), axis)
    behind = len(shape_of(a)) - 1 - axes[-1]
    if axes[-1] - axes[0] != len(axes) - 1:
        raise DeclarationError(
            f"{what} over axes of {format_shape(shape_of(a))} that are not neighbours; take one "
            f"axis after the other",
            code="declaration.axis",
        )
    counts = [Integer(len(axes)), *([Integer(behind)] if behind else [])]
    return Apply("first_max", (a,), counts)


@located
def norm(a: Expr, axis: object = None) -> Expr:
    """Euclidean length over units (the last axis), or with ``axis=all`` over heads and units.

    As ``sqrt(sum(a * a))``, with the derivative 0 at 0, in every order: the length of a vector has
    no derivative there, and 0 is a subgradient.
    """
    a = as_operand(a)
    squares = Apply("sum_to", (a * a,), _reduced_shape("norm", a, axis))
    return where(squares <= 0, 0, sqrt(squares))  # of NaN it is NaN


def _given(a: object, axis: object) -> tuple[Any, ...]:
    """The arguments of a call that was meant for Python's function of the same name."""
    return (a,) if axis is None else (a, axis)


def _reduced_shape(what: str, a: Expr, axis: object) -> Shape:
    shape = shape_of(as_operand(a))
    reduced = axes_of(what, shape, axis)
    return tuple(Integer(1) if n in reduced else length for n, length in enumerate(shape))


def axes_of(what: str, shape: Shape, axis: object) -> tuple[int, ...]:
    """Which axes ``axis=`` names.

    The last where it is left out, ``all`` of a row, dimensions by name, or positions from the end.

    Raises:
        DeclarationError: an axis that the value does not have, or has twice, or the batch.
    """
    if not shape:
        raise mismatch(f"{what} over the units of a scalar")
    last = len(shape) - 1
    if axis in (None, -1):
        return (last,)
    if axis is all or (isinstance(axis, str) and axis == "all"):
        return tuple(range(1, last + 1)) if last > 1 else (last,)
    named = axis if isinstance(axis, tuple | list) else (axis,)
    if not named:
        raise DeclarationError(
            f"{what}(..., axis={axis!r}) names no axis; leave it out for the last one of "
            f"{format_shape(shape)}, or name a dimension",
            code="declaration.axis",
        )
    return tuple(sorted({_axis_of(what, shape, one) for one in named}))


def _axis_of(what: str, shape: Shape, axis: object) -> int:
    own = [n for n, length in enumerate(shape) if length not in (B, 1)]
    listed = ", ".join(format_axis(shape[n]) for n in own) or "none"
    if isinstance(axis, int) and -len(shape) <= axis < 0 and shape[axis] != B:
        return len(shape) + axis
    if not isinstance(axis, Expr):
        of_two = f"; for the larger of two write maximum(a, {axis})" if what == "max" else ""
        raise DeclarationError(
            f"{what}(..., axis={axis!r}): leave axis out for the units of each head, name a "
            f"dimension of {format_shape(shape)} (there is {listed}), or write axis=all (the "
            f"built-in) for all of a row{of_two}",
            code="declaration.axis",
        )
    places = [n for n in own if shape[n] == axis]
    if len(places) != 1:
        said = "is twice" if places else "is not"
        raise DeclarationError(
            f"{what}(..., axis={format_axis(axis)}): that dimension {said} in "
            f"{format_shape(shape)}, whose rows have {listed}; "
            + ("give its position from the end, axis=-1" if places else "name one of those"),
            code="declaration.axis",
        )
    return places[0]
