"""Dimensions, values and operator nodes: the atoms of every equation.

A ``Value`` is a SymPy symbol with a shape and a role; inside a pointwise expression it stands for
its own element. ``Apply`` is the one generic node for operators that look across elements; it
carries ``@``. What the operators mean is data in ``ops``.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from numbers import Number
from typing import TypeAlias, TypeVar

import numpy as np
from sympy import Basic, Expr, Integer, Symbol, Tuple, floor, sympify
from sympy.core.relational import Relational
from sympy.core.symbol import Str
from sympy.logic.boolalg import Boolean, BooleanAtom
from sympy.polys.polyerrors import PolynomialError

from cellgen.accept import quoted, type_name
from cellgen.errors import DeclarationError
from cellgen.language.lines import located
from cellgen.language.misuse import (
    ATTRIBUTES,
    ExpressionError,
    UnknownAttributeError,
    advice_on_attribute,
    explanation,
)


class Dim(Symbol):  # type: ignore[misc]
    """A dimension: a positive integer known at run time. ``2 * H``, ``I + H`` are axis lengths."""

    __slots__ = ()

    def __new__(cls, name: str) -> Dim:
        """Make the dimension of a name."""
        if not isinstance(name, str):
            raise DeclarationError(
                f"Dim({quoted(name)}): the name must be a text, such as Dim('D')",
                code="declaration.dims",
            )
        dim: Dim = Symbol.__xnew__(cls, str.__str__(name), integer=True, positive=True)
        return dim

    def __getnewargs_ex__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return (self.name,), {}


B = Dim("B")
"""Batch rows; the first axis of every input and state, added by the roles."""
T = Dim("T")
"""Time steps of a sequence."""
I = Dim("I")
"""Input units."""
H = Dim("H")
"""Hidden units."""

R = TypeVar("R")
Shape: TypeAlias = tuple[Expr, ...]


class Role(Enum):
    """What a value is in its cell; decides whether it has a batch axis and how long it lives."""

    INPUT = "input"
    STATE = "state"
    STATIC = "static"
    WEIGHT = "weight"
    BIAS = "bias"
    SCALAR = "scalar"
    LOCAL = "local"
    TEMPORARY = "temporary"
    ADJOINT = "adjoint"
    TANGENT = "tangent"

    @property
    def is_parameter(self) -> bool:
        """Whether it is shared by all rows and steps."""
        return self in (Role.WEIGHT, Role.BIAS)


class Arithmetic:
    """Takes True and False as 1 and 0, and ``%``, which is made of others."""

    __slots__ = ()

    def __mod__(self, other: object) -> Expr:
        """The remainder, of the divisor's sign, as Python's."""
        return _remainder(self, sympify(other))

    def __rmod__(self, other: object) -> Expr:
        return _remainder(sympify(other), self)


@located
def _remainder(a: Expr, b: Expr) -> Expr:
    check_divisor(a, b)
    return a - b * floor(a / b)


def check_divisor(a: Expr, b: Expr) -> None:
    """Refuse 0, of which SymPy would make a remainder that is what is divided."""
    if b.is_zero:
        raise DeclarationError(
            f"the remainder of {a} by 0 is no number; divide by one that is not 0",
            code="declaration.constant",
        )


def _no_number(condition: Basic) -> DeclarationError:
    written = str(condition)
    return DeclarationError(
        f"the condition {written} stands where a number is expected; write where({written}, 1, 0)",
        code="declaration.operator",
    )


def _taking_booleans(name: str) -> Callable[[Expr, object], Expr]:
    @located
    @functools.wraps(getattr(Expr, name))
    def method(self: Expr, other: object, *modulus: object) -> Expr:
        if modulus:
            raise ExpressionError(
                f"TypeError: pow() of three is for whole numbers; a remainder is written "
                f"mod(a ** b, {modulus[0]})"
            )
        if isinstance(other, Relational):
            raise _no_number(other)
        number = int(other) if isinstance(other, bool | BooleanAtom) else other
        if isinstance(other, np.floating) and np.isnan(other):
            number = math.nan  # SymPy knows NumPy's numbers by their digits
        result: Expr = getattr(super(Arithmetic, self), name)(number)
        return result

    return method


_ARITHMETIC = tuple(
    f"__{side}{sign}__" for sign in ("add", "sub", "mul", "truediv", "pow") for side in ("", "r")
)
for _name in _ARITHMETIC:
    setattr(Arithmetic, _name, _taking_booleans(_name))


class NoSequenceError(ExpressionError, PolynomialError):  # type: ignore[misc]
    """An expression was taken for a sequence; SymPy's remainder of a sum tries, and wants this."""


