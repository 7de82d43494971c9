"""Spell a Program as a function of tensors, in Python that torch can follow and a person can read.

Input: a ``Program``. Output: ``function(arrays, sizes, narrow)`` of tensors by name, lengths of
axes by dimension, and whether products have operands in bfloat16; it returns its results by name.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from keyword import iskeyword
from typing import TypeAlias

import numpy as np
import torch
from sympy import Expr
from torch import Tensor

from cellgen.errors import DerivationError
from cellgen.language import ops
from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.notation import order_key
from cellgen.language.ops import Pointwise, shape_of
from cellgen.language.value import Apply, Dim, Shape, Value
from cellgen.program.chunks.programs import NO_FORM
from cellgen.program.identity import once_for_each
from cellgen.program.ssa import Program, Statement
from cellgen.torch.chunks.meanings import MEANINGS, Attribute
from cellgen.torch.chunks.pointwise import POINTWISE

Sizes: TypeAlias = Mapping[str, int]
Spelled: TypeAlias = Callable[[Mapping[str, Tensor], Sizes, bool], dict[str, Tensor]]

OWN = ("arrays", "sizes", "narrow", "torch")
"""Names of a function's own, beside those of the operators."""
_numbers: Iterator[int] = count()


def length(axis: Expr) -> str:
    """The length of an axis, in Python."""
    if isinstance(axis, Dim):
        return f"sizes[{axis.name!r}]"
    if axis.is_Integer:
        return str(int(axis))
    top, bottom = axis.as_numer_denom()
    if bottom != 1:
        return f"({length(top)} // {length(bottom)})"
    if axis.is_Pow:
        return f"{length(axis.base)} ** {length(axis.exp)}"
    sign = " + " if axis.is_Add else " * "
    return f"({sign.join(length(term) for term in axis.args)})"


class TorchText:
    """The text of a program as a function of tensors."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reserved = {*OWN, *MEANINGS, *POINTWISE}
        self.like = self.name(program.arguments[0]) if program.arguments else ""

    def name(self, value: Value) -> str:
        """The name of a value in Python."""
        name = str(value.name)
        return f"{name}_" if iskeyword(name) or name in self.reserved else name

    def source(self, function: str) -> str:
        """The text of the function."""
        program = self.program
        lines = [f"def {function}(arrays, sizes, narrow):"]
        lines += [f"    {self.name(v)} = arrays[{str(v)!r}]" for v in program.arguments]
        lines += [self._statement(statement) for statement in program.statements]
        results = ", ".join(f"{str(v)!r}: {self.name(v)}" for v in program.results)
        return "\n".join([*lines, f"    return {{{results}}}", ""])

    def _statement(self, statement: Statement) -> str:
        expression, target = statement.expression, statement.target
        if isinstance(expression, Apply):
            return f"    {self.name(target)} = {self._operator(expression)}"
        text, shape = self.pointwise(expression), _axes(target.shape)
        if not expression.atoms(Value):
            text = f"{self.like}.new_full({shape}, {text})"
        elif shape_of(expression) != target.shape:
            text = f"torch.broadcast_to({text}, {shape})"
        return f"    {self.name(target)} = {text}"

    def _operator(self, node: Apply) -> str:
        row = MEANINGS[node.op]
        of = [self.name(operand) for operand in node.operands]
        of += [_attribute(attribute) for attribute in row.taken(node.attributes)]
        return f"{node.op}({', '.join([*of, *(['narrow'] if row.is_product else [])])})"

    def pointwise(self, expression: Expr) -> str:
        """An expression that goes entry by entry."""
        if isinstance(expression, Value):
            return self.name(expression)
        if isinstance(expression, Dim):
            return f"float({length(expression)})"
        if expression.is_Number:
            return _number(nearest(expression, DOUBLE))
        if isinstance(expression, Pointwise):
            return self._function(expression)
        return self._power(expression) if expression.is_Pow else self._folded(expression)

    def _function(self, expression: Pointwise) -> str:
        if not expression.free_symbols:
            numbers = [nearest(argument, DOUBLE) for argument in expression.args]
            return _number(float(expression.row.numpy(*map(np.asarray, numbers))))
        name = expression.row.name
        if ops.POINTWISE.get(name) is not expression.func:
            raise DerivationError(
                f"{self.program.cell}: {name} is a function of one's own, whose values are known "
                f"in NumPy and in C alone; run the cell step by step, form='step'",
                code=NO_FORM,
            )
        return f"{name}({', '.join(map(self.pointwise, expression.args))})"

    def _folded(self, expression: Expr) -> str:
        """A sum or a product, in the order in which it is printed; minus is no factor."""
        terms = sorted(expression.args, key=order_key)
        if expression.is_Mul:
            return f"({'-' if _is_negated(expression) else ''}{self._product(terms)})"
        text = self.pointwise(terms[0])
        for term in terms[1:]:
            is_less = _is_negated(term)
            rest = f"({self._product(term.args)})" if is_less else self.pointwise(term)
            text += f" - {rest}" if is_less else f" + {rest}"
        return f"({text})"

    def _product(self, factors: Iterable[Expr]) -> str:
        """A product, but for its sign."""
        of = sorted((factor for factor in factors if factor != -1), key=order_key)
        return " * ".join(map(self.pointwise, of))

    def _power(self, power: Expr) -> str:
        base = self.pointwise(power.base)
        if not power.exp.is_Integer:
            return f"{base} ** {nearest(power.exp, DOUBLE)!r}"
        exponent = int(power.exp)
        whole = base if abs(exponent) == 1 else f"{base} ** {abs(exponent)}"
        return f"(1 / {whole})" if exponent < 0 else f"({whole})"


def _is_negated(expression: Expr) -> bool:
    return bool(expression.is_Mul) and -1 in expression.args


def _number(number: float) -> str:
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def _axes(shape: Shape) -> str:
    return f"({', '.join(length(axis) for axis in shape)}{',' * (len(shape) == 1)})"


def _attribute(attribute: Attribute) -> str:
    if isinstance(attribute, tuple):
        inner = ", ".join(_attribute(one) for one in attribute)
        return f"({inner}{',' * (len(attribute) == 1)})"
    return str(attribute) if isinstance(attribute, int) else length(attribute)


def source_of(program: Program) -> str:
    """The text of a program's function."""
    return TorchText(program).source(program.function)


def _compiled(text: str, name: str) -> Callable[..., object]:
    """A function of a text, whose lines tracebacks show."""
    place = f"<cellgen {name} {next(_numbers)}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)
    scope: dict[str, object] = {"torch": torch, **POINTWISE}
    scope |= {op: row.meaning for op, row in MEANINGS.items()}
    exec(compile(text, place, "exec"), scope)  # a text that was just written
    function = scope[name]
    assert callable(function)
    return function


@once_for_each
def spelled(program: Program) -> Spelled:
    """The function of a program, made once."""
    return _compiled(source_of(program), program.function)  # type: ignore[return-value]


def lengths_of(shapes: Sequence[Shape]) -> Callable[[Sizes], tuple[tuple[int, ...], ...]]:
    """A function that gives the lengths of axes of some shapes."""
    text = f"({''.join(_axes(shape) + ', ' for shape in shapes)})"
    return _compiled(f"def lengths(sizes):\n    return {text}\n", "lengths")  # type: ignore[return-value]
