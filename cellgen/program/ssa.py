"""The single-assignment form: statements over named values, each pointwise or one operator.

Forward, backward and tangent programs are all Programs, so ``derive`` and ``simplify`` compose.
``print(program)`` is the mathematics; ``verify`` holds after every stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from sympy import Expr

from cellgen.errors import CellgenError, DerivationError
from cellgen.language.notation import text
from cellgen.language.ops import Traits, broadcast, operator_of, shape_of
from cellgen.language.value import Apply, Shape, Value, format_shape
from cellgen.runtime.notebook import ShownInNotebooks


@dataclass(frozen=True)
class Statement:
    """``target = expression``; the expression is pointwise, or exactly one operator on values."""

    target: Value
    expression: Expr

    @property
    def is_pointwise(self) -> bool:
        """Whether it goes entry by entry."""
        return not isinstance(self.expression, Apply)

    @property
    def traits(self) -> Traits:
        """What is particular to the operator; nothing is to pointwise work."""
        is_operator = isinstance(self.expression, Apply)
        return operator_of(self.expression) if is_operator else _POINTWISE_WORK

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """Values read, in order of operands (operator) or of declaration (pointwise)."""
        if isinstance(self.expression, Apply):
            return self.expression.operands
        return _values_of(self.expression)

    @cached_property
    def fault(self) -> str:
        """What is wrong with it by itself, whatever program it stands in; empty where nothing is.

        It is one operator, or none, and the shape of its expression fits the target's.
        """
        expression, target = self.expression, self.target
        if not isinstance(expression, Apply) and expression.atoms(Apply):
            return "a pointwise expression contains an operator"
        try:
            shape = shape_of(expression)
            fits = (
                shape == target.shape
                if isinstance(expression, Apply)
                else _is_broadcast(shape, target.shape)
            )
        except CellgenError as error:
            return str(error)
        if fits:
            return ""
        return f"{target} is {format_shape(target.shape)}, its expression {format_shape(shape)}"

    def __str__(self) -> str:
        return f"{self.target} = {text(self.expression)}"


_POINTWISE_WORK = Traits()


@lru_cache(maxsize=65536)
def _values_of(expression: Expr) -> tuple[Value, ...]:
    return tuple(sorted(expression.atoms(Value), key=lambda v: (v.order, str(v))))


@dataclass(frozen=True)
class Program(ShownInNotebooks):
    """A function in single-assignment form.

    ``optional`` arguments are upstream gradients that count as zero when they are left out.
    """

    cell: str
    function: str
    arguments: tuple[Value, ...]
    statements: tuple[Statement, ...]
    results: tuple[Value, ...]
    optional: tuple[Value, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        """Arguments, then what is computed."""
        return (*self.arguments, *(statement.target for statement in self.statements))

    def definition_of(self, value: Value) -> Statement | None:
        """The statement that computes a value, or None."""
        return self.definitions.get(value)

    @property
    def definitions(self) -> Mapping[Value, Statement]:
        """Statements by what they compute."""
        return {statement.target: statement for statement in self.statements}

    @property
    def uses(self) -> Mapping[Value, tuple[Statement, ...]]:
        """Statements that read each value."""
        readers: dict[Value, list[Statement]] = {value: [] for value in self.values}
        for statement in self.statements:
            for operand in dict.fromkeys(statement.operands):
                readers.setdefault(operand, []).append(statement)
        return {value: tuple(statements) for value, statements in readers.items()}

    def with_statements(self, statements: Iterable[Statement]) -> Program:
        """Return the same program of other statements."""
        return replace(self, statements=tuple(statements))

    def taken_from(self, whole: Program) -> Program:
        """Return this function, computed as a larger program of the same values computes it."""
        restricted = whole.restrict(self.function, self.results, self.arguments)
        return self.with_statements(restricted.statements)

    def restrict(self, function: str, results: Iterable[Value], known: Iterable[Value]) -> Program:
        """Return the part that computes ``results`` when the ``known`` values are arguments."""
        results = tuple(results)
        available = set(known)
        needed: set[Value] = set(results)
        kept = []
        for statement in reversed(self.statements):
            target = statement.target
            if target in needed and (target not in available or target in results):
                kept.append(statement)
                needed.update(statement.operands)
        computed = {statement.target for statement in kept}
        arguments = [v for v in self.values if v in needed and v not in computed]
        program = Program(
            self.cell,
            function,
            tuple(arguments),
            tuple(reversed(kept)),
            results,
            tuple(value for value in self.optional if value in arguments),
        )
        program.verify()
        return program

    def verify(self) -> None:
        """Check single assignment, definition before use, shapes, one operator per statement.

        Raises:
            DerivationError: naming the program and the statement.
        """
        known: dict[str, Value] = {}
        for value in self.arguments:
            self._define(value, known, None)
        for statement in self.statements:
            for operand in statement.operands:
                if not isinstance(operand, Value):
                    raise self._fault("an operator takes named values only", statement)
                if known.get(str(operand.name)) != operand:
                    raise self._fault(f"{operand} is used before it is defined", statement)
            if statement.fault:
                raise self._fault(statement.fault, statement)
            self._define(statement.target, known, statement)
        for result in self.results:
            if known.get(str(result.name)) != result:
                raise self._fault(f"result {result} is not computed", None)

    def _define(self, value: Value, known: dict[str, Value], statement: Statement | None) -> None:
        if str(value.name) in known:
            raise self._fault(f"{value} is assigned twice", statement)
        known[str(value.name)] = value

    def _fault(self, what: str, statement: Statement | None) -> DerivationError:
        where = f" in `{statement}`" if statement else ""
        return DerivationError(
            f"{self.cell}.{self.function}: {what}{where}; this is a fault of cellgen, not of the "
            f"cell: please report it with the declaration",
            code="derivation.verify",
        )

    def __str__(self) -> str:
        def listed(values: Iterable[Value]) -> str:
            return ", ".join(f"{value} {format_shape(value.shape)}" for value in values)

        lines = [f"{self.cell}.{self.function}({listed(self.arguments)})"]
        lines += [
            f"    {statement}    {format_shape(statement.target.shape)}"
            for statement in self.statements
        ]
        lines.append(f"    return {', '.join(str(result) for result in self.results)}")
        return "\n".join(lines)


def _is_broadcast(shape: Shape, target: Shape) -> bool:
    return broadcast((shape, target)) == target


def digest(programs: Iterable[Program]) -> str:
    """Return 12 hexadecimal digits that identify the mathematics of some programs."""
    canonical = "\n".join(str(program) for program in programs)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
