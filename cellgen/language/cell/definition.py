"""A cell as data: its values, its equations in the order of their computation, its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sympy import Expr

from cellgen.language.lines import SourceLine
from cellgen.language.notation import text
from cellgen.language.value import B, Dim, Role, Value, format_shape

ORDER_STEP = 1000
"""Between the orders of two declarations, so that derived values print beside their origin."""


@dataclass(frozen=True)
class Equation:
    """``target = expression``, and where it was written."""

    target: Value
    expression: Expr
    line: SourceLine

    def __str__(self) -> str:
        return f"{self.target} = {text(self.expression)}"


@dataclass(frozen=True)
class Definition:
    """A cell as data: what the class body said, checked.

    ``outputs`` is what ``forward`` returns (the author's list, if ``states_outputs``, or every new
    state); ``gradients`` what ``backward`` returns, or None where the author left the choice to
    ``derive``; ``fixed`` are values declared without gradient, ``initials`` where states start that
    do not start from 0, ``directions`` those of a tangent by what moves. ``is_partial`` marks what
    ``replaced`` makes: a parent, not yet a cell.
    """

    name: str
    class_name: str
    origin: str
    doc: str
    declared: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Value, ...]
    gradients: tuple[Value, ...] | None
    defaults: Mapping[str, float]
    lines: Mapping[str, SourceLine]
    aliases: Mapping[str, str]
    states_outputs: bool = False
    is_partial: bool = False
    fixed: tuple[Value, ...] = ()
    initials: Mapping[str, float] = field(default_factory=dict)
    directions: Mapping[str, str] = field(default_factory=dict)

    def with_role(self, *roles: Role) -> tuple[Value, ...]:
        """Values of some roles, in order of declaration."""
        return tuple(value for value in self.declared if value.role in roles)

    def learning(self, *roles: Role) -> tuple[Value, ...]:
        """Values of some roles whose gradients are formed."""
        return tuple(value for value in self.with_role(*roles) if value not in self.fixed)

    @property
    def requested(self) -> tuple[Value, ...]:
        """Statics and scalars whose gradients were asked for.

        They were asked for where they were declared, or in ``gradients``.
        """
        constant = self.with_role(Role.STATIC, Role.SCALAR)
        return tuple(v for v in constant if v not in self.fixed or v in (self.gradients or ()))

    @property
    def states(self) -> tuple[Value, ...]:
        """The states, as they are before a step."""
        return self.with_role(Role.STATE)

    def initial_of(self, state: Value) -> float:
        """Where a state starts."""
        return self.initials.get(str(state.name), 0.0)

    @property
    def parameters(self) -> tuple[Value, ...]:
        """Weights and biases."""
        return self.with_role(Role.WEIGHT, Role.BIAS)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Run-time dimensions in order of first appearance, B first."""
        dims: dict[Dim, None] = {B: None}
        for value in (*self.declared, *(equation.target for equation in self.equations)):
            for axis in value.shape:
                for dim in sorted(axis.free_symbols, key=str):
                    dims.setdefault(dim, None)
        return tuple(dims)

    def with_outputs(self, outputs: tuple[Value, ...]) -> Definition:
        """Return the same cell with other outputs."""
        return replace(self, outputs=outputs)

    def next_state(self, state: Value) -> Value:
        """The value that a state takes after the step: ``h`` for ``h_prev``."""
        name = next_name(state)
        return next(e.target for e in self.equations if e.target.name == name)

    def __str__(self) -> str:
        lines = [f"{self.class_name} ({self.name})"]
        lines += [
            f"  {v.role.value:7} {v.name} {format_shape(v.shape)}"
            + (f" from {self.initial_of(v)}" if self.initial_of(v) else "")
            for v in self.declared
        ]
        lines += [f"  {equation}" for equation in self.equations]
        return "\n".join(lines)


def next_name(state: Value) -> str:
    """The name of a state's new value: ``h`` for ``h_prev``."""
    return str(state.name).removesuffix("_prev")
