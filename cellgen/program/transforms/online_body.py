"""The class body of an online cell: gradients of the loss, traces, then their equations.

Input: the traces of a cell. Output: names and declarations in the order of a class body.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from typing import cast

import sympy
from sympy import Expr, Integer

from cellgen.errors import DeclarationError
from cellgen.language.cell import Definition, Input, State
from cellgen.language.names import Names
from cellgen.language.ops import expand_dims, shape_of, zeros_like
from cellgen.language.value import Apply, B, Role, Shape, Value
from cellgen.program.ssa import Statement
from cellgen.program.transforms.arguments import state_name
from cellgen.program.transforms.probes import Manner
from cellgen.program.transforms.stated import needed, readers_of, stands_in
from cellgen.program.transforms.trace_axes import (
    diagonal,
    factor_along,
    gradient_at,
    row_shape,
    trace_axes,
    without_rows,
)
from cellgen.program.transforms.traces import Trace, TraceGroup, Traces


class OnlineBody:
    """The class body: gradients of the loss, traces, then their equations.

    ``says`` begins its docstring; ``expressions`` are those in the class body of each value of the
    traces' program.
    """

    def __init__(self, traces: Traces, says: str) -> None:
        self.traces, self.says = traces, says
        self.definition = definition = traces.definition
        own = (*definition.declared, *(equation.target for equation in definition.equations))
        self.own = dict.fromkeys(own)
        self.names = Names([*(str(value.name) for value in own), *definition.aliases])
        self.expressions: dict[Expr, Expr] = dict(traces.probed.restored)
        self.before: dict[tuple[int, Value], Expr] = {}
        """Traces of the step before, by group and state."""

    def state(self, ns: dict[str, object]) -> None:
        """State all of it in the namespace of a class body."""
        definition, traces = self.definition, self.traces
        ns["__derived__"] = True
        ns["__doc__"] = f"{self.says}{' '.join(definition.doc.split())}"
        statements = self._planned()
        for output, upstream in self._read(statements):
            name = self.names.fresh(_named("grad", output), is_whole=True)
            self.expressions[upstream] = self._stated(ns, name, Input(*output.shape[1:]))
        names = self._declare(ns)
        for statement in statements:
            stem = re.sub("^d_", "back_", str(statement.target.name))
            stem = re.sub("__+", "_", stem).rstrip("_")
            expression = without_rows(statement.expression.xreplace(self.expressions))
            if not isinstance(expression, Value):
                expression = self._stated(ns, self.names.fresh(stem), expression)
            self.expressions[statement.target] = expression
        for value, expression in self.expressions.items():  # what is another value by another name
            self.expressions[value] = self.expressions.get(expression, expression)
        for trace, name in zip(traces.traces, names, strict=True):
            ns[name] = self._next_trace(trace)
        gradients = self._gradients(ns)
        ns["outputs"] = (*definition.outputs, *(ns[name] for name in (*gradients.values(), *names)))
        ns["__gradients__"] = types.MappingProxyType(gradients)
        ns["__approximation__"] = traces.approximation

    def _stated(self, ns: dict[str, object], name: str, declared: object) -> Expr:
        ns[name] = declared
        return cast(Expr, ns[name])

    def _declare(self, ns: dict[str, object]) -> list[str]:
        """Declare the traces; returns the names of their new values."""
        states = dict.fromkeys(trace.state for trace in self.traces.traces)
        names = []
        for trace in self.traces.traces:
            group, state = trace.group, trace.state
            of = "" if len(states) == 1 else f"_{state_name(state)}"
            name = self._fresh_state(_named(f"trace{of}", group.parameter))
            shape = trace_axes(group, trace.group.units or state.shape[1:])
            self.before[id(group), state] = self._stated(ns, f"{name}_prev", State(*shape))
            names.append(name)
        return names

    def _fresh_state(self, name: str) -> str:
        """A name for a new value whose own value before the step has a name of its own, too."""
        while True:
            new_name = self.names.fresh(name, is_whole=True)
            before = f"{new_name}_prev"
            if self.names.fresh(before, is_whole=True) == before:
                return new_name

    # --- equations ---

    def _planned(self) -> list[Statement]:
        """What traces and gradients read, restored. A term that one sum reads stands in it."""
        targets: dict[Expr, Value] = {}
        for statement in self._of_traces():
            expression = self._restored(statement)
            if expression.is_Number or isinstance(expression, Value):
                self.expressions[statement.target] = self.expressions.get(expression, expression)
            elif statement.target.role is Role.TEMPORARY:  # as the cell has it: one value, not two
                self.expressions[statement.target] = expression
            elif expression in targets:
                self.expressions[statement.target] = targets[expression]
            else:
                targets[expression] = statement.target
        read = {v for a in self._values_read() for v in self.expressions.get(a, a).atoms(Value)}
        pending = [Statement(target, expression) for expression, target in targets.items()]
        wanted = needed(pending, read, set())
        readers, kept, swap = readers_of(wanted), list[Statement](), dict[Expr, Expr]()
        for statement in wanted:
            restored = Statement(statement.target, statement.expression.xreplace(swap))
            if restored.target in read or not stands_in(restored, readers.get(restored.target, ())):
                kept.append(restored)
            else:
                swap[restored.target] = restored.expression
        return needed(kept, read, set())

    def _of_traces(self) -> list[Statement]:
        """Statements of the traces' program that are needed, diagonals of weights first."""
        statements = needed(
            self.traces.statements, self._values_read(), set(self.own) | set(self.expressions)
        )
        read = {value for statement in statements for value in statement.operands}
        diagonals = self.traces.probed.diagonals
        own = [
            Statement(value, diagonal(self.expressions.get(weight, weight)))
            for weight, value in diagonals.items()
            if value in read
        ]
        return [*own, *statements]

    def _read(self, statements: Iterable[Statement]) -> list[tuple[Value, Value]]:
        """Outputs whose gradients reach a parameter, each with what stands for its gradient."""
        values = {v for statement in statements for v in statement.expression.atoms(Value)}
        values |= {v for a in self._values_read() for v in self.expressions.get(a, a).atoms(Value)}
        return [(output, up) for output, up in self.traces.upstream.items() if up in values]

    def _values_read(self) -> set[Value]:
        """Values of the traces' program that traces and gradients read."""
        traces, values = self.traces, set[Value]()
        for trace in traces.traces:
            for slope in (*(s for _, _, s in trace.slopes), *(c.slope for c in trace.couplings)):
                values |= slope.atoms(Value)
        read = (*(place.probe for place in traces.places), *(t.state for t in traces.traces))
        return values | {traces.adjoints[value] for value in read if value in traces.adjoints}

    def _restored(self, statement: Statement) -> Expr:
        """An expression in values of the class body; operators take no numbers, and whole rows."""
        expression = statement.expression
        if not isinstance(expression, Apply):
            return cast(Expr, expression.xreplace(self.expressions))
        operands = []
        for operand in expression.operands:
            flat = operand.xreplace(self.expressions)
            if without_rows(Apply(expression.op, (flat,), expression.attributes)) == flat:
                return flat
            rows = B in shape_of(operand)
            if rows and statement.traits.is_reshape and B not in shape_of(flat):  # of a weight
                return Apply(expression.op, (flat,), expression.attributes[1:])
            if rows and shape_of(flat) != shape_of(operand):
                flat += self._zeros(shape_of(operand))
            operands.append(flat)
        return Apply(expression.op, operands, expression.attributes)

    def _zeros(self, shape: Shape) -> Expr:
        like = next((value for value in self.own if value.shape == shape), None)
        if like is None:
            raise online_fault(self.definition, f"it has no value of shape {shape}")
        return zeros_like(like)

    # --- traces ---

    def _next_trace(self, trace: Trace) -> Expr:
        group, state = trace.group, trace.state
        terms = []
        for coupling in trace.couplings:
            before = self.before.get((id(group), coupling.state))
            if before is None:
                continue
            if coupling.axes != coupling.state.shape[1:]:
                shape = (B, *trace_axes(group, coupling.axes))
                before = Apply("reshape", (before,), shape)
            slope = coupling.slope.xreplace(self.expressions)
            terms.append(self._along(group, self._in_parts(group, slope, state), state) * before)
        for place in group.places:
            slopes = [
                (start, s.xreplace(self.expressions)) for p, start, s in trace.slopes if p == place
            ]
            if not slopes:
                continue
            slope = slopes[0][1] if not group.parts else self._joined(group, dict(slopes), state)
            along = self._along(group, slope, state)
            rank = len(group.units or state.shape[1:])
            terms.append(along if place.factor is None else factor_along(place, rank) * along)
        return self._wide(sympy.Add(*terms), self.before[id(group), state])

    def _wide(self, expression: Expr, like: Expr) -> Expr:
        same = shape_of(expression) == shape_of(like)
        return expression if same else expression + zeros_like(like)

    def _in_parts(self, group: TraceGroup, slope: Expr, state: Value) -> Expr:
        """A value along the units of a state, for each part of what the parameter forms."""
        if not group.parts:
            return slope
        return self._joined(group, {start: slope for start, _ in group.parts}, state)

    def _joined(self, group: TraceGroup, slopes: Mapping[Expr, Expr], state: Value) -> Expr:
        """Slopes of parts side by side; 0 for units that no state reads."""
        position, pieces = Integer(0), list[Expr]()
        total = group.units[-1]
        for start, length in group.parts:
            if start != position:
                pieces.append(self._zeros((B, start - position)))
            pieces.append(self._wide(slopes.get(start, Integer(0)), state))
            position = start + length
        if position != total:
            pieces.append(self._zeros((B, total - position)))
        return Apply("concat", pieces, (Integer(1),)) if len(pieces) > 1 else pieces[0]

    def _along(self, group: TraceGroup, slope: Expr, state: Value) -> Expr:
        """A value along the units of a state, along the axes of a trace."""
        shape = shape_of(slope)
        if not shape or group.entry is Manner.UNITS:
            return slope
        if B not in shape:
            if group.entry is Manner.PRODUCT:
                return slope  # axes are the last ones
            slope += zeros_like(state)
        return expand_dims(slope, 1 if group.entry is Manner.PRODUCT else 2)

    # --- gradients ---

    def _gradients(self, ns: dict[str, object]) -> dict[str, str]:
        """State the gradients; returns their names by those of parameters."""
        terms: dict[Value, list[Expr]] = {}
        for place in self.traces.places:
            if place.probe in self.traces.adjoints:
                own = self._adjoint(place.probe)
                terms.setdefault(place.parameter, []).append(gradient_at(place, own))
        for trace in self.traces.traces:
            if trace.state in self.traces.adjoints:
                terms.setdefault(trace.group.parameter, []).append(self._of_past(trace))
        names: dict[str, str] = {}
        for parameter, factors in terms.items():
            name = self._fresh_state(_named("grad", parameter))
            before = self._stated(ns, f"{name}_prev", State(*row_shape(parameter)))
            ns[name] = before + sympy.Add(*factors)
            names[str(parameter.name)] = name
        return names

    def _adjoint(self, value: Value) -> Expr:
        """The gradient of this step's loss by a value, with a row for each of the batch."""
        adjoint = self.traces.adjoints[value].xreplace(self.expressions)
        return adjoint if shape_of(adjoint) == value.shape else adjoint + self._zeros(value.shape)

    def _of_past(self, trace: Trace) -> Expr:
        """What this step's loss gives a parameter through a state of the step before."""
        group, state = trace.group, trace.state
        back = self._in_parts(group, self._adjoint(state), state)
        past = self._along(group, back, state) * self.before[id(group), state]
        shape = (B, *row_shape(group.parameter))
        lying = shape if group.parts else (B, *trace_axes(group, trace.axes))
        if shape_of(past) != lying:
            past = Apply("sum_to", (past,), lying)
        return past if lying == shape else Apply("reshape", (past,), shape)


def _named(prefix: str, value: Value) -> str:
    """A name that says of which value: ``grad_lambda`` of ``lambda_``, whose ``_`` ends a name."""
    return f"{prefix}_{value.name}".replace("__", "_").rstrip("_")


def online_fault(definition: Definition, what: str) -> DeclarationError:
    """What is wrong with a cell that is to have an online one."""
    return DeclarationError(f"online({definition.class_name}): {what}", code="declaration.online")