class _Matmul(Arithmetic):
    """Gives ``@`` to values and operator nodes, in both directions; an index is answered."""

    __slots__ = ()
    __iter__ = None  # an index would make them iterable

    @located
    def __getitem__(self, index: object) -> Expr:
        raise DeclarationError(
            f"{self if isinstance(self, Symbol) else 'an expression'} has an index: equations hold "
            f"for all units at once; take parts with split(value, (I, H)), sums with sum(value)",
            code="declaration.index",
        )

    @located
    def __call__(self, *_: object, **__: object) -> Expr:
        raise ExpressionError(explanation(TypeError("'Value' object is not callable")))

    @located
    def __len__(self) -> int:
        said = explanation(TypeError("object of type 'Value' has no len()"))
        raise NoSequenceError(f"{said}; an equation holds for all units at once: write H for them")

    def __bool__(self) -> bool:
        """``h = a if x else b`` in a class body would take a; elsewhere an expression is no 0."""
        frame = sys._getframe(1)
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if not is_function and getattr(frame.f_locals, "is_class_body", False):
            _refuse_truth(self)
        return True

    @classmethod
    @located
    def __torch_function__(cls, function: object, *_: object, **__: object) -> Expr:
        name = getattr(function, "__name__", function)
        raise ExpressionError(explanation(TypeError(f"torch.{name} takes arrays (__array__)")))

    def __matmul__(self, other: Expr) -> Apply:
        return Apply("matmul", (self, other))

    def __rmatmul__(self, other: Expr) -> Apply:
        return Apply("matmul", (other, self))


class Value(_Matmul, Symbol):  # type: ignore[misc]
    """A named quantity with a shape and a role.

    SymPy compares symbols by name only; here shape, role, owning cell and order take part as well,
    and construction bypasses SymPy's symbol cache, so that two cells may both have a ``w``.
    ``order`` is the position of the declaration, which orders printed sums and products: SymPy's
    caches return the first of equal expressions, so that without it the text of one cell would
    depend on the cells compiled before.
    """

    __slots__ = ("_content", "order", "owner", "role", "shape")

    shape: Shape
    role: Role
    owner: str
    order: int
    _content: tuple[str, ...]

    def __new__(
        cls, name: str, shape: Iterable[Expr], role: Role, owner: str = "", order: int = 0
    ) -> Value:
        """Make a value; equal ones are one object."""
        value: Value = Symbol.__xnew__(cls, name, commutative=True)
        value.shape = tuple(sympify(axis) for axis in shape)
        value.role = role
        value.owner = owner
        value.order = order
        # Text, because SymPy orders arguments by comparing these entries with `<`.
        value._content = (name, format_shape(value.shape), role.value, owner, str(order))
        return value

    def _hashable_content(self) -> tuple[object, ...]:
        return self._content

    def __getnewargs_ex__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return (self.name, self.shape, self.role, self.owner, self.order), {}

    def __str__(self) -> str:
        return str(self.name)  # what SymPy's printer gives, at a hundredth of its time

    @property
    def is_batched(self) -> bool:
        """Whether it has a row for each of the batch."""
        return B in self.shape


_IN_PLACE_OF_OPERANDS = (
    (np.ndarray, "an array is a Weight, a Static or an Input of the cell"),
    ((list, tuple, set, frozenset, dict), "write the operands one by one, as in concat(a, b)"),
    (str, "write the name without quotes"),
    (type(None), "leave it out"),
)
"""What is given in place of an operand, and what to write."""


