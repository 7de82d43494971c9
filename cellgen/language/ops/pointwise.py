"""The rows of the operator table."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import sympy
from sympy import Basic, Expr, Function, Integer, Rational, Tuple, sympify
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction

from cellgen.errors import DeclarationError
from cellgen.language.c_fragment import fault_of
from cellgen.language.constants import exact_constant
from cellgen.language.graph import Graph
from cellgen.language.lines import located
from cellgen.language.misuse import ExpressionError
from cellgen.language.names import check_name
from cellgen.language.value import (
    Apply,
    Arithmetic,
    B,
    Dim,
    Role,
    Shape,
    Value,
    format_axis,
    format_shape,
)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Derivative: TypeAlias = Callable[..., Expr]


# --- pointwise functions -------------------------------------------------------------------------


@dataclass(frozen=True)
class PointwiseRow:
    """One pointwise function.

    ``derivatives[k]`` takes the result ``y`` and the arguments and gives the derivative by argument
    ``k``; writing it through ``y`` lets the backward pass reuse the forward value. ``numpy`` takes
    float or complex arrays. ``stated`` marks a derivative that is declared rather than true
    (straight-through, surrogate, stop_gradient): in complex mode such a function evaluates to
    f(Re) + i f'(Re) Im. ``c`` is a format string over printed arguments: a call such as
    ``"cg_tanh({0})"``, or any C expression.
    """

    name: str
    numpy: Callable[..., Array]
    derivatives: tuple[Derivative, ...]
    c: str
    stated: bool = False
    kinks: bool = False
    transcendental: bool = True
    latex: str = ""

    @property
    def arity(self) -> int:
        return len(self.derivatives)


class Pointwise(Arithmetic, Function):  # type: ignore[misc]
    """Base of the pointwise SymPy functions; each subclass carries its row of the table."""

    row: PointwiseRow

    def fdiff(self, argindex: int = 1) -> Expr:
        return sympify(self.row.derivatives[argindex - 1](self, *self.args))


def _real(value: Array) -> Array:
    return np.real(value)


def _select(first_wins: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def choose(a: Array, b: Array) -> Array:
        return np.where(first_wins(_real(a), _real(b)) | np.isnan(_real(a)), a, b)

    return choose


def _compare(test: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: test(_real(a), _real(b)).astype(np.float64)


def _np_sigmoid(x: Array) -> Array:
    e = np.exp(np.where(_real(x) >= 0, -x, x))
    return np.where(_real(x) >= 0, 1 / (1 + e), e / (1 + e))


def _np_softplus(x: Array) -> Array:
    positive = _real(x) > 0
    return np.where(positive, x, 0) + np.log1p(np.exp(np.where(positive, -x, x)))


_erf_of_floats = np.vectorize(math.erf, otypes=[np.float64])
_ERF_SLOPE = exact_constant(2 / sympy.sqrt(sympy.pi))


def _np_erf(x: Array) -> Array:
    """On the real line, and beside it to the first order."""
    made: Array = _erf_of_floats(np.real(x))
    if not np.iscomplexobj(x):
        return made
    slope: Array = (2 / math.sqrt(math.pi)) * np.exp(-(np.real(x) ** 2))
    return made + 1j * np.imag(x) * slope


def _np_abs(x: Array) -> Array:
    return np.where(_real(x) < 0, -x, x)


def _np_where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(_real(condition) != 0, a, b)


def _np_strong_product(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), 0, a * b)


def _np_clip(x: Array, low: Array, high: Array) -> Array:
    maximum, minimum = _select(np.greater_equal), _select(np.less_equal)
    return maximum(minimum(x, high), low)


def _inside(y: Expr, x: Expr, low: Expr, high: Expr) -> Expr:
    return ge(x, low) * le(x, high)


def _slope_by_exponent(y: Expr, x: Expr, p: Expr) -> Expr:
    """``x**p log(x)``, and 0 where ``x**p`` is 0: ``0**p`` is 0 for all p > 0."""
    return where(absolute(y) <= 0, 0, y * log(x))


_POINTWISE_ROWS = (
    # name, NumPy meaning, derivatives by (y, *arguments), C spelling
    PointwiseRow("exp", np.exp, (lambda y, x: y,), "cg_exp({0})"),
    PointwiseRow("expm1", np.expm1, (lambda y, x: y + 1,), "cg_expm1({0})"),
    PointwiseRow("log", np.log, (lambda y, x: 1 / x,), "cg_log({0})"),
    PointwiseRow("log1p", np.log1p, (lambda y, x: 1 / (1 + x),), "cg_log1p({0})"),
    PointwiseRow("tanh", np.tanh, (lambda y, x: 1 - y**2,), "cg_tanh({0})", latex=r"\tanh"),
    PointwiseRow(
        "sigmoid", _np_sigmoid, (lambda y, x: y * (1 - y),), "cg_sigmoid({0})", latex=r"\sigma"
    ),
    PointwiseRow("softplus", _np_softplus, (lambda y, x: sigmoid(x),), "cg_softplus({0})"),
    PointwiseRow(
        "log_sigmoid",
        lambda x: -_np_softplus(-x),
        (lambda y, x: sigmoid(-x),),
        "cg_log_sigmoid({0})",
        latex=r"\log\sigma",
    ),
    PointwiseRow("sqrt", np.sqrt, (lambda y, x: 1 / (2 * y),), "cg_sqrt({0})"),
    PointwiseRow("sin", np.sin, (lambda y, x: cos(x),), "cg_sin({0})", latex=r"\sin"),
    PointwiseRow("cos", np.cos, (lambda y, x: -sin(x),), "cg_cos({0})", latex=r"\cos"),
    PointwiseRow(
        "erf",
        _np_erf,
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
    ),
    PointwiseRow(
        "abs", _np_abs, (lambda y, x: sign(x),), "cg_abs({0})", kinks=True, transcendental=False
    ),
    PointwiseRow(
        "sign",
        lambda x: np.sign(_real(x)),
        (lambda y, x: Integer(0),),
        "cg_sign({0})",
        kinks=True,
        transcendental=False,
    ),
    PointwiseRow(
        "relu",
        lambda x: np.where((_real(x) > 0) | np.isnan(_real(x)), x, 0),
        (lambda y, x: gt(y, 0),),
        "cg_relu({0})",
        kinks=True,
        transcendental=False,
        latex=r"\mathrm{relu}",
    ),
    PointwiseRow(
        "hard_sigmoid",
        lambda x: _np_clip(x / 6 + 0.5, np.zeros(()), np.ones(())),
        (lambda y, x: _inside(y, x, Integer(-3), Integer(3)) / 6,),
        "cg_hard_sigmoid({0})",
        kinks=True,
        transcendental=False,
    ),
    PointwiseRow(
        "maximum",
        _select(np.greater_equal),
        (lambda y, a, b: ge(a, b), lambda y, a, b: lt(a, b)),
        "cg_maximum({0}, {1})",
        kinks=True,
        transcendental=False,
        latex=r"\max",
    ),
    PointwiseRow(
        "minimum",
        _select(np.less_equal),
        (lambda y, a, b: le(a, b), lambda y, a, b: gt(a, b)),
        "cg_minimum({0}, {1})",
        kinks=True,
        transcendental=False,
        latex=r"\min",
    ),
    PointwiseRow(
        "clip_exact",
        _np_clip,
        (
            _inside,
            lambda y, x, low, high: lt(x, low),
            lambda y, x, low, high: gt(x, high),
        ),
        "cg_clip({0}, {1}, {2})",
        kinks=True,
        transcendental=False,
        latex=r"\mathrm{clip}",
    ),
    PointwiseRow(
        "clip_straight_through",
        _np_clip,
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
    ),
    PointwiseRow(
        "stop_gradient",
        lambda x: x,
        (lambda y, x: Integer(0),),
        "{0}",
        stated=True,
        transcendental=False,
    ),
    PointwiseRow("keep", lambda x: x, (lambda y, x: Integer(1),), "{0}", transcendental=False),
    *(
        PointwiseRow(
            name,
            _compare(test),
            (lambda y, a, b: Integer(0), lambda y, a, b: Integer(0)),
            spelling,
            kinks=True,
            transcendental=False,
        )
        for name, test, spelling in (
            ("gt", np.greater, "cg_gt({0}, {1})"),
            ("ge", np.greater_equal, "cg_ge({0}, {1})"),
            ("lt", np.less, "cg_lt({0}, {1})"),
            ("le", np.less_equal, "cg_le({0}, {1})"),
        )
    ),
    PointwiseRow(
        "where",
        _np_where,
        (
            lambda y, c, a, b: Integer(0),
            lambda y, c, a, b: _where(c, 1, 0),
            lambda y, c, a, b: _where(c, 0, 1),
        ),
        "cg_where({0}, {1}, {2})",
        kinks=True,
        transcendental=False,
    ),
    PointwiseRow(
        "strong_product",
        _np_strong_product,
        (lambda y, a, b: b, lambda y, a, b: a),
        "cg_strong_product({0}, {1})",
        transcendental=False,
    ),
)

COMPARISONS = ("gt", "ge", "lt", "le")


def define_pointwise(row: PointwiseRow) -> type[Pointwise]:
    """Make the SymPy function of a row."""
    body: dict[str, object] = {"row": row, "nargs": row.arity}
    if row.name == "where":
        body["_eval_derivative"] = _where_derivative
    return type(row.name, (Pointwise,), body)


def _where_derivative(node: Pointwise, symbol: Value) -> Expr:
    """Differentiate both branches under one condition, so that equal branches fold to one."""
    condition, a, b = node.args
    return where(condition, a.diff(symbol), b.diff(symbol))


POINTWISE: Mapping[str, type[Pointwise]] = {
    row.name: define_pointwise(row) for row in _POINTWISE_ROWS
}


@located
def activation(
    name: str,
    *,
    numpy: Callable[..., Array],
    derivative: Derivative | Sequence[Derivative],
    c: str,
    latex: str = "",
    stated: bool = False,
    kinks: bool = False,
) -> type[Pointwise]:
    """Define a pointwise function of your own, to be used like ``tanh`` in equations::

        softsign = activation(
            "softsign", numpy=lambda x: x / (1 + np.sqrt(x * x)), c="{0} / (1 + cg_abs({0}))",
            derivative=lambda y, x: 1 / (1 + abs(x)) ** 2)

    ``numpy`` takes float and complex arrays; ``derivative`` (one function, or one for each
    argument) takes the result and the arguments and may be written through either; ``c`` may use
    the ``cg_`` functions of the runtime header. ``stated`` marks a derivative that is declared
    rather than true, ``kinks`` a function that has them. A function made of known ones needs none
    of this: ``def mish(x): return x * tanh(softplus(x))``.

    Raises:
        DeclarationError: a name that is taken or no identifier, or a C expression that does not
            read every argument.
    """
    check_name(name, "activation")
    if name in POINTWISE:
        raise DeclarationError(
            f"activation {name!r} is in the operator table already; choose another name",
            code="declaration.activation",
        )
    given = tuple(derivative) if isinstance(derivative, Sequence) else (derivative,)
    derivatives = tuple(_in_rows(stated_one) for stated_one in given)
    unread = [f"{{{k}}}" for k in range(len(derivatives)) if f"{{{k}}}" not in c]
    if unread:
        raise DeclarationError(
            f"activation {name!r}: its C expression {c!r} does not read {', '.join(unread)}; write "
            f"{{0}} for the first argument, {{1}} for the second, ...",
            code="declaration.activation",
        )
    row = PointwiseRow(name, numpy, derivatives, c, stated=stated, kinks=kinks, latex=latex)
    _check_activation(row)
    return define_pointwise(row)


def _in_rows(derivative: Derivative) -> Derivative:
    """A derivative that an author wrote, with SymPy's functions and constants in our rows."""

    def formed(*arguments: Expr) -> Expr:
        made = sympify(derivative(*arguments))
        return from_sympy(made) if isinstance(made, Expr) else made

    return formed


