"""The tangent of a cell, a cell again: its equations and their derivatives along a direction.

Input: a cell class. Output: a subclass in which each input, state, weight, bias, and each static
and scalar that learns, has a direction ``dot_<name>`` beside it, and each output its directional
derivative ``dot_<output>``. Over time its forward is the Jacobian-vector product of the cell, its
backward gives second derivatives (``cellgen.derivatives``); its own tangent gives third ones.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import cast

from sympy import Expr

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell import (
    Bias,
    Cell,
    Declaration,
    Definition,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    definition_of,
)
from cellgen.language.lines import located
from cellgen.language.names import Names, is_taken_for_cells
from cellgen.language.ops import shape_of, zeros_like
from cellgen.language.value import Role, Value
from cellgen.program.derive import directional
from cellgen.program.derive import forward as forward_program
from cellgen.program.ssa import Program
from cellgen.program.transforms.stated import needed, readers_of, stands_in

_LONGEST_LIST = 40
"""Letters of the names in ``by`` up to which the cell's own name repeats them."""

_DECLARE: Mapping[Role, Callable[[Value, bool], Declaration]] = {
    Role.INPUT: lambda value, learns: Input(*value.shape[1:], gradient=learns),
    Role.STATE: lambda value, learns: State(*value.shape[1:]),
    Role.STATIC: lambda value, learns: Static(*value.shape[1:], gradient=learns),
    Role.WEIGHT: lambda value, learns: Weight(*value.shape, gradient=learns),
    Role.BIAS: lambda value, learns: Bias(*value.shape),
    Role.SCALAR: lambda value, learns: Scalar(0.0, gradient=learns),
}


@located
def tangent(
    cell: type[Cell], by: Iterable[str | Value] | None = None, *, name: str = ""
) -> type[Cell]:
    """Return the tangent of a cell: a cell that also computes its derivative along a direction.

    It takes what the cell takes and, for every value that moves, its direction ``dot_<name>`` of
    the same shape; it returns what the cell returns and ``dot_<output>``, which is linear in the
    directions. Where a name of the cell begins with ``dot_`` already, as in a tangent's own
    tangent, the directions are ``dot2_<name>``, and so on.

    ``by`` lists the values that move; the directions of others are 0 and no arguments. Left out,
    everything with a gradient moves. States that follow something that moves always do. A value
    without gradient, such as a mask, moves where ``by`` names it. Kinks, ``stop_gradient`` and
    declared derivatives count as they do in gradients.

    Raises:
        DeclarationError: ``by`` has a name that the cell does not declare, or one by which no
            output has a derivative.
    """
    definition = definition_of(cell)
    chosen = _chosen(definition, by)
    name = accept.word("tangent", "name", name, "a text", error=DeclarationError)
    return _tangent(cell, chosen, by is not None, name or _name_of(definition, chosen, by))


def directions_of(cell: type[Cell]) -> Mapping[str, str]:
    """Return the directions of a tangent by the names of what moves: ``{"x": "dot_x", ...}``.

    Raises:
        DeclarationError: what was given is no complete cell, or no tangent of one.
    """
    definition = definition_of(cell)
    stored: Mapping[str, str] | None = getattr(cell, "__directions__", None)
    if stored is None:
        raise DeclarationError(
            f"{definition.class_name} is no tangent of a cell; pass what tangent(Cell) returned",
            code="declaration.tangent",
        )
    return stored


def _chosen(definition: Definition, by: Iterable[str | Value] | None) -> tuple[Value, ...]:
    learning = [v for v in definition.declared if v not in definition.fixed]
    if by is None:
        return tuple(v for v in definition.declared if v in (*learning, *definition.requested))
    listed = (by,) if isinstance(by, str | Value) else by
    if not isinstance(listed, Iterable) or isinstance(listed, Mapping):
        raise _fault(definition, f"by is {accept.quoted(by)}, expected names, in a tuple")
    known = {str(value.name): value for value in definition.declared}
    names = []
    for item in listed:
        if not isinstance(item, str | Value):
            raise _fault(definition, f"an entry of by is {accept.quoted(item)}, expected its name")
        if str(item) not in known:
            raise _fault(definition, f"by lists {item}; the cell declares {', '.join(known)}")
        names.append(str(item))
    if not names:
        raise _fault(definition, f"by is empty, expected names among {', '.join(known)}")
    return tuple(value for name, value in known.items() if name in names)


def _name_of(definition: Definition, chosen: Sequence[Value], by: object) -> str:
    listed = "_".join(str(value.name) for value in chosen)
    if len(listed) > _LONGEST_LIST:
        listed = sha256(listed.encode()).hexdigest()[:8]
    name = f"{definition.name}_tangent" + ("" if by is None else f"_by_{listed}")
    return f"{name}_cell" if is_taken_for_cells(name) else name


@lru_cache(maxsize=256)
def _tangent(cell: type[Cell], chosen: tuple[Value, ...], are_named: bool, name: str) -> type[Cell]:
    """The tangent of a cell.

    The same class for the same question, so that all of it is derived and compiled once.
    """
    definition = definition_of(cell)
    body = _Body(definition, chosen)
    idle = [str(value.name) for value in chosen if value not in body.moving]
    if are_named and idle:
        raise _fault(definition, f"no output has a derivative by {', '.join(idle)}; leave it out")
    options = {"name": name}
    cell_type = types.new_class(f"Tangent{definition.class_name}", (cell,), options, body.state)
    return cast("type[Cell]", cell_type)


