"""Turn the expressions of a program into Python functions, once for all of its runs.

Input: a ``Program``. Output: ``PreparedProgram``: one function a statement, which reads a ``Frame``
and gives an array. Nothing of SymPy runs when a frame is gone through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from sympy import Expr

from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.graph import WRITTEN_AS_PRODUCT
from cellgen.language.notation import order_key
from cellgen.language.ops import Pointwise, operator_of
from cellgen.language.value import Apply, Dim, Role, Value
from cellgen.program.identity import once_for_each
from cellgen.program.ssa import Program, Statement

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class Frame:
    """A run of a program: values by their numbers, lengths of axes, results of functions.

    ``functions`` is by the numbers of their expressions: the same function of the same values is
    the same number wherever it stands. Each passes through ``nudge`` once.
    """

    values: list[Array]
    size: Callable[[Expr], int]
    nudge: Callable[[Array], Array] | None
    functions: dict[int, Array]


Evaluate: TypeAlias = Callable[[Frame], Array]


@dataclass(frozen=True)
class PreparedProgram:
    """Functions of the statements in order; each appends its value to a frame.

    ``has_nudge`` says of which statements a nudge has seen the value when it is formed.
    """

    evaluate: tuple[Evaluate, ...]
    has_nudge: tuple[bool, ...]
    is_pointwise: tuple[bool, ...]
    results: tuple[int, ...]


@once_for_each
def prepare(program: Program) -> PreparedProgram:
    """Prepare a program to be run."""
    numbers = {value: number for number, value in enumerate(program.values)}
    spelled = _Expressions(numbers)
    return PreparedProgram(
        tuple(spelled.statement(statement) for statement in program.statements),
        tuple(_is_rounded(statement.expression) for statement in program.statements),
        tuple(statement.is_pointwise for statement in program.statements),
        tuple(numbers[result] for result in program.results),
    )


def _is_rounded(expression: Expr) -> bool:
    return isinstance(expression, Pointwise) and bool(expression.row.transcendental)


class _Expressions:
    """Expressions of values that have numbers as functions of a frame."""

    def __init__(self, values: Mapping[Value, int]) -> None:
        self._values = values
        self._functions: dict[Expr, int] = {}

    def statement(self, statement: Statement) -> Evaluate:
        """The function of a statement."""
        expression = statement.expression
        if isinstance(expression, Apply):
            numbers = [self._values[operand] for operand in expression.operands]
            row = operator_of(expression)
            return partial(_operator, row.numpy, numbers, expression.attributes)
        return self.pointwise(expression)

    def pointwise(self, expression: Expr) -> Evaluate:
        """The function of an expression that goes entry by entry."""
        if isinstance(expression, Value):
            return partial(_value, self._values[expression])
        if isinstance(expression, Dim):
            return partial(_length, expression)
        if expression.is_Number:
            return partial(_constant, np.asarray(nearest(expression, DOUBLE)))
        ordered = expression.is_Add or expression.is_Mul
        terms = sorted(expression.args, key=order_key) if ordered else expression.args
        if expression.is_Pow:
            return partial(_power, self.pointwise(terms[0]), _Exponent.of(expression.exp))
        of = [self.pointwise(term) for term in terms]
        if isinstance(expression, Pointwise):
            number = self._functions.setdefault(expression, len(self._functions))
            return partial(_function, expression, of, number, _is_rounded(expression))
        return partial(_folded, np.add if expression.is_Add else np.multiply, of)


def _operator(
    meaning: Callable[..., Array], numbers: list[int], attributes: tuple[Expr, ...], frame: Frame
) -> Array:
    values = frame.values
    return meaning([values[number] for number in numbers], attributes, frame.size)


def _value(number: int, frame: Frame) -> Array:
    return frame.values[number]


def _length(dim: Dim, frame: Frame) -> Array:
    return np.asarray(float(frame.size(dim)))


def _constant(number: Array, frame: Frame) -> Array:
    return number


def _folded(combine: Callable[[Array, Array], Array], of: list[Evaluate], frame: Frame) -> Array:
    """A sum or product, in the order in which it is printed, in C as well."""
    result = of[0](frame)
    for one in of[1:]:
        result = combine(result, one(frame))
    return result


def _function(
    expression: Pointwise, of: list[Evaluate], number: int, is_rounded: bool, frame: Frame
) -> Array:
    known = frame.functions.get(number)
    if known is not None:
        return known
    value = _called(expression, [one(frame) for one in of])
    if is_rounded and frame.nudge is not None:
        value = frame.nudge(value)
    frame.functions[number] = value
    return value


@dataclass(frozen=True)
class _Exponent:
    """A constant exponent: ``whole`` is None where it is no whole number."""

    number: float
    whole: int | None

    @classmethod
    def of(cls, exponent: Expr) -> _Exponent:
        """Round an exact exponent once, its sign aside where it is whole."""
        if not exponent.is_Integer:
            return cls(nearest(exponent, DOUBLE), None)
        return cls(nearest(abs(exponent), DOUBLE), int(exponent))


def _power(of: Evaluate, exponent: _Exponent, frame: Frame) -> Array:
    base = of(frame)
    if exponent.whole is None:
        return np.power(base, exponent.number)
    count = abs(exponent.whole)
    if count <= WRITTEN_AS_PRODUCT:
        result = base
        for _ in range(count - 1):
            result = result * base
    elif np.iscomplexobj(base):  # the imaginary part of a logarithm would be rounded
        result = _squared(base, count)
    else:
        result = np.power(base, exponent.number)
    return 1 / result if exponent.whole < 0 else result


def _squared(base: Array, exponent: int) -> Array:
    """A whole power by squaring."""
    result = np.ones_like(base)
    while exponent:
        if exponent % 2:
            result = result * base
        base, exponent = base * base, exponent // 2
    return result


def _called(function: Pointwise, arrays: list[Array]) -> Array:
    """A function of arrays; a derivative that is stated is followed as it is stated."""
    row = function.row
    if not (row.stated and any(np.iscomplexobj(array) for array in arrays)):
        return row.numpy(*arrays)
    reals = [np.real(array) for array in arrays]
    imaginary: Array = np.asarray(0.0)
    for slope, array in zip(_slopes(function.func, len(arrays)), arrays, strict=True):
        frame = Frame(reals, int, None, {})
        imaginary = imaginary + slope(frame) * np.imag(array)
    return row.numpy(*reals) + 1j * imaginary


def _slopes(function: type[Pointwise], count: int) -> list[Evaluate]:
    """The stated derivatives of a function, of as many arguments."""
    placeholders = [Value(f"argument_{index}", (), Role.LOCAL) for index in range(count)]
    spelled = _Expressions({value: number for number, value in enumerate(placeholders)})
    return [spelled.pointwise(function(*placeholders).fdiff(n + 1)) for n in range(count)]
