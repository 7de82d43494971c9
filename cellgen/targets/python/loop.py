"""A cell as other libraries would run it: Python source of a loop over time, from its equations.

Input: a ``Definition`` and the lengths of its dimensions. Output: a ``LoopSource``, two functions
in source text over names that a library fills in: ``before`` (what waits for no state, for all
steps at once) and ``step``. Products that share their left side are one product of joined weights,
as one would write by hand. A function is spelled as in C (``cg_tanh``), so that an author's own
activation needs nothing; a stated derivative is written out with ``cg_stop``. Scalars are the
numbers that they are by default. Not supported: operators of adjoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import sympy
from sympy import Expr, Integer

from cellgen.errors import UsageError
from cellgen.language.cell import Definition
from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.names import Names
from cellgen.language.notation import ATOM, Notation, Text
from cellgen.language.ops import OPERATORS, Pointwise, PointwiseRow, shape_of
from cellgen.language.value import Apply, Dim, Role, Value
from cellgen.program.derive import forward
from cellgen.program.interpret import Sizes, axis_size
from cellgen.program.ssa import Program, Statement

ALONG = tuple(name for name, row in OPERATORS.items() if row.running and row.running.is_written)
"""Operators that go along an axis."""
LIBRARY = (
    *("cg_exp", "cg_expm1", "cg_log", "cg_log1p", "cg_tanh", "cg_sigmoid", "cg_softplus"),
    *(
        "cg_log_sigmoid",
        "cg_sqrt",
        "cg_erf",
        "cg_sin",
        "cg_cos",
        "cg_pow",
        "cg_abs",
        "cg_sign",
        "cg_floor",
        "cg_round",
        "cg_atan2",
        "cg_relu",
    ),
    *("cg_hard_sigmoid", "cg_maximum", "cg_minimum", "cg_clip", "cg_gt", "cg_ge", "cg_lt", "cg_le"),
    *("cg_where", "cg_stop", "cg_concat", "cg_sum", "cg_first_max"),
    *(f"cg_{name}" for name in ALONG),
    *("cg_into_heads", "cg_heads"),
)
"""What a library must give: the functions of the runtime header, ``cg_stop`` (the value without its
derivative), ``cg_concat(values, axis)``, ``cg_sum(value, axes)`` that keeps axes,
``cg_first_max(value, axes)`` (1 where the largest of the last axes stands),
``cg_cumsum(value, axis)`` and the others along an axis, ``cg_into_heads``
((..., I) by (I, K, D)) and ``cg_heads`` ((..., K, D) by (K, D, E))."""

Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class LoopSource:
    """Two functions in source text, and the names of what goes in and out.

    ``before(*arguments)`` returns values over time, named ``each``, and then ``fixed`` ones;
    ``step(*each, *states, *fixed)`` takes the former at one step and returns ``outputs`` and then
    ``following``, the new states.
    """

    source: str
    arguments: tuple[str, ...]
    each: tuple[str, ...]
    fixed: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    following: tuple[str, ...]

    def functions(self, library: Functions) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Run the source with a library's functions: ``before`` and ``step``.

        Raises:
            UsageError: the library lacks functions.
        """
        absent = [name for name in LIBRARY if name not in library]
        if absent:
            raise UsageError(f"the library has no {', '.join(absent)}")
        names: dict[str, Any] = dict(library)
        exec(compile(self.source, "<loop>", "exec"), names)
        return names["before"], names["step"]


def loop_of(definition: Definition, sizes: Sizes, outputs: Iterable[str] = ()) -> LoopSource:
    """Write the loop of a cell that returns some of its outputs, all where none is named."""
    chosen = tuple(outputs)
    wanted = [v for v in definition.outputs if not chosen or str(v.name) in chosen]
    states = definition.states
    following = [definition.next_state(state) for state in states]
    program = forward(definition.with_outputs(tuple(dict.fromkeys((*wanted, *following)))))
    program = _merged(_with_defaults(program, definition.defaults))
    program = _summed_ahead(program, states)
    after = _after(program.statements, states)
    ahead = [s for s in program.statements if s.target not in after]
    stepped = [s for s in program.statements if s.target in after]
    read = [v for s in stepped for v in s.operands] + wanted + following
    arguments = tuple(v for v in dict.fromkeys(read) if v not in after and v not in states)
    over_time = _after(ahead, definition.with_role(Role.INPUT))
    each = tuple(v for v in arguments if v in over_time)
    fixed = tuple(v for v in arguments if v not in over_time)
    arguments = tuple(v for v in program.arguments if v not in states)
    spelled = PythonNotation(sizes)
    return LoopSource(
        source=spelled.function("before", arguments, ahead, (*each, *fixed))
        + spelled.function("step", (*each, *states, *fixed), stepped, (*wanted, *following)),
        arguments=_names(arguments),
        each=_names(each),
        fixed=_names(fixed),
        states=_names(states),
        outputs=_names(wanted),
        following=_names(following),
    )


