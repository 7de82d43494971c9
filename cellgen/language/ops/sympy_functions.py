"""SymPy's own functions, comparisons and constants, and conditions, in rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
from sympy import Basic, Expr, Integer, Rational, Tuple
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction

from cellgen.errors import DeclarationError
from cellgen.language.constants import exact_constant
from cellgen.language.graph import Graph
from cellgen.language.lines import located
from cellgen.language.ops.function import Pointwise
from cellgen.language.ops.pointwise import (
    POINTWISE,
    TAKING_INFINITY,
    absolute,
    atan2,
    choose,
    cos,
    erf,
    exp,
    expm1,
    floor,
    ge,
    gt,
    le,
    log,
    log1p,
    lt,
    maximum,
    minimum,
    power,
    sign,
    sin,
    tanh,
)
from cellgen.language.ops.table import shape_of
from cellgen.language.value import Apply, B, as_operand


def _truth(condition: Expr) -> Expr:
    """1 where a condition holds (is not zero), else 0; comparisons are that already."""
    is_truth = isinstance(condition, gt | ge | lt | le) or condition in (0, 1)
    return condition if is_truth else choose(condition, 1, 0)


def _both(first: Expr, second: Expr) -> Expr:
    return choose(first, _truth(second), 0)


def _either(first: Expr, second: Expr) -> Expr:
    return choose(first, 1, _truth(second))


def _not(condition: Expr) -> Expr:
    return choose(condition, 0, 1)


def _one_of(first: Expr, second: Expr) -> Expr:
    return choose(first, _not(second), _truth(second))


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
        result = value if value == result else choose(condition, value, result)
    return result


def _heaviside(x: Expr, at_zero: Expr) -> Expr:
    """0, ``at_zero`` or 1 by the sign; NaN stays."""
    step = (1 + sign(x)) / 2
    return step if at_zero == Rational(1, 2) else choose(_equal(x, Integer(0)), at_zero, step)


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
    sympy.ITE: lambda c, a, b: choose(c, _truth(a), _truth(b)),
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
    sympy.atan: lambda x: atan2(x, 1),
    sympy.atan2: atan2,
    sympy.asin: lambda x: atan2(x, sympy.sqrt(1 - x**2)),
    sympy.acos: lambda x: atan2(sympy.sqrt(1 - x**2), x),
    sympy.atanh: lambda x: (log1p(x) - log1p(-x)) / 2,
    sympy.erf: erf,
    sympy.Abs: absolute,
    sympy.sign: sign,
    sympy.floor: floor,
    sympy.Mod: lambda a, b: a - b * floor(a / b),
    sympy.Max: lambda *args: _fold(maximum, args),
    sympy.Min: lambda *args: _fold(minimum, args),
}
"""What people write with SymPy's functions, in rows of the table."""

_WHOLE = "it has no derivative; count outside and pass the number as an input"
_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("ceiling", "frac"), _WHOLE),
    **dict.fromkeys(
        ("re", "im", "conjugate", "arg"), "values are real; leave it out, or name both parts"
    ),
    "erfc": "write 1 - erf(x), which is 0 from x = 4 (float32) or 6 on",
    "asinh": "write sign(x) * log1p(a + a**2 / (1 + sqrt(1 + a**2))) with a = abs(x)",
    "acosh": "write log(x + sqrt(x**2 - 1))",
    **{name: f"write 1 / {of}" for name, of in (("sec", "cos(x)"), ("csc", "sin(x)"))},
    "cot": "write cos(x) / sin(x)",
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
    """Choose ``a`` where the condition holds (is true, or not zero), else ``b``.

    NaN in the branch not chosen does not show. The condition may be a comparison such as ``x > 0``.

    Raises:
        DeclarationError: a condition that is the same everywhere, as ``x == 0`` is: in Python it
            asks whether two expressions are the same one.
    """
    a, b, condition = as_operand(a), as_operand(b), as_operand(condition)
    if condition.is_Number or isinstance(condition, BooleanAtom):
        raise DeclarationError(
            f"where({condition}, ...): the condition is {condition} everywhere; expected one that "
            f"depends on values, such as x > 0 (== and != of expressions tell whether they are the "
            f"same expression: for x == 0 write where(abs(x) > 0, b, a))",
            code="declaration.where",
        )
    if a == b:
        return a
    return choose(_condition(condition), a, b)


def _condition(expression: Basic) -> Basic:
    """A condition in rows; what it compares is left to the equation, which is rewritten once."""
    if isinstance(expression, Relational):
        return _SYMPY[type(expression)](*expression.args)
    if isinstance(expression, BooleanFunction) and type(expression) in _SYMPY:
        return _SYMPY[type(expression)](*map(_condition, expression.args))
    return from_sympy(expression) if isinstance(expression, BooleanFunction) else expression


def from_sympy(expression: Expr) -> Expr:
    """Rewrite SymPy's own functions, comparisons and constants into rows of this table and numbers.

    Raises:
        DeclarationError: a function that the table does not have, a constant that is no real number
            or has no value in a kernel's precisions.
    """
    nodes: list[Any] = []
    constant: list[bool] = []
    for node, places in Graph(expression):
        is_constant = _is_constant(node, [constant[place] for place in places])
        constant.append(is_constant)
        if is_constant:  # evaluated where it is read, as a whole
            nodes.append(node)
            continue
        numbers = [nodes[place] for place in places if constant[place]]
        operands = [nodes[place] for place in places if not constant[place]]
        if isinstance(node, sympy.Add | sympy.Mul):
            joined = [exact_constant(node.func(*numbers))] if numbers else []
            nodes.append(node.func(*joined, *operands))
            continue
        accepted = sympy.S.Infinity if isinstance(node, TAKING_INFINITY) else None
        operands = [
            exact_constant(nodes[place])
            if constant[place] and abs(nodes[place]) != accepted
            else nodes[place]
            for place in places
        ]
        nodes.append(_row_of(node, operands))
    result: Expr = exact_constant(nodes[-1]) if constant[-1] else nodes[-1]
    return result


def _is_constant(node: Basic, of_operands: Sequence[bool]) -> bool:
    """Whether a node is a number, or an expression of SymPy's made of numbers alone."""
    if not isinstance(node, Expr) or isinstance(node, Pointwise | Apply):
        return False
    return all(of_operands) if of_operands else bool(node.is_number)


def _row_of(node: Basic, operands: Sequence[Any]) -> Basic:  # noqa: PLR0911 - one case a return
    """Write one node, whose operands are written already, with rows of the table."""
    kind = type(node)
    if isinstance(node, BooleanAtom):
        return Integer(bool(node))
    if isinstance(node, Apply):
        values = tuple(operands[1])
        shapes = [shape_of(value) for value in values]
        by_head = node.op == "matmul" and all(len(shape) == 3 for shape in shapes)
        by_head = by_head and B not in shapes[1]
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