def _check_activation(row: PointwiseRow) -> None:
    """Spell the function and form its derivatives once, so that a mistake shows where it is made.

    Raises:
        DeclarationError: a C expression with other places than arguments, a derivative that does
            not take symbols.
    """
    count = len(row.derivatives)
    places = ", ".join(f"{{{index}}}" for index in range(count))
    try:
        filled = row.c.format(*["x"] * count)
    except (IndexError, KeyError, ValueError) as error:
        raise DeclarationError(
            f"activation {row.name!r}: its C expression {row.c!r} cannot be filled in ({error}); "
            f"expected no places but {places}, and braces of C doubled",
            code="declaration.activation",
        ) from None
    fault = fault_of(filled)
    if fault:
        raise DeclarationError(
            f"activation {row.name!r}: its C expression {row.c!r} is not one whole expression: "
            f"{fault}; write one that could stand in brackets",
            code="declaration.activation",
        )
    symbols = [Value(name, (), Role.LOCAL) for name in ("y", *(f"x_{k}" for k in range(count)))]
    for derivative in row.derivatives:
        try:
            formed = sympify(derivative(*symbols))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, ExpressionError):
                said = Exception.__str__(error).partition("\n")[0]
            raise DeclarationError(
                f"activation {row.name!r}: its derivative cannot be formed of symbols "
                f"({said}); it takes the result and {count} "
                f"argument{'s' * (count != 1)}, and is written with functions of cellgen",
                code="declaration.activation",
            ) from None
        if not isinstance(formed, Expr):
            raise DeclarationError(
                f"activation {row.name!r}: its derivative gives {formed}, expected an expression; "
                f"write one of y and the arguments",
                code="declaration.activation",
            )


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
_where: type[Pointwise] = POINTWISE["where"]
_strong_product: type[Pointwise] = POINTWISE["strong_product"]
_LIMITS = (POINTWISE["clip_exact"], POINTWISE["clip_straight_through"])


