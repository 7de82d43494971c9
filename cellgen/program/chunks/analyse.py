"""Derive the layers of a cell: its states in an order in which each can be formed for all steps.

Input: a ``Definition``. Output: ``FormOverTime``. States that read each other are one layer; what
an earlier layer forms is known at every step, before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sympy import Expr

from cellgen.language.cell import Definition
from cellgen.language.notation import text
from cellgen.language.value import Role, Value
from cellgen.program.chunks.affine import AffineForms, cone
from cellgen.program.chunks.layers import (
    ForbiddenError,
    FormOverTime,
    Layer,
    Memory,
    Refusal,
)
from cellgen.program.chunks.memory import memory_layer
from cellgen.program.chunks.scans import scan_layer
from cellgen.program.chunks.streams import Streams, in_order
from cellgen.program.derive import forward
from cellgen.program.identity import once_for_each
from cellgen.program.simplify import FORWARD, simplify
from cellgen.program.ssa import Program, Statement


@once_for_each
def form_over_time(definition: Definition) -> FormOverTime:
    """Derive the form over time of a cell, once for each definition."""
    following = {state: definition.next_state(state) for state in definition.states}
    results = tuple(dict.fromkeys((*definition.outputs, *following.values())))
    step = simplify(forward(definition.with_outputs(results)), FORWARD)
    return _Analysis(definition, step, following).form()


class _Analysis:
    def __init__(
        self, definition: Definition, step: Program, following: Mapping[Value, Value]
    ) -> None:
        self.definition, self.step, self.following = definition, step, following
        self.streams = Streams(step)
        self.known: set[Value] = set()
        self.equations: dict[Value, Statement] = {}
        """What is formed from reads of memories, in those reads."""

    def form(self) -> FormOverTime:
        layers: list[Layer | Refusal] = []
        for states in coupled_states(self.step, self.following):
            layer = self._layer(states)
            layers.append(layer)
            pairs = {state: self.following[state] for state in states}
            if isinstance(layer, Memory):
                self.known.update(self.equations)
            else:
                self.known.update(pairs, pairs.values())
        formed = [layer for layer in layers if not isinstance(layer, Refusal)]
        layers = list(_beside(layers, self.streams))
        stated = {
            statement.target: self.streams.looked_through(statement.expression)
            for statement in self.streams.added
            if statement.is_pointwise
        }
        if len(formed) < len(layers):
            return FormOverTime(self.definition.name, self.step, tuple(layers), stated=stated)
        return self._programs(formed, tuple(layers), stated)

    def _layer(self, states: tuple[Value, ...]) -> Layer | Refusal:
        pairs = {state: self.following[state] for state in states}
        is_matrix = len(states) == 1 and len(states[0].shape) > 2
        refused: ForbiddenError | None = None
        if is_matrix and states[0] in cone(self.step, pairs[states[0]], self.known):
            try:
                return self._memory(states[0])
            except ForbiddenError as error:
                refused = error
        try:
            return scan_layer(self.step, pairs, self.streams, self.known)
        except ForbiddenError as error:
            return Refusal(states, self._reason(refused or error))

    def _reason(self, error: ForbiddenError) -> str:
        statement = error.statement
        return error.why if statement is None else f"`{self._spelled(statement)}` {error.why}"

    def _spelled(self, statement: Statement) -> str:
        """A statement by what it was made from; as its author wrote it, where made names are in it.

        Copies are looked through.
        """
        written = {equation.target: equation for equation in self.definition.equations}
        definitions = self.streams.definitions
        swap = {
            value: copy.expression
            for value in statement.operands
            if (copy := definitions.get(value)) and isinstance(copy.expression, Value)
        }
        read = {swap.get(value, value) for value in statement.operands}
        is_made = any(v.role is Role.TEMPORARY and v not in written for v in read)
        if is_made and statement.target in written:
            return str(written[statement.target])
        return text(statement.expression.xreplace(swap))

    def _memory(self, state: Value) -> Memory:
        new = self.following[state]
        forms = AffineForms(self.step, state, new, self.streams, self.known)
        memory, equations = memory_layer(forms, state, new)
        self.equations.update({statement.target: statement for statement in equations})
        return memory

    def _programs(
        self,
        formed: list[Layer],
        layers: tuple[Layer | Refusal, ...],
        stated: Mapping[Value, Expr],
    ) -> FormOverTime:
        step = self.step
        reads = [r.value for one in formed if isinstance(one, Memory) for r in one.readouts]
        arguments = (*step.arguments, *reads)
        statements = [self.equations.get(s.target, s) for s in step.statements]
        statements += [s for t, s in self.equations.items() if t not in step.definitions]
        ordered = in_order([*statements, *self.streams.added], arguments)
        base = Program(step.cell, "streams", arguments, ordered, step.results)
        memories = {v for one in formed if isinstance(one, Memory) for v in (one.state, one.next)}
        states = {*self.following, *self.following.values()} - memories
        wanted = tuple(v for v in self.definition.outputs if v not in states | memories)
        pre = {}
        known: set[Value] = set()
        order = self._in_order_of_streams(formed, base)
        if isinstance(order, Refusal):
            layers = tuple(order if one.states == order.states else one for one in layers)
            return FormOverTime(self.definition.name, step, layers, stated=stated)
        for states_of_layer in order:
            streams = next(one.streams for one in formed if one.states == states_of_layer)
            pre[states_of_layer] = base.restrict("streams", streams, known)
            known.update(v for s in states_of_layer for v in (s, self.following[s]))
        post = base.restrict("outputs", wanted, states)
        layers = tuple(sorted(layers, key=lambda one: order.index(one.states)))
        return FormOverTime(self.definition.name, step, layers, pre, post, stated)

    def _in_order_of_streams(
        self, formed: list[Layer], base: Program
    ) -> list[tuple[Value, ...]] | Refusal:
        """Order layers so that each comes after those that its streams read.

        What a state reads orders them already; what a memory is read by may be made of a later one.
        """
        layer_of = {
            v: one.states for one in formed for s in one.states for v in (s, self.following[s])
        }
        layer_of |= {
            r.value: one.states for one in formed if isinstance(one, Memory) for r in one.readouts
        }
        reads = {
            one.states: {
                layer_of[v]
                for v in base.restrict("streams", one.streams, layer_of).arguments
                if v in layer_of and layer_of[v] != one.states
            }
            for one in formed
        }
        order: list[tuple[Value, ...]] = []
        while waiting := [states for states in reads if states not in order]:
            ready = [states for states in waiting if reads[states] <= set(order)]
            if not ready:
                return _refused(waiting, reads)
            order.append(ready[0])
        return order


def _refused(
    waiting: list[tuple[Value, ...]], reads: Mapping[tuple[Value, ...], set[tuple[Value, ...]]]
) -> Refusal:
    """Refuse layers that wait for each other."""
    seen, at = list[tuple[Value, ...]](), waiting[0]
    while at not in seen:
        seen.append(at)
        at = next(other for other in waiting if other in reads[at])
    circle = [state for states in seen[seen.index(at) :] for state in states]
    why = "wait for each other: a memory is read by what is formed from what was read of it"
    return Refusal(at, f"{' and '.join(map(str, circle))} {why}")


def coupled_states(step: Program, following: Mapping[Value, Value]) -> list[tuple[Value, ...]]:
    """States in the order in which they can be computed, those that read each other together."""
    reads = {state: _read_by(step, new, following) for state, new in following.items()}
    for _ in following:
        for state, of in reads.items():
            reads[state] = of.union(*(reads[other] for other in of))
    ordered: list[tuple[Value, ...]] = []
    waiting = list(following)
    while waiting:
        done = {state for group in ordered for state in group}
        for state in waiting:
            group = {state} | {other for other in reads[state] if state in reads[other]}
            if reads[state] <= done | group:
                ordered.append(tuple(s for s in following if s in group))
                waiting = [s for s in waiting if s not in group]
                break
    return ordered


def _read_by(step: Program, new: Value, following: Mapping[Value, Value]) -> set[Value]:
    """The states that a new state reads, before their step or after it."""
    others = {value: state for state, value in following.items() if value != new}
    needed, states = {new}, set()
    for statement in reversed(step.statements):
        if statement.target not in needed:
            continue
        if statement.target in others:
            states.add(others[statement.target])
            continue
        needed.update(statement.operands)
    return states | (needed & set(following))


def _beside(layers: list[Layer | Refusal], streams: Streams) -> list[Layer | Refusal]:
    """Find vectors that are one more column of a matrix: same decay, one key and one query.

    That is by equality of expressions, views looked through.
    """

    def written(stream: Value | None) -> Expr | None:
        return stream and streams.looked_through(streams.definitions[stream].expression)

    def facts(memory: Memory) -> tuple[object, ...] | None:
        if len(memory.updates) != 1 or memory.erasers or len(memory.readouts) != 1:
            return None
        of = (memory.log_decay, memory.updates[0].key, memory.readouts[0].query)
        return (memory.decay, memory.readouts[0].after, *map(written, of))

    def placed(one: Layer | Refusal) -> Layer | Refusal:
        if not isinstance(one, Memory) or one.value_axis is not None or facts(one) not in wide:
            return one
        matrix = wide[facts(one)]
        scale, value = matrix.updates[0].scale, one.updates[0].value
        is_scale = scale is not None and written(scale) == written(value)
        return replace(one, beside=matrix.state, is_scale=is_scale)

    matrices = (one for one in layers if isinstance(one, Memory) and one.value_axis is not None)
    wide = {facts(one): one for one in matrices if facts(one) is not None}
    return [placed(one) for one in layers]