@located
def as_operand(operand: object) -> Expr:
    """What an author gave an operator as SymPy has it.

    Raises:
        ExpressionError: what is neither an expression, nor a condition, nor a number.
    """
    if isinstance(operand, Expr | Boolean):
        return operand
    if isinstance(operand, Number | np.bool_) or hasattr(operand, "_sympy_"):
        return sympify(operand)
    advice = next((text for kind, text in _IN_PLACE_OF_OPERANDS if isinstance(operand, kind)), "")
    raise ExpressionError(
        f"{quoted(operand)} ({type_name(operand)}) stands where an operand is expected: a value of "
        f"the cell, an expression of such, or a number" + (f"; {advice}" if advice else "")
    )


class Apply(_Matmul, Expr):  # type: ignore[misc]
    """An operator applied to operands, with constant attributes; its meaning is in ``ops``."""

    __slots__ = ()

    def __new__(
        cls, op: str | Str, operands: Iterable[Expr], attributes: Iterable[Expr] = ()
    ) -> Apply:
        """Make a node: an operator of its operands, with attributes such as an axis."""
        name = op if isinstance(op, Str) else Str(op)
        node: Apply = Expr.__new__(
            cls,
            name,
            Tuple(*map(as_operand, operands)),
            Tuple(*(sympify(attribute) for attribute in attributes)),
        )
        return node

    is_commutative = True

    @property
    def op(self) -> str:
        """Name of the operator."""
        return str(self.args[0].name)

    @property
    def operands(self) -> tuple[Expr, ...]:
        """What it is of."""
        return tuple(self.args[1])

    @property
    def attributes(self) -> tuple[Expr, ...]:
        """What else it depends on, such as an axis."""
        return tuple(self.args[2])

    def _eval_derivative(self, symbol: Symbol) -> Expr:
        raise DeclarationError(
            f"{self.op} looks across elements and has no pointwise derivative with respect to "
            f"{symbol}; programs differentiate it through its adjoint in the operator table",
            code="derivation.pointwise",
        )


@cache
def format_axis(axis: Expr) -> str:
    """Write an axis length as people do: ``2*H``, ``I + H``.

    >>> format_axis(H * 2 + I)
    'I + 2*H'
    """
    return " + ".join(map(str, terms_of(axis)))


@cache
def axis_factors(axis: Expr) -> tuple[tuple[Expr, ...], ...]:
    """Terms of an axis length as people write them, each as what it multiplies.

    >>> axis_factors(2 * H**2 + I)
    ((I,), (2, H, H))
    """
    return tuple(
        tuple(one for f in term.as_ordered_factors() for one in _repeated(f))
        for term in terms_of(axis)
    )


def is_factor(axis: Expr) -> bool:
    """Whether a length is written without a sum or a product: no factor needs brackets then."""
    return sum(map(len, axis_factors(axis))) == 1


def terms_of(axis: Expr) -> list[Expr]:
    """The terms of an axis, whose sum is its length, in one order."""
    return sorted(sympify(axis).expand().as_ordered_terms(), key=_axis_key)


def _repeated(factor: Expr) -> list[Expr]:
    return [factor.base] * int(factor.exp) if factor.is_Pow else [factor]


def _axis_key(term: Expr) -> tuple[int, str]:
    names = "".join(sorted(str(symbol) for symbol in term.free_symbols))
    order = {"T": 0, "B": 1, "I": 2, "H": 3}
    return order.get(names, 9 if names else 10), names


def format_shape(shape: Iterable[Expr]) -> str:
    """Write a shape: ``(B, 2*H)``; a scalar is ``()``.

    >>> format_shape((B, 2 * H))
    '(B, 2*H)'
    """
    axes = [format_axis(axis) for axis in shape]
    return f"({axes[0]},)" if len(axes) == 1 else "(" + ", ".join(axes) + ")"


# --- SymPy's own classes -------------------------------------------------------------------------


def _is_of_a_cell(expression: object) -> bool:
    return isinstance(expression, Basic) and bool(expression.atoms(Value))