class _Body:
    """The class body of a tangent: directions first, then the derivatives of the equations.

    ``dots`` are the tangents of the cell's values in the program that is derived; ``made`` tells
    what each is in the class body, once it is stated.
    """

    def __init__(self, definition: Definition, chosen: Sequence[Value]) -> None:
        self.definition = definition
        own = (*definition.declared, *(equation.target for equation in definition.equations))
        names = [*(str(value.name) for value in own), *definition.aliases]
        self.prefix, self.names = _prefix(names), Names(names)
        flat = forward_program(definition)
        program, self.dots = _moved(definition, flat, chosen)
        self.outputs = [self.dots[value] for value in definition.outputs]
        self.statements = needed(program.statements, self.outputs, set(own))
        self.origins = {dot: value for value, dot in self.dots.items()}
        self.between = {s.target: s for s in flat.statements if s.target not in own}
        read = {operand for statement in self.statements for operand in statement.operands}
        read -= {s.target for s in self.statements}
        read |= {self.dots[state] for state in definition.states if state in self.dots}
        self.moving = [v for v in definition.declared if self.dots.get(v) in read]
        self.named = {self.dots[v] for v in own if v in self.dots}
        self.expressions: dict[Expr, Expr] = {}

    def state(self, ns: dict[str, object]) -> None:
        definition = self.definition
        ns["__derived__"] = True
        ns["__doc__"] = f"Tangent of: {' '.join(definition.doc.split())}"
        for value in self.moving:
            self._declare(ns, value)
        self._equations(ns)
        ns["outputs"] = (*definition.outputs, *self._directions(definition.outputs).values())
        if definition.gradients is not None:
            gradients = definition.gradients
            ns["gradients"] = (*gradients, *self._directions(gradients).values())
        directions = self._directions((*self.moving, *definition.outputs))
        names = {str(value.name): str(dot) for value, dot in directions.items()}
        ns["__directions__"] = types.MappingProxyType(names)

    def _directions(self, values: Iterable[Value]) -> dict[Value, Expr]:
        """What stands for the tangents of some of the cell's values."""
        dots = {value: self.dots[value] for value in values if value in self.dots}
        return {
            value: self.expressions[dot] for value, dot in dots.items() if dot in self.expressions
        }

    def _declare(self, ns: dict[str, object], value: Value) -> None:
        definition = self.definition
        name = self.names.fresh(f"{self.prefix}{value.name}", is_whole=True)
        learns = value not in definition.fixed or value in definition.requested
        ns[name] = _DECLARE[value.role](value, learns)
        self.expressions[self.dots[value]] = cast(Expr, ns[name])

    def _equations(self, ns: dict[str, object]) -> None:
        """State what the tangents of outputs need. A term that one sum reads stands in it."""
        readers = readers_of(self.statements)
        for statement in self.statements:
            target = statement.target
            expression = statement.expression.xreplace(self.expressions)
            one = readers.get(target, ())
            # An output moves as a direction does: as a value of its own, no other name of it.
            is_direction = target in self.outputs and isinstance(expression, Value)
            if is_direction or shape_of(expression) != target.shape:
                expression += self._zeros(target)
            if target not in self.named and stands_in(statement, one):
                self.expressions[target] = expression
                continue
            name = self._name(target)
            ns[name] = expression
            self.expressions[target] = cast(Expr, ns[name])

    def _zeros(self, target: Value) -> Expr:
        """0 in the shape of a tangent: that of the value that it is the tangent of."""
        return zeros_like(self._spelled(self.origins[target]))

    def _spelled(self, value: Value) -> Expr:
        """A value of the cell, or the expression of what the program forms between those."""
        if value in self.expressions or value not in self.between:
            return self.expressions.get(value, value)
        statement = self.between[value]
        return statement.expression.xreplace({v: self._spelled(v) for v in statement.operands})

    def _name(self, target: Value) -> str:
        origin = self.origins.get(target)
        if origin is not None and target in self.named:
            return self.names.fresh(f"{self.prefix}{origin.name}", is_whole=True)
        stem = str(target.name) if origin is None else f"{self.prefix}{origin.name}"
        if origin is None and target.role is Role.TANGENT:
            stem = f"{self.prefix}{stem.removeprefix('t_')}"
        return self.names.fresh(re.sub("__+", "_", stem).rstrip("_"))  # of int_: int__pre


def _prefix(names: Sequence[str]) -> str:
    """``dot_``, or the first of ``dot2_``, ``dot3_``, ... that begins no name of the cell."""
    prefixes = ("dot_", *(f"dot{count}_" for count in range(2, len(names) + 3)))
    return next(p for p in prefixes if not any(name.startswith(p) for name in names))


def _moved(
    definition: Definition, flat: Program, chosen: Sequence[Value]
) -> tuple[Program, Mapping[Value, Value]]:
    """Derive the tangent along what is chosen, and along the states that follow it."""
    moving = list(chosen)
    while True:
        moved = [v for v in definition.declared if v in moving and v in flat.arguments]
        moved += [v for v in definition.states if v in moving and v not in moved]
        program, dots = directional(flat, moved)
        still = {s.target for s in program.statements if s.expression == 0}
        follow = [s for s in definition.states if dots[definition.next_state(s)] not in still]
        if set(follow) <= set(moving):
            return program, dots
        moving += follow


def _fault(definition: Definition, what: str) -> DeclarationError:
    return DeclarationError(f"tangent({definition.class_name}): {what}", code="declaration.tangent")
