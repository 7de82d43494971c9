"""Recognise a cell that is exactly ONNX's LSTM, GRU or RNN, up to the names of its values.

Input: a ``Definition``. Output: ``Standard``: the operator, its attributes, and for every gate the
parts of its weights in terms of the cell's parameters. Nothing is taken for equal that is not:
a clip of the cell's state is none of the operator's clip, and a cell of coupled gates none of its
``input_forget``, which couples the other gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from sympy import Add, Expr, Integer, Mul

from cellgen.language.cell import Definition
from cellgen.language.ops import operator_of
from cellgen.language.value import Apply, B, Role, Value
from cellgen.onnx.activations import Applied, forms
from cellgen.onnx.match import Bindings, Hole, NumberHole, matches
from cellgen.program.derive import forward
from cellgen.program.rewrites.inlined import inline_sums
from cellgen.program.rewrites.parts import narrow_parts, unwrap_parts
from cellgen.program.rewrites.products import distribute_concat
from cellgen.program.simplify import simplify
from cellgen.program.ssa import Program


@dataclass(frozen=True)
class GateProduct:
    """``left @ weight``, of which perhaps some columns are read: ``columns`` are start and size."""

    left: Expr
    weight: Value
    columns: tuple[Expr, Expr] | None = None


@dataclass(frozen=True)
class Gate:
    """What a gate is of: weights of inputs and of states, biases, a peephole.

    ``recurrent_bias`` is a bias within what a reset gate multiplies.
    """

    of_input: GateProduct
    of_state: GateProduct
    bias: tuple[Expr, ...] = ()
    recurrent_bias: tuple[Expr, ...] = ()
    peephole: Expr | None = None


@dataclass(frozen=True)
class Standard:
    """An operator of ONNX that a cell is: ``gates`` in the operator's order.

    ``states`` are the hidden state and, of an LSTM, the cell's. ``program`` computes the values
    that gates name from the cell's parameters.
    """

    op: str
    gates: tuple[Gate, ...]
    activations: tuple[Applied, ...]
    states: tuple[Value, ...]
    program: Program
    attributes: Mapping[str, int] = field(default_factory=dict)


def recognised(definition: Definition) -> Standard | None:
    """The operator that a cell is exactly, or None."""
    inputs = definition.with_role(Role.INPUT)
    others = definition.with_role(Role.STATIC)
    if len(inputs) != 1 or others or len(inputs[0].shape) != 2:
        return None
    if any(state.shape != definition.states[0].shape for state in definition.states):
        return None
    if len(definition.states[0].shape) != 2:
        return None
    reading = _Reading(definition)
    finders = {1: (_rnn, _gru), 2: (_lstm,)}
    for find in finders.get(len(definition.states), ()):
        for states in permutations(definition.states):
            standard = find(reading, states)
            if standard is not None:
                return standard
    return None


class _Reading:
    """New states as expressions of inputs, states, and values that are made of parameters."""

    def __init__(self, definition: Definition) -> None:
        following = tuple(definition.next_state(state) for state in definition.states)
        self.x = definition.with_role(Role.INPUT)[0]
        self.following = dict(zip(definition.states, following, strict=True))
        program = forward(definition.with_outputs(following))
        self.program = simplify(
            program, (distribute_concat, inline_sums, unwrap_parts, narrow_parts)
        )
        moving: set[Value] = {self.x, *definition.states}
        for statement in self.program.statements:
            if not moving.isdisjoint(statement.operands):
                moving.add(statement.target)
        self.moving = moving

    def expression(self, value: Value) -> Expr:
        """What a new state is; other new states, and what parameters give, are named in it."""
        return self._inlined(value, is_start=True)

    def _inlined(self, value: Value, is_start: bool = False) -> Expr:
        """Sums stay named: a number before one would be multiplied into its terms."""
        statement = self.program.definition_of(value)
        named = value in self.following.values() or self._is_sum(value)
        if statement is None or (named and not is_start) or value not in self.moving:
            return value
        swap = {operand: self._inlined(operand) for operand in statement.operands}
        return statement.expression.xreplace(swap)

    def _is_sum(self, value: Expr) -> bool:
        statement = self.program.definition_of(value) if isinstance(value, Value) else None
        return statement is not None and value in self.moving and bool(statement.expression.is_Add)

    def terms(self, expression: Expr) -> list[Expr]:
        """The terms of a sum, those of sums that it names too."""
        parts: list[Expr] = []
        for term in Add.make_args(expression):
            is_inner = self._is_sum(term) and term not in self.following.values()
            parts += self.terms(self.expression(term)) if is_inner else [term]
        return parts

    def is_fixed(self, expression: Expr) -> bool:
        """Whether an expression is made of parameters alone."""
        return self.moving.isdisjoint(expression.atoms(Value))

    def product(self, term: Expr) -> GateProduct | None:
        """A term that is a product with what parameters give, or some columns of one."""
        columns = None
        if isinstance(term, Apply) and operator_of(term).is_part:
            axis, start, size = term.attributes
            term = term.operands[0]
            columns = (start, size) if axis == 1 else None
            if columns is None:
                return None
        if not isinstance(term, Apply) or not operator_of(term).is_matmul:
            return None
        left, weight = term.operands
        fits = isinstance(weight, Value) and self.is_fixed(weight) and len(weight.shape) == 2
        return GateProduct(left, weight, columns) if fits and B not in weight.shape else None

    def gate(self, bar: Expr, state: Value, memory: Value | None = None) -> Gate | None:
        """Read a pre-activation: two products, biases, and a peephole of ``memory`` perhaps."""
        products: dict[Expr, GateProduct] = {}
        bias, peephole = [], None
        for term in self.terms(bar):
            product = self.product(term)
            if product is not None and product.left in (self.x, state):
                if product.left in products:
                    return None
                products[product.left] = product
            elif self.is_fixed(term):
                bias.append(term)
            elif peephole is None and memory is not None and self._peephole(term, memory):
                peephole = self._peephole(term, memory)
            else:
                return None
        if len(products) != 2:
            return None
        return Gate(products[self.x], products[state], tuple(bias), (), peephole)

    def _peephole(self, term: Expr, memory: Value) -> Expr | None:
        factors = list(Mul.make_args(term))
        if memory not in factors:
            return None
        factors.remove(memory)
        weight = Mul(*factors)
        return weight if self.is_fixed(weight) else None


_ZERO = Integer(0)


def _numbers(applied: Applied, bound: Bindings, a: Expr, b: Expr) -> Applied:
    """The activation with the numbers that its symbols were bound to."""
    numbers = [float(bound[s]) if s in bound else None for s in (a, b)]
    alpha = applied.alpha if numbers[0] is None else numbers[0]
    beta = applied.beta if numbers[1] is None else numbers[1]
    return Applied(applied.row, alpha, beta)


def _number_holes() -> tuple[Hole, Hole]:
    """Symbols for the two numbers of an activation."""
    return NumberHole("a"), NumberHole("b")


def _rnn(reading: _Reading, states: Sequence[Value]) -> Standard | None:
    """``h = f(x W + h U + b)``."""
    (state,) = states
    bar, (a, b) = Hole("bar"), _number_holes()
    for applied, pattern in forms(bar, a, b):
        for bound in matches(pattern, reading.expression(reading.following[state]), {}):
            gate = reading.gate(bound[bar], state)
            if gate is not None:
                applied = _numbers(applied, bound, a, b)
                return Standard("RNN", (gate,), (applied,), (state,), reading.program)
    return None


def _gru(reading: _Reading, states: Sequence[Value]) -> Standard | None:
    """``h = (1 - z) n + z h_prev`` with ``z = f(...)``, ``n = g(...)``, either kind of reset."""
    (state,) = states
    expression = reading.expression(reading.following[state])
    for applied, z_bar, other, n_bar, _ in _two_activations(
        expression, lambda z, _, n: (1 - z) * n + z * state
    ):
        update = reading.gate(z_bar, state)
        candidate = _candidate(reading, n_bar, state, applied) if update is not None else None
        if update is not None and candidate is not None:
            reset, last, after = candidate
            gates, how = (update, reset, last), {"linear_before_reset": int(after)}
            return Standard("GRU", gates, (applied, other), (state,), reading.program, how)
    return None


def _two_activations(
    expression: Expr, pattern: Callable[[Expr, Expr, Expr], Expr]
) -> Iterator[tuple[Applied, Expr, Applied, Expr, Expr]]:
    """Every way in which an expression is a pattern of gates f(u), f(v) and g(w).

    Gives f, u, g, w and v.
    """
    u, v, w = Hole("u"), Hole("v"), Hole("w")
    (a, b), (c, d) = _number_holes(), _number_holes()
    second = [form for _, form in forms(v, a, b)]
    for (applied, of_u), of_v in zip(forms(u, a, b), second, strict=True):
        for other, of_w in forms(w, c, d):
            for bound in matches(pattern(of_u, of_v, of_w), expression, {}):
                first, last = _numbers(applied, bound, a, b), _numbers(other, bound, c, d)
                yield first, bound[u], last, bound[w], bound.get(v, _ZERO)


def _candidate(
    reading: _Reading, bar: Expr, state: Value, update: Applied
) -> tuple[Gate, Gate, bool] | None:
    """The gates r and n of a GRU, and whether the reset comes after the recurrent product."""
    of_input, inner, bias = None, None, []
    for term in reading.terms(bar):
        product = reading.product(term)
        if product is not None and product.left == reading.x and of_input is None:
            of_input = product
        elif reading.is_fixed(term):
            bias.append(term)
        elif inner is None:
            inner = term
        else:
            return None
    if of_input is None or inner is None:
        return None
    before = reading.product(inner)
    for r_bar, of_state, recurrent_bias in _resets(reading, inner, before, state, update):
        reset = reading.gate(r_bar, state)
        if reset is not None:
            candidate = Gate(of_input, of_state, tuple(bias), recurrent_bias)
            return reset, candidate, before is None
    return None


def _resets(
    reading: _Reading, inner: Expr, before: GateProduct | None, state: Value, update: Applied
) -> Iterator[tuple[Expr, GateProduct, tuple[Expr, ...]]]:
    """What a reset gate is of, the product that it resets, and the bias within."""
    bar, rest, (a, b) = Hole("bar"), Hole("rest"), _number_holes()
    for applied, form in forms(bar, a, b):
        reset = form * (state if before is not None else rest)
        for bound in matches(reset, inner if before is None else before.left, {}):
            if _numbers(applied, bound, a, b) != update:
                continue
            if before is not None:  # (r * h_prev) @ u
                yield bound[bar], before, ()
                continue
            terms = reading.terms(bound[rest])  # r * (h_prev @ u + c)
            products = [p for p in map(reading.product, terms) if p is not None and p.left == state]
            biases = tuple(term for term in terms if reading.is_fixed(term))
            if len(products) == 1 and len(biases) == len(terms) - 1:
                yield bound[bar], products[0], biases


def _lstm(reading: _Reading, states: Sequence[Value]) -> Standard | None:
    """``c = f c_prev + i g`` and ``h = o k(c)``; i and f may see the old memory, o the new one."""
    state, memory = states
    new = reading.following[memory]
    hidden = reading.expression(reading.following[state])
    for applied, f_bar, squash, g_bar, i_bar in _two_activations(
        reading.expression(new), lambda f, i, g: f * memory + i * g
    ):
        block = reading.gate(g_bar, state)
        for o_bar, last in _hidden(hidden, new, applied) if block is not None else ():
            seen = ((i_bar, memory), (o_bar, new), (f_bar, memory))
            gates = [reading.gate(bar, state, looked_at) for bar, looked_at in seen]
            whole = tuple(gate for gate in (*gates, block) if gate is not None)
            if len(whole) == 4:
                activations = (applied, squash, last)
                return Standard("LSTM", whole, activations, (state, memory), reading.program)
    return None


def _hidden(expression: Expr, new: Value, gate: Applied) -> Iterator[tuple[Expr, Applied]]:
    """Every way in which the hidden state is ``o k(c)``: what the gate o is of, and ``k``."""
    o_bar, (a, b), (c, d) = Hole("o_bar"), _number_holes(), _number_holes()
    for applied, of_gate in forms(o_bar, a, b):
        if applied.row != gate.row:
            continue
        for last, form in forms(new, c, d):
            for bound in matches(of_gate * form, expression, {}):
                if _numbers(applied, bound, a, b) == gate:
                    yield bound[o_bar], _numbers(last, bound, c, d)