@located
def _refuse_matmul(left: Expr, right: object) -> Expr:
    """``(2 * x) @ (w * w)``: of SymPy's own classes, which have no ``@``, where one has values."""
    if isinstance(right, _Matmul) or not _is_of_a_cell(left):
        return NotImplemented
    kinds = f"{type(left).__name__!r} and {type(right).__name__!r}"
    raise ExpressionError(explanation(TypeError(f"unsupported operand type(s) for @: {kinds}")))


def _explained(method: Callable[..., R]) -> Callable[..., R]:
    """Make a method of SymPy's explain the error that it raises for an expression of values."""

    @located
    @functools.wraps(method)
    def call(self: Expr, *others: object) -> R:
        try:
            return method(self, *others)
        except (TypeError, ZeroDivisionError) as error:
            if isinstance(error, ExpressionError) or not _is_of_a_cell(self):
                raise
            if isinstance(error, ZeroDivisionError):  # of a remainder alone
                check_divisor(self, Integer(0))
            raise ExpressionError(explanation(error)) from None

    return call


@located
def _refuse_truth(value: object) -> None:
    written = value if isinstance(value, Symbol) else "an expression"
    raise ExpressionError(explanation(TypeError(f"cannot determine truth value of {written}")))


@located
def _condition_as_number(self: Relational, *others: object) -> Expr:
    """``-(x > 0)``, ``(2 * x) * (x > 0)``: where one has values."""
    if _is_of_a_cell(self):
        raise _no_number(self)
    if others:
        return NotImplemented
    raise TypeError(f"bad operand type for unary -: {type(self).__name__!r}")


def _foreign(name: str) -> Callable[[Expr], Expr]:
    """What NumPy's function of a name looks for in an object."""

    @located
    def call(self: Expr) -> Expr:
        kind = type(self).__name__
        error = TypeError(
            f"loop of ufunc does not support argument 0 of type {kind} which has no callable "
            f"{name} method"
        )
        raise ExpressionError(explanation(error)) if _is_of_a_cell(self) else error

    return call


def _attribute_of_arrays(name: str) -> property:
    """An attribute that an expression lacks, told where it is one of a cell."""

    @located
    def get(self: Expr) -> object:
        said = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not _is_of_a_cell(self):
            raise AttributeError(said)
        called = self.name if isinstance(self, Symbol) else "a"
        raise UnknownAttributeError(f"AttributeError: {said}; {advice_on_attribute(name, called)}")

    return property(get)


_NUMPYS_OWN = operator.attrgetter("_implementation")
"""What one of NumPy's functions does with arrays."""


@located
def _refuse_numpy(
    self: Expr,
    function: Callable[..., object],
    types: object,
    operands: tuple[object, ...],
    named: Mapping[str, object],
) -> object:
    """Answer ``np.sum(x)``: for NumPy's functions of arrays an expression is an array of one."""
    listed = [item if isinstance(item, list | tuple) else (item,) for item in operands]
    if any(_is_of_a_cell(item) for items in listed for item in items):
        error = TypeError(f"numpy.{function.__name__} takes arrays (__array_function__)")
        raise ExpressionError(explanation(error))
    result: object = _NUMPYS_OWN(function)(*operands, **named)
    return result


_NUMPY_FUNCTIONS = (
    "exp",
    "log",
    "log1p",
    "expm1",
    "tanh",
    "sin",
    "cos",
    "sqrt",
    "arctan",
    "square",
)

if not hasattr(Expr, "__matmul__"):  # once in a process
    Expr.__matmul__ = _refuse_matmul
    Expr.__array_function__ = _refuse_numpy
    Expr.__mod__ = _explained(Expr.__mod__)
    Expr.__float__ = _explained(Expr.__float__)
    Relational.__bool__ = _explained(Relational.__bool__)
    for _name in (*_ARITHMETIC, "__neg__"):
        if not hasattr(Relational, _name):
            setattr(Relational, _name, _condition_as_number)
    for _name in ATTRIBUTES:
        if not hasattr(Expr, _name):
            setattr(Expr, _name, _attribute_of_arrays(_name))
    for _name in _NUMPY_FUNCTIONS:
        if not hasattr(Expr, _name):
            setattr(Expr, _name, _foreign(_name))
