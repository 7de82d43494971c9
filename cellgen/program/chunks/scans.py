"""Form delays and scans: states of which each unit reads itself alone, or those it is coupled with.

Input: states that are coupled, and what is known. Output: a layer with its streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import sympy
from sympy import Expr
from sympy import S as NUMBERS

from cellgen.language.ops import Pointwise
from cellgen.language.value import Value
from cellgen.program.chunks.affine import is_affine, reached_by
from cellgen.program.chunks.layers import Delay, ForbiddenError, LinearScan, MaxPlusScan
from cellgen.program.chunks.streams import Streams
from cellgen.program.ssa import Program, Statement


def scan_layer(
    program: Program, pairs: Mapping[Value, Value], streams: Streams, known: Set[Value]
) -> Delay | MaxPlusScan | LinearScan:
    """Form the layer of some states, ``pairs`` with their new values.

    Raises:
        ForbiddenError: the statement for which they are none.
    """
    states = tuple(pairs)
    reached = reached_by(program, states, known)
    if not reached.intersection(pairs.values()):
        return Delay(states[0], pairs[states[0]])
    written = [_written(new, reached, streams.definitions) for new in pairs.values()]
    if len(states) == 1:
        layer = _max_plus(states[0], pairs[states[0]], written[0], streams, reached)
        if layer is not None:
            return layer
    return _linear(pairs, written, streams, reached)


def _written(value: Value, reached: Set[Value], by: Mapping[Value, Statement]) -> Expr:
    """A new state in terms of states and of what no state reaches."""
    statement = by.get(value)
    if statement is None or value not in reached:
        return value
    if not statement.is_pointwise:
        raise ForbiddenError("mixes units of a state", statement)
    if statement.target.shape != value.shape or any(
        v in reached and v.shape != value.shape for v in statement.operands
    ):
        raise ForbiddenError("reads one unit of a state for many", statement)
    return statement.expression.xreplace({v: _written(v, reached, by) for v in statement.operands})


def _max_plus(
    state: Value, new: Value, written: Expr, streams: Streams, reached: Set[Value]
) -> MaxPlusScan | None:
    is_maximum = isinstance(written, Pointwise) and written.row.is_upper_bound
    if not is_maximum or len(written.args) != 2:
        return None
    first, second = written.args
    moved, other = (first, second) if state in first.atoms(Value) else (second, first)
    rise = sympy.expand_mul(moved - state)
    if not (other.atoms(Value) | rise.atoms(Value)).isdisjoint(reached):
        return None
    return MaxPlusScan(
        state,
        new,
        streams.emit(f"{new.name}_rise", rise, state.shape),
        streams.emit(f"{new.name}_other", other, state.shape),
        moved is first,
    )


def _linear(
    pairs: Mapping[Value, Value], written: Sequence[Expr], streams: Streams, reached: Set[Value]
) -> LinearScan:
    states, factors, terms = tuple(pairs), {}, []
    for i, (new, expression) in enumerate(zip(pairs.values(), written, strict=True)):
        if not is_affine(expression, set(states)):
            raise ForbiddenError("is not linear in a state", _bent(new, states, reached, streams))
        for j, state in enumerate(states):
            factor = sympy.diff(expression, state)
            if factor == 0:
                continue
            if state.shape != new.shape:
                raise ForbiddenError("couples states of other shapes", streams.definitions[new])
            name = f"{new.name}_factor" + (f"_{state.name}" if len(states) > 1 else "")
            factors[i, j] = streams.emit(name, factor, new.shape)
        rest = expression.xreplace(dict.fromkeys(states, NUMBERS.Zero))
        terms.append(streams.emit(f"{new.name}_term", rest, new.shape))
    return LinearScan(states, tuple(pairs.values()), factors, tuple(terms))


def _bent(
    new: Value, states: Sequence[Value], reached: Set[Value], streams: Streams
) -> Statement | None:
    """The first statement on the way to a new state that is not affine in the states."""
    by, affine = streams.definitions, set(states)

    def search(value: Value) -> Statement | None:
        statement = by.get(value)
        if statement is None or value not in reached or value in affine:
            return None
        for operand in statement.operands:
            bent = search(operand)
            if bent is not None:
                return bent
        if not is_affine(statement.expression, reached):
            return statement
        return None

    return search(new) or by.get(new)
