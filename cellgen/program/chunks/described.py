"""Describe layers in a line each, in the names of the author.

Input: a ``FormOverTime``. Output: text: the equation of each state over time, or the statement that
forbids one.
"""

from __future__ import annotations

from sympy import Expr

from cellgen.language.notation import text
from cellgen.language.value import Role, Value, format_axis
from cellgen.program.chunks.layers import (
    Decay,
    Delay,
    FormOverTime,
    Layer,
    LinearScan,
    MaxPlusScan,
    Memory,
    Refusal,
    Update,
)

SHOWN = 60
"""Characters of an expression that a line still spells out; longer ones go by their name."""


def kind_of(layer: Layer | Refusal) -> str:
    """What a layer is, in a few words."""
    if isinstance(layer, Delay):
        return "a delay"
    if isinstance(layer, MaxPlusScan):
        return "a max-plus scan"
    if isinstance(layer, LinearScan):
        count = len(layer.states)
        return "a linear scan" + (f" of {count} x {count} blocks" if count > 1 else "")
    if isinstance(layer, Memory):
        return _kind_of_memory(layer)
    return "step by step"


def _kind_of_memory(layer: Memory) -> str:
    shape = [format_axis(axis) for axis in layer.state.shape]
    if layer.value_axis is None:
        kind = f"a memory, a vector of {shape[layer.key_axis]}"
        return kind + (f", one more column of {layer.beside}" if layer.beside else "")
    return f"a memory, a matrix of {shape[layer.value_axis]} x {shape[layer.key_axis]}"


def equation_of(layer: Layer | Refusal, form: FormOverTime, of: Value | None = None) -> str:
    """The equation of a layer over time, or of one of its states; of a refusal the reason."""
    return _Spelled(form).equation(layer, of)


def lines_of(form: FormOverTime) -> list[str]:
    """One line a layer: its states, what it is, its equation."""
    lines = []
    for number, layer in enumerate(form.layers, start=1):
        states = ", ".join(str(state) for state in layer.states)
        lines.append(f"{number}. {states}: {kind_of(layer)}: {equation_of(layer, form)}")
    return lines


class _Spelled:
    """Spells streams by their expressions where these are short."""

    def __init__(self, form: FormOverTime) -> None:
        self.form = form
        self.taken = {str(value) for value in form.step.values}

    def _own(self, letter: str) -> str:
        """A letter of ours for what is too long to be spelled; no value of the author's has it."""
        while letter in self.taken:
            letter += "_"
        return letter

    def equation(self, layer: Layer | Refusal, of: Value | None = None) -> str:
        if isinstance(layer, Refusal):
            return layer.reason
        if isinstance(layer, Delay):
            return f"{layer.next} reads no state"
        if isinstance(layer, MaxPlusScan):
            rise = self.form.stated.get(layer.rise, layer.rise)
            moved = self._short(layer.state + rise, f"{layer.state} + {self._own('a')}")
            other = self._of(layer.other)
            pair = (moved, other) if layer.moved_first else (other, moved)
            return f"{layer.next} = max({', '.join(pair)})"
        if isinstance(layer, LinearScan):
            return self._linear(layer, of)
        return self._memory(layer)

    def _linear(self, layer: LinearScan, of: Value | None) -> str:
        rows = []
        for i, new in enumerate(layer.following):
            if of not in (None, layer.states[i]):
                continue
            terms = []
            for j, state in enumerate(layer.states):
                factor = layer.factors.get((i, j))
                if factor is not None:
                    product = self.form.stated.get(factor, factor) * state
                    terms.append(self._short(product, f"{self._own('a')} * {state}"))
            rows.append(f"{new} = {' + '.join([*terms, self._own('b')])}")
        return f"{', '.join(rows)}; the factors read no state"

    def _memory(self, layer: Memory) -> str:
        old = str(layer.state)
        kept = old if layer.decay is Decay.NONE else f"exp({self._own('g')}) * {old}"
        updates = [self._update(update, layer.erasers) for update in layer.updates]
        parts = [" + ".join([f"{layer.next} = {kept}", *updates])]
        if layer.log_decay is not None:
            parts.append(self._decay(layer, layer.log_decay))
        for n, eraser in enumerate(layer.erasers):
            parts.append(f"{self._erased(n, layer.erasers)} = {old} @ {self._operand(eraser)}")
        reads = [
            f"{layer.next if read.after else old} @ {self._operand(read.query)}"
            for read in layer.readouts
        ]
        parts.append(f"read as {', '.join(reads)}")
        if layer.positive:
            parts.append(f"{', '.join(map(str, layer.positive))} must not be negative")
        return "; ".join(parts)

    def _decay(self, layer: Memory, stream: Value) -> str:
        written = self.form.stated.get(stream, stream)
        if layer.floored:
            written = written.args[0]
        limit = f"floored at {layer.bound:g}" if layer.floored else f"at least {layer.bound:.4g}"
        spelled = self._short(written, str(stream))
        return f"{self._own('g')} = {spelled}, {layer.decay.value}, {limit}"

    def _update(self, update: Update, erasers: tuple[Value, ...]) -> str:
        terms = []
        if update.value is not None:
            factors = [v for v in (update.scale, update.value) if v is not None]
            terms.append(" * ".join(self._factor(v) for v in factors))
        for n, coefficient in update.erased.items():
            is_one = self.form.stated.get(coefficient) == 1
            u = self._erased(n, erasers)
            minus = "- " if terms else "-"
            term = u if is_one else f"{self._factor(coefficient)} * {u}"
            is_negative = term.startswith("-")
            plus = "+ " if terms else ""
            terms.append(f"{plus}{term[1:]}" if is_negative else f"{minus}{term}")
        joined = " ".join(
            term if n == 0 or term[0] in "+-" else f"+ {term}" for n, term in enumerate(terms)
        )
        return f"outer({joined}, {self._of(update.key)})"

    def _erased(self, number: int, of: tuple[Value, ...]) -> str:
        return self._own(f"u{number + 1}" if len(of) > 1 else "u")

    def _of(self, stream: Value) -> str:
        return self._short(self.form.stated.get(stream, stream), str(stream))

    def _factor(self, stream: Value) -> str:
        written = self.form.stated.get(stream, stream)
        spelled = self._short(written, str(stream))
        return f"({spelled})" if written.is_Add and spelled != str(stream) else spelled

    def _operand(self, stream: Value) -> str:
        """A stream behind ``@``."""
        written = self.form.stated.get(stream, stream)
        spelled = self._short(written, str(stream))
        is_compound = written.is_Add or written.is_Mul or written.is_Pow
        return f"({spelled})" if is_compound and spelled != str(stream) else spelled

    def _short(self, expression: Expr, name: str) -> str:
        """An expression, its temporary values written out as far as it stays short."""
        spelled = text(expression)
        if len(spelled) > SHOWN:
            return name
        while (wider := self._written_out(expression)) != expression:
            if len(text(wider)) > SHOWN:
                break
            expression, spelled = wider, text(wider)
        return spelled

    def _written_out(self, expression: Expr) -> Expr:
        swap = {}
        for leaf in expression.atoms(Value):
            statement = self.form.step.definition_of(leaf)
            if statement is None or leaf.role is not Role.TEMPORARY:
                continue
            if statement.is_pointwise:
                swap[leaf] = statement.expression
            elif statement.traits.is_reshape:
                swap[leaf] = statement.operands[0]
        return expression.xreplace(swap)