def _names(values: Iterable[Value]) -> tuple[str, ...]:
    return tuple(str(value.name) for value in values)


def _after(statements: Iterable[Statement], sources: Iterable[Value]) -> set[Value]:
    """The sources and everything that is made from them."""
    values = set(sources)
    for statement in statements:
        if not values.isdisjoint(statement.operands):
            values.add(statement.target)
    return values


def _with_defaults(program: Program, defaults: Mapping[str, float]) -> Program:
    """Put numbers for scalars, and fold what follows from numbers alone."""
    scalars = {v: sympy.Float(defaults[str(v.name)]) for v in program.arguments if not v.shape}
    statements = [
        s if not s.is_pointwise else replace(s, expression=_folded(s.expression.xreplace(scalars)))
        for s in program.statements
    ]
    arguments = tuple(v for v in program.arguments if v not in scalars)
    return replace(program, arguments=arguments, statements=tuple(statements))


def _folded(expression: Expr) -> Expr:
    if not expression.args or isinstance(expression, Value):
        return expression
    args = [_folded(argument) for argument in expression.args]
    if isinstance(expression, Pointwise):
        if expression.row.is_choice and args[0].is_Number:
            return args[1] if args[0] != 0 else args[2]
        if all(argument.is_Number for argument in args):
            return sympy.Float(float(expression.row.numpy(*map(float, args))))
    return expression.func(*args)


def _merged(program: Program) -> Program:
    """Join the weights of products that share their left side: ``x @ [w_z, w_r, w_n]``."""
    names = Names(str(value.name) for value in program.values)
    groups: dict[Value, list[Statement]] = {}
    for statement in program.statements:
        if _is_plain_product(statement, program.arguments):
            groups.setdefault(statement.operands[0], []).append(statement)
    statements: list[Statement] = []
    for statement in program.statements:
        group = groups.get(statement.operands[0], []) if statement.operands else []
        if len(group) < 2 or statement not in group:
            statements.append(statement)
        elif statement is group[0]:
            statements += _joined(group, names)
    return program.with_statements(statements)


def _is_plain_product(statement: Statement, arguments: Sequence[Value]) -> bool:
    """A product with a matrix that the caller gives, so that joining can be done beforehand."""
    weight = statement.operands[-1] if statement.traits.is_matmul else None
    return weight is not None and weight in arguments and len(weight.shape) == 2


def _joined(group: Sequence[Statement], names: Names) -> list[Statement]:
    left = group[0].operands[0]

    def statement(name: str, expression: Expr) -> Statement:
        target = group[0].target
        value = Value(
            names.fresh(name), shape_of(expression), Role.TEMPORARY, target.owner, target.order
        )
        return Statement(value, expression)

    weights = statement("weights", Apply("concat", [s.operands[1] for s in group], (Integer(1),)))
    product = statement("products", Apply("matmul", (left, weights.target)))
    statements, start = [weights, product], Integer(0)
    for member in group:
        size = member.target.shape[1]
        attributes = (Integer(1), start, size)
        statements.append(replace(member, expression=Apply("part", (product.target,), attributes)))
        start = start + size
    return statements


def _summed_ahead(program: Program, states: Sequence[Value]) -> Program:
    """Add up beforehand what a sum in the step adds of values that are there: ``x @ w + b``."""
    after = _after(program.statements, states)
    names = Names(str(value.name) for value in program.values)
    statements: list[Statement] = []
    for statement in program.statements:
        terms = statement.expression.args if statement.expression.is_Add else ()
        ahead = [t for t in terms if t.atoms(Value) and after.isdisjoint(t.atoms(Value))]
        if statement.target not in after or len(ahead) < 2:
            statements.append(statement)
            continue
        known, target = sympy.Add(*ahead), statement.target
        name = names.fresh(f"{target.name}_ahead")
        value = Value(name, shape_of(known), Role.TEMPORARY, target.owner, target.order)
        rest = sympy.Add(value, *(t for t in terms if t not in ahead))
        statements += [Statement(value, known), replace(statement, expression=rest)]
    return program.with_statements(statements)


# --- spelling ------------------------------------------------------------------------------------


