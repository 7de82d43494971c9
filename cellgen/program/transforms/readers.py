"""Which equations read a value, and how: in products, unit by unit, as a function of weights."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr, Mul

from cellgen.language.cell import (
    Definition,
)
from cellgen.language.ops import operator_of
from cellgen.language.value import Apply, Role, Value


def _operand(expression: Expr) -> bool:
    return isinstance(expression, Apply) and operator_of(expression).is_product


def in_products(expression: Expr, swap: Mapping[Value, Expr]) -> Expr:
    """Swap values inside the first operands of products, and nowhere else."""
    if not expression.args or isinstance(expression, Value):
        return expression
    if _operand(expression):
        first, *others = expression.operands
        rest = [in_products(other, swap) for other in others]
        return Apply(expression.op, (first.xreplace(dict(swap)), *rest), expression.attributes)
    return expression.func(*(in_products(argument, swap) for argument in expression.args))


def _reads(expression: Expr, inside: bool) -> set[Value]:
    """Values read inside the first operands of products, or those read elsewhere."""
    if isinstance(expression, Value):
        return set() if inside else {expression}
    if _operand(expression):
        first, *others = expression.operands
        rest = [_reads(other, inside) for other in others]
        return set().union(first.atoms(Value) if inside else set(), *rest)
    return set().union(*(_reads(argument, inside) for argument in expression.args))


def only_in_products(definition: Definition) -> set[Value]:
    """Named values that nothing but products reads."""
    new_states = {definition.next_state(state) for state in definition.states}
    candidates = {e.target for e in definition.equations} - new_states - set(definition.outputs)
    while True:
        others = [e for e in definition.equations if e.target not in candidates]
        elsewhere = set().union(*(_reads(e.expression, inside=False) for e in others))
        if not candidates & elsewhere:
            return candidates
        candidates -= elsewhere


def read_by_products(definition: Definition, carriers: set[Value]) -> set[Value]:
    """Values that products read, on their own or inside a carrier."""
    read: set[Value] = set()
    for equation in definition.equations:
        whole = equation.target in carriers
        expression = equation.expression
        read |= expression.atoms(Value) if whole else _reads(expression, inside=True)
    return read


def values_of_weights(definition: Definition) -> list[Value]:
    """Weights, and named values that are formed from weights (and scalars) alone."""
    of_weights = list(definition.parameters)
    scalars = set(definition.with_role(Role.SCALAR))
    for equation in definition.equations:
        read = equation.expression.atoms(Value)
        if read & set(of_weights) and read <= scalars | set(of_weights):
            of_weights.append(equation.target)
    return of_weights


def recurrent_weights(definition: Definition) -> list[Value]:
    """What multiplies a state: in products, or where there is none, unit by unit."""
    states, carriers = set(definition.states), only_in_products(definition)
    carrying = {
        e.target
        for e in definition.equations
        if e.target in carriers and states & e.expression.atoms(Value)
    }
    of_weights = set(values_of_weights(definition))
    multiplied: set[Value] = set()
    for equation in definition.equations:
        for node in equation.expression.atoms(Apply):
            if _operand(node) and node.operands[0].atoms(Value) & (states | carrying):
                multiplied |= node.operands[1].atoms(Value) & of_weights
    if not multiplied:
        for equation in definition.equations:
            for node in equation.expression.atoms(Mul):
                if states & set(node.args):
                    multiplied |= of_weights & set(node.args)
    origins = {origin for value in multiplied for origin in _origins(definition, value)}
    return [value for value in values_of_weights(definition) if value in origins]


def _origins(definition: Definition, value: Value) -> set[Value]:
    """The learned weights that a value is a linear function of, else the value itself."""
    expressions = [e.expression for e in definition.equations if e.target == value]
    if not expressions:
        return {value}
    constant = {*definition.fixed, *definition.with_role(Role.SCALAR)}
    if not _is_linear(expressions[0], constant):
        return {value}
    inner = expressions[0].atoms(Value) - constant
    return set().union(*(_origins(definition, origin) for origin in inner))


def _is_linear(expression: Expr, constant: set[Value]) -> bool:
    """Whether an expression of weights is linear in those that are not constant."""
    moving = [a for a in expression.args if (a.atoms(Value) - constant)]
    if isinstance(expression, Value):
        return True
    if isinstance(expression, Apply):
        operands = expression.operands
        is_linear = operator_of(expression).is_linear
        return is_linear and all(_is_linear(operand, constant) for operand in operands)
    if expression.is_Mul:
        return len(moving) == 1 and _is_linear(moving[0], constant)
    return bool(expression.is_Add) and all(_is_linear(argument, constant) for argument in moving)