def _truth(condition: Expr) -> Expr:
    """1 where a condition holds (is not zero), else 0; comparisons are that already."""
    is_truth = isinstance(condition, gt | ge | lt | le) or condition in (0, 1)
    return condition if is_truth else _where(condition, 1, 0)


def _both(first: Expr, second: Expr) -> Expr:
    return _where(first, _truth(second), 0)


def _either(first: Expr, second: Expr) -> Expr:
    return _where(first, 1, _truth(second))


def _not(condition: Expr) -> Expr:
    return _where(condition, 0, 1)


def _one_of(first: Expr, second: Expr) -> Expr:
    return _where(first, _not(second), _truth(second))


def _equal(first: Expr, second: Expr) -> Expr:
    return _both(ge(first, second), le(first, second))


def _piecewise(*branches: Tuple) -> Expr:
    """The first branch whose condition holds; the last one is for everything else."""
    *first, (otherwise, always) = branches
    if always != 1:
        raise DeclarationError(
            "Piecewise leaves out what it is where no condition holds; end it with (value, True)",
            code="declaration.operator",
        )
    result = otherwise
    for value, condition in reversed(first):
        result = value if value == result else _where(condition, value, result)
    return result


def _heaviside(x: Expr, at_zero: Expr) -> Expr:
    """0, ``at_zero`` or 1 by the sign; NaN stays."""
    step = (1 + sign(x)) / 2
    return step if at_zero == Rational(1, 2) else _where(_equal(x, Integer(0)), at_zero, step)


