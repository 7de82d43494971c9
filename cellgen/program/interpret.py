"""Interpret Programs with NumPy: the meaning of the equations, in float64 or complex128.

Complex arguments give complex-step derivatives: an imaginary part of size ``STEP`` comes out,
divided by ``STEP``, as the exact directional derivative. Functions with a *stated* derivative
evaluate to f(Re) + i f'(Re) Im there, so that the statement, not the function, is what is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from sympy import Expr, Integer

from cellgen.errors import ArgumentError
from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.graph import WRITTEN_AS_PRODUCT
from cellgen.language.notation import order_key
from cellgen.language.ops import Pointwise, operator_of
from cellgen.language.value import Apply, Dim, Role, Value, format_shape
from cellgen.program.ssa import Program, Statement

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Sizes: TypeAlias = Mapping[str, int]

Rounded: TypeAlias = Callable[[Expr, Array], Array]
"""What becomes of a function's result, by its expression."""

STEP = 1e-180
"""Complex step: its square underflows to 0, so the imaginary part is the derivative exactly, and
the real part is what it was: equal numbers stay equal (``max`` takes the first of them)."""


def axis_size(axis: Expr, sizes: Sizes) -> int:
    """Evaluate an axis length for given dimensions."""
    return _axis_size(axis, tuple((dim, sizes[dim.name]) for dim in _dims_of(axis)))


@lru_cache(maxsize=4096)
def _dims_of(axis: Expr) -> tuple[Dim, ...]:
    return tuple(sorted(axis.free_symbols, key=str))


@lru_cache(maxsize=65536)
def _axis_size(axis: Expr, by: tuple[tuple[Dim, int], ...]) -> int:
    return int(axis.subs(by))


def shape_sizes(value: Value, sizes: Sizes) -> tuple[int, ...]:
    """Lengths of a value's axes."""
    return tuple(axis_size(axis, sizes) for axis in value.shape)


def interpret(
    program: Program,
    arguments: Mapping[str, Array | float],
    sizes: Sizes,
    *,
    keep: bool = False,
    nudge: Callable[[Array], Array] | None = None,
) -> dict[str, Array]:
    """Run a program; returns its results by name, or every value with ``keep=True``.

    Missing optional arguments (upstream gradients) count as zero. float64 unless an argument is
    complex. Every computed value passes through ``nudge``, and so does what a function gives
    within an expression: where tanh(x) is nearly 1, no nudge of x is a rounding of it.

    Raises:
        ArgumentError: a missing argument, or one whose shape is not what the program says.
    """
    values: dict[Value, Array] = {}
    for value in program.arguments:
        values[value] = _argument(program, value, arguments, sizes)
    functions: dict[Expr, Array] = {}

    def rounded(expression: Expr, array: Array) -> Array:
        """The same function of the same values is the same number wherever it stands."""
        assert nudge is not None
        if expression not in functions:
            functions[expression] = nudge(array)
        return functions[expression]

    with np.errstate(all="ignore"):
        for statement in program.statements:
            made = _run(statement, values, sizes, None if nudge is None else rounded)
            if nudge is not None and statement.expression not in functions:
                made = nudge(made)
            values[statement.target] = made
    wanted = values if keep else {result: values[result] for result in program.results}
    return {str(value.name): array for value, array in wanted.items()}


def _argument(
    program: Program, value: Value, arguments: Mapping[str, Array | float], sizes: Sizes
) -> Array:
    name, shape = str(value.name), shape_sizes(value, sizes)
    given = arguments.get(name)
    if given is None:
        if value in program.optional:
            return np.zeros(shape)
        raise ArgumentError(f"{program.cell}.{program.function}: argument {name} is missing")
    array = np.asarray(given)
    array = array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
    if array.shape != shape:
        raise ArgumentError(
            f"{program.cell}.{program.function}: {name} has shape {array.shape}, expected "
            f"{format_shape(value.shape)} = {shape}"
        )
    return array


def _run(
    statement: Statement, values: Mapping[Value, Array], sizes: Sizes, rounded: Rounded | None
) -> Array:
    expression = statement.expression
    if isinstance(expression, Apply):
        arrays = [values[operand] for operand in expression.operands]
        row = operator_of(expression)
        return row.numpy(arrays, expression.attributes, lambda axis: axis_size(axis, sizes))
    array = _pointwise(expression, values, sizes, rounded)
    return np.broadcast_to(array, shape_sizes(statement.target, sizes))


def _pointwise(  # noqa: PLR0911 - one case a return
    expression: Expr,
    values: Mapping[Value, Array],
    sizes: Sizes,
    rounded: Rounded | None = None,
) -> Array:
    if isinstance(expression, Value):
        return values[expression]
    if isinstance(expression, Dim):
        return np.asarray(float(sizes[str(expression)]))
    if expression.is_Number:
        return np.asarray(nearest(expression, DOUBLE))
    is_ordered = expression.is_Add or expression.is_Mul
    arguments = _in_order(expression) if is_ordered else expression.args
    arrays = [_pointwise(argument, values, sizes, rounded) for argument in arguments]
    if isinstance(expression, Pointwise):
        made = _call(expression, arrays)
        if rounded is None or not expression.row.transcendental:
            return made
        return rounded(expression, made)
    if expression.is_Pow:
        return _power(arrays[0], expression.exp)
    combine: Callable[[Array, Array], Array] = np.add if expression.is_Add else np.multiply
    result = arrays[0]
    for array in arrays[1:]:
        result = combine(result, array)
    return result


@lru_cache(maxsize=65536)
def _in_order(expression: Expr) -> tuple[Expr, ...]:
    """Terms or factors as they are printed, in C as well: SymPy's own order hangs on names."""
    return tuple(sorted(expression.args, key=order_key))


def _power(base: Array, exponent: Expr) -> Array:
    if not exponent.is_Integer:
        return np.power(base, nearest(exponent, DOUBLE))
    count = abs(int(exponent))
    if count <= WRITTEN_AS_PRODUCT:
        result = np.asarray(1.0)
        for _ in range(count):
            result = result * base
    elif np.iscomplexobj(base):  # the imaginary part of a logarithm would be rounded
        result = _squared(base, count)
    else:
        result = np.power(base, nearest(Integer(count), DOUBLE))
    return 1 / result if exponent < 0 else result


def _squared(base: Array, exponent: int) -> Array:
    """A whole power by squaring."""
    result = np.ones_like(base)
    while exponent:
        if exponent % 2:
            result = result * base
        base, exponent = base * base, exponent // 2
    return result


def _call(function: Pointwise, arrays: list[Array]) -> Array:
    row = function.row
    if not (row.stated and any(np.iscomplexobj(array) for array in arrays)):
        return row.numpy(*arrays)
    reals = [np.real(array) for array in arrays]
    placeholders = [_placeholder(index) for index in range(len(arrays))]
    by = dict(zip(placeholders, reals, strict=True))
    imaginary: Array = np.asarray(0.0)
    for index, array in enumerate(arrays):
        slope = function.func(*placeholders).fdiff(index + 1)
        imaginary = imaginary + _pointwise(slope, by, {}) * np.imag(array)
    return row.numpy(*reals) + 1j * imaginary


def _placeholder(index: int) -> Value:
    return Value(f"argument_{index}", (), Role.LOCAL)
