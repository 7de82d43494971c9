"""What recurrent dropout drops: a named value, or an expression within equations."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer

from cellgen import accept
from cellgen.language.cell import (
    Definition,
    Equation,
)
from cellgen.language.notation import text
from cellgen.language.ops import from_sympy, shape_of
from cellgen.language.value import B, Shape, Value
from cellgen.program.transforms.arguments import fault


@dataclass(frozen=True)
class _Candidate:
    """What recurrent dropout drops: a named value, or an expression within equations.

    ``expression`` is what readers read, ``formed`` how it is formed.
    """

    name: str
    expression: Expr
    formed: Expr
    shape: Shape

    @property
    def is_named(self) -> bool:
        return isinstance(self.expression, Value)


def candidate_of(definition: Definition, value: str | Expr) -> _Candidate:
    """Find what is to be dropped: a value by its name, or an expression of the equations."""
    is_own = isinstance(value, Expr) and all(isinstance(s, Value) for s in value.free_symbols)
    if not isinstance(value, str) and not is_own:
        raise fault(
            definition,
            "recurrent_dropout",
            f"{accept.quoted(value)} is no candidate, expected its name, or an expression of the "
            f"cell's values",
        )
    if not isinstance(value, str | Value):
        return _expression_candidate(definition, value)
    name = str(value)
    equation = _equation_of(definition, "recurrent_dropout", name)
    if f"{name}_prev" in {str(state.name) for state in definition.states}:
        raise fault(
            definition,
            "recurrent_dropout",
            f"{name} is a new state, and dropping it would forget it; name the candidate that "
            f"updates it, or use zoneout",
        )
    return _Candidate(name, equation.target, equation.expression, equation.target.shape)


def _expression_candidate(definition: Definition, value: Expr) -> _Candidate:
    expression = from_sympy(value)
    for equation in definition.equations:
        stands = expression in equation.expression.atoms(type(expression))
        if stands and B in shape_of(expression):
            name = f"{equation.target.name}_candidate"
            return _Candidate(name, expression, expression, shape_of(expression))
    raise fault(
        definition,
        "recurrent_dropout",
        f"`{text(expression)}` stands in no equation; write it as the cell does, of the cell's own "
        f"values ({definition.class_name}.{definition.states[0]}, ...)",
    )


def refuse_forgetting(definition: Definition, dropped: set[Expr]) -> None:
    """Raise where a new state reads the past through what is dropped, and nowhere else."""
    swap = dict.fromkeys(dropped, Integer(0))
    reaching: set[Value] = set(definition.states)
    before: set[Value] = set(definition.states)
    for equation in definition.equations:
        if equation.expression.atoms(Value) & before:
            before.add(equation.target)
        if equation.target not in dropped and (
            equation.expression.xreplace(swap).atoms(Value) & reaching
        ):
            reaching.add(equation.target)
    for state in definition.states:
        following = definition.next_state(state)
        if following in before - reaching:
            listed = ", ".join(sorted(text(expression) for expression in dropped))
            raise fault(
                definition,
                "recurrent_dropout",
                f"{following} reads the past through {listed} alone, and dropping that would "
                f"forget it; use zoneout or variational_dropout",
            )


def _equation_of(definition: Definition, function: str, name: str) -> Equation:
    for equation in definition.equations:
        if equation.target.name == name and equation.target.is_batched:
            return equation
    listed = ", ".join(str(e.target.name) for e in definition.equations if e.target.is_batched)
    raise fault(definition, function, f"it computes no {name}; it computes {listed}")