_SYMPY: Mapping[type, Callable[..., Expr]] = {
    sympy.StrictGreaterThan: gt,
    sympy.GreaterThan: ge,
    sympy.StrictLessThan: lt,
    sympy.LessThan: le,
    sympy.Equality: _equal,
    sympy.Unequality: lambda a, b: _not(_equal(a, b)),
    sympy.And: lambda *args: _fold(_both, args),
    sympy.Or: lambda *args: _fold(_either, args),
    sympy.Xor: lambda *args: _fold(_one_of, args),
    sympy.Not: _not,
    sympy.ITE: lambda c, a, b: _where(c, _truth(a), _truth(b)),
    sympy.Piecewise: _piecewise,
    sympy.Heaviside: _heaviside,
    sympy.exp: exp,
    sympy.log: log,
    sympy.tanh: tanh,
    sympy.sinh: lambda x: (expm1(x) - expm1(-x)) / 2,
    sympy.cosh: lambda x: (exp(x) + exp(-x)) / 2,
    sympy.sin: sin,
    sympy.cos: cos,
    sympy.tan: lambda x: sin(x) / cos(x),
    sympy.erf: erf,
    sympy.Abs: absolute,
    sympy.sign: sign,
    sympy.Max: lambda *args: _fold(maximum, args),
    sympy.Min: lambda *args: _fold(minimum, args),
}
"""What people write with SymPy's functions, in rows of this table."""

_WHOLE = "it has no derivative; count outside and pass the number as an input"
_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("floor", "ceiling", "frac", "Mod"), _WHOLE),
    **dict.fromkeys(
        ("re", "im", "conjugate", "arg"), "values are real; leave it out, or name both parts"
    ),
    "erfc": "write 1 - erf(x), which is 0 from x = 4 (float32) or 6 on",
    "DiracDelta": "a jump has derivative 0 here; leave it out",
    "Sum": "write sum(value) for the units of a value",
}


def _fold(function: Callable[[Expr, Expr], Expr], args: Sequence[Expr]) -> Expr:
    result = args[0]
    for argument in args[1:]:
        result = function(result, argument)
    return result


@located
def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Choose ``a`` where the condition holds (is true, or not zero), else ``b``; NaN in the branch
    not chosen does not show. The condition may be a comparison such as ``x > 0``.

    Raises:
        DeclarationError: a condition that is the same everywhere, as ``x == 0`` is: in Python it
            asks whether two expressions are the same one.
    """
    a, b, condition = sympify(a), sympify(b), sympify(condition)
    if condition.is_Number or isinstance(condition, BooleanAtom):
        raise DeclarationError(
            f"where({condition}, ...): the condition is {condition} everywhere; expected one that "
            f"depends on values, such as x > 0 (== and != of expressions tell whether they are the "
            f"same expression: for x == 0 write where(abs(x) > 0, b, a))",
            code="declaration.where",
        )
    if a == b:
        return a
    return _where(_condition(condition), a, b)


def _condition(expression: Basic) -> Basic:
    """A condition in rows; what it compares is left to the equation, which is rewritten once."""
    if isinstance(expression, Relational):
        return _SYMPY[type(expression)](*expression.args)
    if isinstance(expression, BooleanFunction) and type(expression) in _SYMPY:
        return _SYMPY[type(expression)](*map(_condition, expression.args))
    return from_sympy(expression) if isinstance(expression, BooleanFunction) else expression


def strong_product(a: Expr, b: Expr) -> Expr:
    """Return ``a * b``, and 0 where either is 0, whatever the other is: infinite, or no number.

    Derivatives are multiplied in this way where one may be 0 by a branch that is not taken. Its own
    derivatives are those of a product.
    """
    a, b = sympify(a), sympify(b)
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
    low, high = sympify(low), sympify(high)
    if low.is_Number and high.is_Number and low > high:
        raise DeclarationError(
            f"clip(x, {low}, {high}): the lower limit is above the upper one; expected low <= high",
            code="declaration.clip",
        )
    limits = POINTWISE[rows[gradient]]
    above, below = low != -sympy.oo, high != sympy.oo
    if (above and below) or (gradient == "straight_through" and (above or below)):
        return limits(x, low, high)
    x = maximum(x, low) if above else sympify(x)
    return minimum(x, high) if below else x


def identity(x: Expr) -> Expr:
    """Return ``x``: the activation that does nothing."""
    return x


def from_sympy(expression: Expr) -> Expr:
    """Rewrite SymPy's own functions, comparisons and constants into rows of this table and numbers.

    Raises:
        DeclarationError: a function that the table does not have, a constant that is no real number
            or has no value in a kernel's precisions.
    """
    made: list[Any] = []
    constant: list[bool] = []
    for node, places in Graph(expression):
        is_constant = _is_constant(node, [constant[place] for place in places])
        constant.append(is_constant)
        if is_constant:  # evaluated where it is read, as a whole
            made.append(node)
            continue
        numbers = [made[place] for place in places if constant[place]]
        operands = [made[place] for place in places if not constant[place]]
        if isinstance(node, sympy.Add | sympy.Mul):
            joined = [exact_constant(node.func(*numbers))] if numbers else []
            made.append(node.func(*joined, *operands))
            continue
        accepted = sympy.S.Infinity if isinstance(node, _LIMITS) else None
        operands = [
            exact_constant(made[place])
            if constant[place] and abs(made[place]) != accepted
            else made[place]
            for place in places
        ]
        made.append(_row_of(node, operands))
    result: Expr = exact_constant(made[-1]) if constant[-1] else made[-1]
    return result


def _is_constant(node: Basic, of_operands: Sequence[bool]) -> bool:
    """Whether a node is a number, or an expression of SymPy's made of numbers alone."""
    if not isinstance(node, Expr) or isinstance(node, Pointwise | Apply):
        return False
    return all(of_operands) if of_operands else bool(node.is_number)