class PythonNotation(Notation):
    """Python over ``cg_`` functions, for lengths that are known."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def function(
        self,
        name: str,
        arguments: Iterable[Value],
        statements: Iterable[Statement],
        results: Iterable[Value],
    ) -> str:
        """Write one function."""
        lines = [f"def {name}({', '.join(_names(arguments))}):"]
        lines += [f"    {s.target.name} = {self(s.expression)}" for s in statements]
        lines.append(f"    return ({''.join(f'{result}, ' for result in _names(results))})")
        return "\n".join(lines) + "\n"

    def is_plain(self, integer: Expr) -> bool:
        """Libraries hold integers in 64 bits."""
        return bool(abs(int(integer)) < 2**53)

    def real(self, number: Expr) -> str:
        """Spell a number."""
        value = nearest(number, DOUBLE)
        return repr(value) if isfinite(value) else f"float('{value}')"

    def dim(self, dim: Dim) -> str:
        """Spell a dimension: its length."""
        return repr(float(self.sizes[str(dim.name)]))

    def call(self, row: PointwiseRow, arguments: Sequence[Text]) -> Text:
        """Spell a pointwise function as in C."""
        return Text(f"({row.c.format(*(f'({a.text})' for a in arguments))})", ATOM)

    def root(self, base: Text) -> Text:
        """Spell a square root."""
        return Text(f"cg_sqrt({base.text})", ATOM)

    def general_power(self, base: Text, exponent: Text) -> Text:
        """Spell a power that is not a whole number."""
        return Text(f"cg_pow({base.text}, {exponent.text})", ATOM)

    def _print(self, expression: Expr) -> Text:
        if isinstance(expression, Pointwise) and expression.row.stated:
            return self._stated(expression)
        return super()._print(expression)

    def _stated(self, node: Pointwise) -> Text:
        """The value as it is, and a term that is zero whose derivative is the stated one."""
        spelled = self.call(node.row, [self._print(argument) for argument in node.args])
        terms = [f"cg_stop{spelled.text}"]
        for index, argument in enumerate(node.args):
            slope = node.fdiff(index + 1)
            if slope != 0 and not argument.is_Number:
                x = self._print(argument).text
                factor = "" if slope == 1 else f"cg_stop({self._print(slope).text}) * "
                terms.append(f"{factor}(({x}) - cg_stop({x}))")
        return Text(f"({' + '.join(terms)})", ATOM)

    def operator(self, node: Apply) -> Text:
        """Spell an operator of its operands."""
        spelled = _OPERATORS.get(node.op)
        if spelled is None:
            raise UsageError(f"no loop is written for the operator {node.op}")
        operands = [self._print(operand).text for operand in node.operands]
        return Text(f"({spelled(self, node, operands)})", ATOM)

    def _matmul(self, node: Apply, operands: Sequence[str]) -> str:
        into_heads = len(shape_of(node.operands[1])) == 3
        a, w = operands
        return f"cg_into_heads({a}, {w})" if into_heads else f"{a} @ {w}"

    def _concat(self, node: Apply, operands: Sequence[str]) -> str:
        axis = int(node.attributes[0]) - len(shape_of(node))
        return f"cg_concat(({', '.join(operands)}), {axis})"

    def _part(self, node: Apply, operands: Sequence[str]) -> str:
        """Axes count from the last: values over time have one more in front."""
        axis, start, size = (axis_size(attribute, self.sizes) for attribute in node.attributes)
        behind = ", :" * (len(shape_of(node)) - 1 - axis)
        return f"{operands[0]}[..., {start}:{start + size}{behind}]"

    def _reduced(self, node: Apply, operands: Sequence[str]) -> str:
        before, after = shape_of(node.operands[0]), shape_of(node)
        if len(before) != len(after):
            raise UsageError("no loop is written for a sum that drops axes")
        axes = [k - len(after) for k, n in enumerate(after) if n != before[k]]
        return f"cg_sum({operands[0]}, {tuple(axes)})"

    def _first_max(self, node: Apply, operands: Sequence[str]) -> str:
        """Along one axis that is not the last: of the two swapped."""
        count, *after = map(int, node.attributes)
        if not any(after):
            return f"cg_first_max({operands[0]}, {count})"
        swapped = f".swapaxes(-1, {-1 - after[0]})"
        return f"cg_first_max({operands[0]}{swapped}, {count}){swapped}"

    def _along(self, node: Apply, operands: Sequence[str]) -> str:
        return f"cg_{node.op}({operands[0]}, {-1 - sum(map(int, node.attributes))})"

    def _reshape(self, node: Apply, operands: Sequence[str]) -> str:
        """Axes of a row; what stands before them stays."""
        (a,), before = operands, len(shape_of(node.operands[0])) - 1
        axes = ", ".join(str(axis_size(axis, self.sizes)) for axis in node.attributes[1:])
        return f"{a}.reshape(*{a}.shape[:-{before}], {axes})"

    def _transpose(self, node: Apply, operands: Sequence[str]) -> str:
        return f"{operands[0]}.swapaxes(-1, -2)"


_OPERATORS: Mapping[str, Callable[[PythonNotation, Apply, Sequence[str]], str]] = {
    "matmul": PythonNotation._matmul,
    "matmul_heads": lambda notation, node, operands: f"cg_heads({', '.join(operands)})",
    "transpose": PythonNotation._transpose,
    "reshape": PythonNotation._reshape,
    "concat": PythonNotation._concat,
    "part": PythonNotation._part,
    "sum_to": PythonNotation._reduced,
    "first_max": PythonNotation._first_max,
    **dict.fromkeys(ALONG, PythonNotation._along),
}
