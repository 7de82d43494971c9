"""Derive the forward program of a definition: one operator or one pointwise expression a statement.

Input: a ``Definition``. Output: a ``Program`` whose results are the outputs of the step.
"""

from __future__ import annotations

from sympy import Expr

from cellgen.language.cell import ORDER_STEP, Definition
from cellgen.language.names import Names
from cellgen.language.notation import order_key
from cellgen.language.ops import (
    Pointwise,
    operator_of,
    product_of_rows,
    shape_of,
)
from cellgen.language.value import Apply, Role, Value
from cellgen.program.ssa import Program, Statement


def forward(definition: Definition) -> Program:
    """Flatten a definition into single-assignment form.

    Every operator, every transcendental call inside a larger expression and every compound argument
    of one becomes a statement of its own, named after its operands.
    """
    flat = _Flattener(definition)
    for equation in definition.equations:
        flat.add(equation.target, equation.expression)
    arguments = tuple(v for v in definition.declared if v in flat.used)
    program = Program(
        definition.name, "forward", arguments, tuple(flat.statements), definition.outputs
    )
    program.verify()
    return program


class _Flattener:
    def __init__(self, definition: Definition) -> None:
        declared = [str(value.name) for value in definition.declared]
        targets = [str(equation.target.name) for equation in definition.equations]
        self.names = Names([*declared, *targets])
        self.statements: list[Statement] = []
        self.used: set[Value] = set()
        self._known: dict[Expr, Value] = {}
        self._owner = definition.origin
        self._order = (len(declared) + len(targets)) * ORDER_STEP

    def add(self, target: Value, expression: Expr) -> None:
        if isinstance(expression, Apply):
            flat: Expr = self._operator(expression)
        elif isinstance(expression, Pointwise) and expression.row.transcendental:
            flat = self._call(expression, f"{target.name}_pre")
        else:
            flat = self._pointwise(expression)
        self._emit(target, flat)

    def _emit(self, target: Value, expression: Expr) -> None:
        statement = Statement(target, expression)
        self.statements.append(statement)
        self.used.update(statement.operands)
        self._known.setdefault(expression, target)

    def _value(self, expression: Expr, name: str) -> Value:
        """Give a flat expression a name, or find the value that has it already."""
        if isinstance(expression, Value):
            return expression
        if expression not in self._known:
            self._order += 1
            target = Value(
                self.names.fresh(name),
                shape_of(expression),
                Role.TEMPORARY,
                self._owner,
                self._order,
            )
            self._emit(target, expression)
        return self._known[expression]

    def _operator(self, node: Apply) -> Apply:
        parts = product_of_rows(node)
        if parts is not None:
            return self._operator(parts)
        operands = []
        for operand in node.operands:
            flat = operand
            if isinstance(operand, Apply):
                flat = self._operator(operand)
            elif not isinstance(operand, Value):
                flat = self._pointwise(operand)
            operands.append(self._value(flat, _name_of(flat)))
        return Apply(node.op, operands, node.attributes)

    def _call(self, node: Pointwise, name: str) -> Expr:
        arguments = []
        for argument in node.args:
            flat = self._pointwise(argument)
            is_atom = isinstance(flat, Value) or flat.is_Number
            arguments.append(flat if is_atom else self._value(flat, name))
        return node.func(*arguments)

    def _pointwise(self, expression: Expr) -> Expr:
        if isinstance(expression, Value) or not expression.args:
            return expression
        if isinstance(expression, Apply):
            flat: Expr = self._operator(expression)
            return self._value(flat, _name_of(flat))
        if isinstance(expression, Pointwise) and expression.row.transcendental:
            flat = self._call(expression, f"{expression.row.name}_pre")
            return self._value(flat, _name_of(flat))
        # In printed order, so that products are formed in the order in which they are read.
        flat_args = {a: self._pointwise(a) for a in sorted(expression.args, key=order_key)}
        return expression.func(*(flat_args[argument] for argument in expression.args))


def _name_of(expression: Expr) -> str:
    """Name an anonymous intermediate after its operands."""
    if isinstance(expression, Apply):
        operands = [str(operand.name) for operand in expression.operands]
        row = operator_of(expression)
        if row.is_part:
            _, start, size = expression.attributes
            index = start / size
            suffix = (
                str(index) if index.is_Integer else str(start).replace("*", "").replace(" ", "")
            )
            suffix = "".join(c if c.isalnum() else "_" for c in suffix)
            return f"{operands[0]}_{suffix}"
        if row.stem:
            return f"{row.stem}_{operands[0]}"
        return "_".join(operands)
    values = sorted(expression.atoms(Value), key=lambda value: (value.order, str(value)))
    words = [str(value.name) for value in values]
    if isinstance(expression, Pointwise):
        words.insert(0, expression.row.name)
    return "_".join(words) or "constant"