def _row_of(node: Basic, operands: Sequence[Any]) -> Basic:
    """Write one node, whose operands are written already, with rows of the table."""
    kind = type(node)
    if isinstance(node, BooleanAtom):
        return Integer(bool(node))
    if isinstance(node, Apply):
        values = tuple(operands[1])
        by_head = node.op == "matmul" and all(len(shape_of(value)) == 3 for value in values)
        return Apply("matmul_heads" if by_head else node.op, values, operands[2])
    if isinstance(node, Tuple):
        return Tuple(*operands)
    if not node.args:
        return node
    if isinstance(node, Pointwise):
        return node if tuple(operands) == node.args else kind(*operands)
    if kind in _SYMPY:
        return _SYMPY[kind](*operands)
    if isinstance(node, sympy.Pow):
        base, exponent = operands
        return base**exponent if exponent.is_Rational else power(base, exponent)
    advice = _INSTEAD.get(kind.__name__, "compose it of known ones, or define it with activation()")
    raise DeclarationError(
        f"{kind.__name__} is not in the operator table; {advice}; known functions: "
        f"{', '.join(sorted(POINTWISE))}",
        code="declaration.operator",
    )


# --- operators across elements -------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    """One operator that looks across elements.

    ``shape`` maps operand shapes and attributes to the result's shape and raises
    ``DeclarationError`` on a mismatch. ``numpy`` takes arrays, attributes and a function that
    evaluates a dimension. ``adjoint`` maps (adjoint of the result, operands, attributes) to one
    contribution per operand (None where there is none). Products (``is_product``) are bilinear; a
    result that ``is_still`` does not move with its operands, except in jumps; every other operator
    is linear, and its own tangent.
    """

    name: str
    shape: Callable[[Sequence[Shape], Sequence[Expr]], Shape]
    numpy: Callable[[Sequence[Array], Sequence[Expr], Callable[[Expr], int]], Array]
    adjoint: Callable[[Value, Sequence[Value], Sequence[Expr]], tuple[Expr | None, ...]]
    is_product: bool = False
    is_still: bool = False
    text: str = ""


def _mismatch(what: str) -> DeclarationError:
    return DeclarationError(f"shapes do not agree: {what}", code="declaration.shape")


def _matrix(shape: Shape, what: str) -> tuple[Expr, Expr]:
    if len(shape) != 2:
        raise _mismatch(f"{what} needs two axes, found {format_shape(shape)}")
    return shape[0], shape[1]


def _into(shape: Shape, what: str) -> tuple[Expr, Shape]:
    """The first axis of a weight (K, N) or of one into heads (I, K, D), and what remains."""
    if len(shape) not in (2, 3):
        raise _mismatch(f"{what} needs two axes, or three for heads, found {format_shape(shape)}")
    return shape[0], shape[1:]


def _matmul_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    if all(len(shape) == 3 for shape in shapes):
        return _matmul_heads_shape(shapes, attributes)
    (rows, inner), (inner_w, columns) = _matrix(shapes[0], "@"), _into(shapes[1], "@")
    if inner_w.has(B) or any(axis.has(B) for axis in columns):
        raise _mismatch(
            f"{format_shape(shapes[0])} @ {format_shape(shapes[1])}: the right side of @ must be "
            f"a weight, it must not have the batch axis B"
        )
    if inner != inner_w:
        raise _mismatch(
            f"{format_shape(shapes[0])} @ {format_shape(shapes[1])} contracts "
            f"{format_axis(inner)} with {format_axis(inner_w)}"
        )
    return (rows, *columns)


def _matmul_transposed_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, inner), (columns, inner_w) = (_into(shape, "@ transposed") for shape in shapes)
    if inner != inner_w:
        raise _mismatch(f"{format_shape(shapes[0])} @ transpose of {format_shape(shapes[1])}")
    return (rows, columns)


def _outer_sum_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, inner), (rows_b, columns) = (
        _matrix(shapes[0], "outer_sum"),
        _into(shapes[1], "outer_sum"),
    )
    if rows != rows_b:
        raise _mismatch(f"outer_sum of {format_shape(shapes[0])} and {format_shape(shapes[1])}")
    return (inner, *columns)


def _heads(shapes: Sequence[Shape], what: str) -> list[tuple[Expr, Expr, Expr]]:
    if any(len(shape) != 3 for shape in shapes):
        listed = " and ".join(format_shape(shape) for shape in shapes)
        raise _mismatch(f"{what} of heads needs three axes each, found {listed}")
    return [(shape[0], shape[1], shape[2]) for shape in shapes]


def _matmul_heads_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, heads, inner), (heads_w, inner_w, columns) = _heads(shapes, "@")
    if (heads, inner) != (heads_w, inner_w):
        raise _mismatch(
            f"{format_shape(shapes[0])} @ {format_shape(shapes[1])} pairs {format_axis(heads)} "
            f"heads of {format_axis(inner)} with {format_axis(heads_w)} of {format_axis(inner_w)}"
        )
    return (rows, heads, columns)


def _matmul_heads_transposed_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, heads, inner), (heads_w, columns, inner_w) = _heads(shapes, "@ transposed")
    if (heads, inner) != (heads_w, inner_w):
        raise _mismatch(f"{format_shape(shapes[0])} @ transpose of {format_shape(shapes[1])}")
    return (rows, heads, columns)


def _outer_sum_heads_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    (rows, heads, inner), (rows_b, heads_b, columns) = _heads(shapes, "outer_sum")
    if (rows, heads) != (rows_b, heads_b):
        raise _mismatch(f"outer_sum of {format_shape(shapes[0])} and {format_shape(shapes[1])}")
    return (heads, inner, columns)


def _transpose_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    rows, columns = _matrix(shapes[0], "transpose")
    if rows == B:
        raise _mismatch(f"transpose takes a weight, found {format_shape(shapes[0])} with rows")
    return (columns, rows)


def _concat_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    axis = int(attributes[0])
    first = shapes[0]
    if len(first) > 2 and axis > 0:  # rows of a weight that maps into heads may be joined
        raise _mismatch(f"concat of {format_shape(first)}: the units of heads lie apart")
    if any(len(shape) != len(first) for shape in shapes) or len(first) <= axis:
        listed = ", ".join(format_shape(shape) for shape in shapes)
        raise _mismatch(f"concat of {listed}: every operand needs the same number of axes")
    for shape in shapes[1:]:
        if shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            raise _mismatch(
                f"concat of {format_shape(first)} and {format_shape(shape)} differs off axis {axis}"
            )
    total = sympy.Add(*(shape[axis] for shape in shapes))
    return (*first[:axis], total, *first[axis + 1 :])


def _part_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    axis, _, size = attributes
    shape = shapes[0]
    return (*shape[: int(axis)], size, *shape[int(axis) + 1 :])


def _first_max_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    if len(shapes[0]) < int(attributes[0]):
        raise _mismatch(f"max over {attributes[0]} axes of {format_shape(shapes[0])}")
    return shapes[0]


def _spread_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    target: Shape = tuple(attributes)
    if broadcast((shapes[0], target)) != target:
        raise _mismatch(f"spread of {format_shape(shapes[0])} to {format_shape(target)}")
    return target


def _sum_to_shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
    target: Shape = tuple(attributes)
    if broadcast((shapes[0], target)) != shapes[0]:
        raise _mismatch(f"sum of {format_shape(shapes[0])} to {format_shape(target)}")
    return target


def _np_part(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    axis, start, length = (size(attribute) for attribute in attributes)
    index = [slice(None)] * arrays[0].ndim
    index[axis] = slice(start, start + length)
    return arrays[0][tuple(index)]


def _np_first_max(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    shape = arrays[0].shape
    rows = len(shape) - int(attributes[0])
    array = np.real(arrays[0]).reshape(*shape[:rows], math.prod(shape[rows:]))
    chosen = np.zeros(array.shape)
    if array.size:
        np.put_along_axis(chosen, array.argmax(axis=-1, keepdims=True), 1.0, axis=-1)
    return chosen.reshape(shape)


def _np_spread(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    return np.broadcast_to(arrays[0], tuple(size(axis) for axis in attributes))


def _np_matmul_transposed(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    a, w = arrays
    axes = list(range(1, w.ndim))
    return np.asarray(np.tensordot(a, w, axes=(axes, axes)))


def _np_sum_to(
    arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
) -> Array:
    array = arrays[0]
    array = np.asarray(array.sum(axis=tuple(range(array.ndim - len(attributes)))))
    # By the symbolic shape, not the lengths: an axis of length 1 that is not summed stays as it is.
    for axis, length in enumerate(attributes):
        if length == 1:
            array = np.asarray(array.sum(axis=axis, keepdims=True))
    return array


def _concat_adjoint(
    d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
) -> tuple[Expr | None, ...]:
    axis, start, parts = int(attributes[0]), Integer(0), []
    for operand in operands:
        size = operand.shape[axis]
        parts.append(part(d_y, axis, start, size))
        start = start + size
    return tuple(parts)


def _product_adjoint(first: str, second: str, swap_first: bool, swap_second: bool):  # type: ignore[no-untyped-def]
    def adjoint(
        d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
    ) -> tuple[Expr | None, ...]:
        a, b = operands
        d_a = Apply(first, (b, d_y) if swap_first else (d_y, b))
        d_b = Apply(second, (d_y, a) if swap_second else (a, d_y))
        return d_a, d_b

    return adjoint


def _onto(row: Operator) -> Operator:
    """The product of ``row`` added onto a seed: ``y = seed + a w``, one sum in one buffer."""

    def shape(shapes: Sequence[Shape], attributes: Sequence[Expr]) -> Shape:
        product = row.shape(shapes[1:], attributes)
        if shapes[0] != product:
            raise _mismatch(f"{format_shape(product)} added onto {format_shape(shapes[0])}")
        return product

    def meaning(
        arrays: Sequence[Array], attributes: Sequence[Expr], size: Callable[[Expr], int]
    ) -> Array:
        return arrays[0] + row.numpy(arrays[1:], attributes, size)

    def adjoint(
        d_y: Value, operands: Sequence[Value], attributes: Sequence[Expr]
    ) -> tuple[Expr | None, ...]:
        return (d_y, *row.adjoint(d_y, operands[1:], attributes))

    text = "{0} + " + row.text.replace("{1}", "{2}").replace("{0}", "{1}")
    return Operator(f"{row.name}_onto", shape, meaning, adjoint, is_product=True, text=text)


_PRODUCTS = (
    # y = a w:   d_a = d_y w^T,  d_w = a^T d_y (summed over rows)
    Operator(
        "matmul",
        _matmul_shape,
        lambda arrays, attributes, size: np.tensordot(arrays[0], arrays[1], axes=1),
        _product_adjoint("matmul_transposed", "outer_sum", False, False),
        is_product=True,
        text="{0} @ {1}",
    ),
    # y = a w^T: d_a = d_y w,    d_w = d_y^T a
    Operator(
        "matmul_transposed",
        _matmul_transposed_shape,
        _np_matmul_transposed,
        _product_adjoint("matmul", "outer_sum", False, True),
        is_product=True,
        text="{0} @ {1}.T",
    ),
    # y = a^T b: d_a = b d_y^T,  d_b = a d_y
    Operator(
        "outer_sum",
        _outer_sum_shape,
        lambda arrays, attributes, size: np.tensordot(arrays[0], arrays[1], axes=(0, 0)),
        _product_adjoint("matmul_transposed", "matmul", True, False),
        is_product=True,
        text="{0}.T @ {1}",
    ),
    # The same head by head: a (B, K, D), w (K, D, E), y (B, K, E).
    Operator(
        "matmul_heads",
        _matmul_heads_shape,
        lambda arrays, attributes, size: np.einsum("bkd,kde->bke", *arrays),
        _product_adjoint("matmul_heads_transposed", "outer_sum_heads", False, False),
        is_product=True,
        text="{0} @ {1}",
    ),
    Operator(
        "matmul_heads_transposed",
        _matmul_heads_transposed_shape,
        lambda arrays, attributes, size: np.einsum("bke,kde->bkd", *arrays),
        _product_adjoint("matmul_heads", "outer_sum_heads", False, True),
        is_product=True,
        text="{0} @ {1}.T",
    ),
    Operator(
        "outer_sum_heads",
        _outer_sum_heads_shape,
        lambda arrays, attributes, size: np.einsum("bkd,bke->kde", *arrays),
        _product_adjoint("matmul_heads_transposed", "matmul_heads", True, False),
        is_product=True,
        text="{0}.T @ {1}",
    ),
)

OPERATORS: Mapping[str, Operator] = {
    row.name: row
    for row in (
        *_PRODUCTS,
        *(_onto(row) for row in _PRODUCTS),
        Operator(
            "transpose",
            _transpose_shape,
            lambda arrays, attributes, size: arrays[0].T,
            lambda d_y, operands, attributes: (Apply("transpose", (d_y,)),),
            text="{0}.T",
        ),
        Operator(
            "concat",
            _concat_shape,
            lambda arrays, attributes, size: np.concatenate(arrays, axis=int(attributes[0])),
            _concat_adjoint,
        ),
        # The adjoint of a part is gathered with those of its siblings: see derive.
        Operator(
            "part",
            _part_shape,
            _np_part,
            lambda d_y, operands, attributes: (None,),
        ),
        # Sums over every axis along which the target was broadcast; the adjoint broadcasts back.
        Operator("sum_to", _sum_to_shape, _np_sum_to, lambda d_y, operands, attributes: (d_y,)),
        # 1 where the largest unit stands, the first of equal ones, else 0; over so many axes.
        Operator(
            "first_max",
            _first_max_shape,
            _np_first_max,
            lambda d_y, operands, attributes: (Integer(0),),
            is_still=True,
        ),
        # What NumPy's broadcasting does, as a copy: between heads and units loops cannot.
        Operator(
            "spread",
            _spread_shape,
            _np_spread,
            lambda d_y, operands, attributes: (Apply("sum_to", (d_y,), operands[0].shape),),
        ),
    )
}


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Combine shapes as NumPy does, aligned at the last axis.

    Raises:
        DeclarationError: two axes that are neither equal nor 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Expr] = [Integer(1)] * rank
    for shape in shapes:
        for position, axis in enumerate(shape, start=rank - len(shape)):
            if axis == 1:
                continue
            if result[position] not in (1, axis):
                listed = " and ".join(
                    dict.fromkeys(format_shape(other) for other in shapes if len(other))
                )
                one_a_row = rank == 3 and any(other == (B, 1) for other in shapes)
                raise _mismatch(
                    f"{listed} ({format_axis(result[position])} against {format_axis(axis)})"
                    + ("; beside heads a number for each row is Input(1, 1)" if one_a_row else "")
                )
            result[position] = axis
    return tuple(result)


_SHAPES: dict[int, tuple[Basic, Shape]] = {}
"""Shapes that are known, by the identity of nodes: comparing equal expressions that are not one
object takes as long as their trees are large."""
_MOST_SHAPES = 65536


def shape_of(expression: Expr) -> Shape:
    """Infer the shape of an expression; constants, scalars and dimensions are ``()``.

    Raises:
        DeclarationError: operands whose shapes do not agree, or an unknown node.
    """
    known = _SHAPES.get(id(expression))
    if known is not None:
        return known[1]
    if len(_SHAPES) > _MOST_SHAPES:
        _SHAPES.clear()
    pending = [expression]
    while pending:
        node = pending[-1]
        operands = node.operands if isinstance(node, Apply) else node.args
        missing = [operand for operand in operands if id(operand) not in _SHAPES]
        if missing:
            pending += missing
            continue
        shapes = [_SHAPES[id(operand)][1] for operand in operands]
        _SHAPES[id(node)] = node, _shape_of(node, shapes)
        pending.pop()
    return _SHAPES[id(expression)][1]


def _shape_of(node: Expr, shapes: Sequence[Shape]) -> Shape:
    """The shape of one node, from those of its operands."""
    if isinstance(node, Value):
        return node.shape
    if isinstance(node, Dim) or node.is_Number:
        return ()
    if isinstance(node, Apply):
        return OPERATORS[node.op].shape(shapes, node.attributes)
    if node.args:
        return broadcast(shapes)
    raise DeclarationError(
        f"{node} ({type(node).__name__}) has no shape; use values declared in this "
        f"cell, numbers and functions of cellgen",
        code="declaration.foreign",
    )


# --- what authors call ---------------------------------------------------------------------------


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
    """Join along the last axis: (B, I) and (B, H) give (B, I + H)."""
    if not operands:
        raise DeclarationError("concat() needs at least one operand", code="declaration.arity")
    if len(operands) == 1:
        return operands[0]
    axis = len(shape_of(sympify(operands[0]))) - 1
    if axis < 0:
        raise _mismatch("concat takes values with at least one axis, found a scalar")
    node = Apply("concat", operands, (Integer(axis),))
    shape_of(node)
    return node


@located
def part(a: Expr, axis: int, start: Expr, size: Expr) -> Apply:
    """Take ``size`` entries from ``start`` along one axis."""
    return Apply("part", (a,), (Integer(axis), sympify(start), sympify(size)))


@located
def split(a: Expr, parts: int | Sequence[Expr]) -> tuple[Apply, ...]:
    """Split the last axis into equal parts, or into parts of the given lengths.

    Raises:
        DeclarationError: the axis is no multiple of ``parts``, or the lengths do not add up.
    """
    a = sympify(a)
    shape = shape_of(a)
    if not shape:
        raise _mismatch("split takes a value with at least one axis, found a scalar")
    if len(shape) > 2:
        raise _mismatch(
            f"split of {format_shape(shape)}: the parts of heads lie apart; use a weight for each"
        )
    axis, total = len(shape) - 1, shape[-1]
    sizes = _split_sizes(total, parts)
    starts = [sympy.Add(*sizes[:index]) for index in range(len(sizes))]
    return tuple(part(a, axis, start, size) for start, size in zip(starts, sizes, strict=True))


def _split_sizes(total: Expr, parts: int | Sequence[Expr]) -> list[Expr]:
    if isinstance(parts, int):
        size = total / parts
        if parts < 1 or any(not c.is_Integer for c in size.as_coefficients_dict().values()):
            raise _mismatch(
                f"split of an axis of length {format_axis(total)} into {parts} equal parts"
            )
        return [size] * parts
    sizes = [sympify(size) for size in parts]
    if sympy.Add(*sizes) != total:
        listed = ", ".join(format_axis(size) for size in sizes)
        raise _mismatch(f"split of an axis of length {format_axis(total)} into ({listed})")
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
    return Apply("sum_to", (sympify(a),), shape)


@located
def units_mean(a: Expr, axis: object = None) -> Expr:
    """Mean over units (the last axis), or with ``axis=all`` over heads and units; as ``sum``."""
    before, after = shape_of(sympify(a)), _reduced_shape("mean", a, axis)
    count = sympy.Mul(*(n for n, kept in zip(before, after, strict=True) if n != kept))
    return Apply("sum_to", (sympify(a),), after) / count


@located
def softmax(a: Expr, axis: object = None) -> Expr:
    """Exponentials of the units as shares of their sum, with no overflow; axes as ``sum``."""
    powers = exp(sympify(a) - stop_gradient(units_max(a, axis)))
    return powers / units_sum(powers, axis)


@located
def logsumexp(a: Expr, axis: object = None) -> Expr:
    """Logarithm of the sum of the units' exponentials, with no overflow; axes as ``sum``."""
    most = stop_gradient(units_max(a, axis))
    return most + log(units_sum(exp(sympify(a) - most), axis))


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
    if others or isinstance(axis, Expr) or not isinstance(a, Expr):
        raise DeclarationError(
            "max of several expressions: max(a) is over the units of one; write maximum(a, b)",
            code="declaration.axis",
        )
    after = _reduced_shape("max", a, axis)
    chosen = Apply("first_max", (a,), (Integer(_reduced_axes(after)),))
    return Apply("sum_to", (where(chosen, a, 0),), after)


@located
def norm(a: Expr, axis: object = None) -> Expr:
    """Euclidean length over units (the last axis), or with ``axis=all`` over heads and units.

    As ``sqrt(sum(a * a))``, with the derivative 0 at 0, in every order: the length of a vector has
    no derivative there, and 0 is a subgradient.
    """
    a = sympify(a)
    squares = Apply("sum_to", (a * a,), _reduced_shape("norm", a, axis))
    return where(squares <= 0, 0, sqrt(squares))  # of NaN it is NaN


def _given(a: object, axis: object) -> tuple[Any, ...]:
    """The arguments of a call that was meant for Python's function of the same name."""
    return (a,) if axis is None else (a, axis)


def _reduced_shape(what: str, a: Expr, axis: object) -> Shape:
    shape = shape_of(sympify(a))
    if not shape:
        raise _mismatch(f"{what} over the units of a scalar")
    if axis not in (None, -1, all, "all"):
        raise DeclarationError(
            f"{what}(..., axis={axis!r}): leave axis out for the units of each head, or write "
            f"axis=all (the built-in) for heads and units",
            code="declaration.axis",
        )
    units = 2 if len(shape) == 3 and axis in (all, "all") else 1
    return (*shape[: len(shape) - units], *(Integer(1),) * units)


def _reduced_axes(after: Shape) -> int:
    return 2 if len(after) == 3 and after[1] == 1 else 1
