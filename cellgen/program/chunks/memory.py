"""Form a memory from the affine forms of its state: axes, decay, updates by key, reads.

Input: ``AffineForms``. Output: a ``Memory`` and, for each value that is formed from what is read of
it, an equation in the reads. Terms with one key are one update, ``(v - c u) key^T``: the delta
rule's correction and its value become one by equality of expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sympy
from sympy import Add, Expr, Mul
from sympy import S as NUMBERS

from cellgen.language.ops import maximum
from cellgen.language.value import Shape, Value
from cellgen.program.chunks.affine import (
    BEFORE,
    AffineForms,
    Basis,
    Terms,
    definitions_written,
    weights_of,
)
from cellgen.program.chunks.bounds import interval
from cellgen.program.chunks.layers import Decay, ForbiddenError, Memory, Readout, Update
from cellgen.program.chunks.logs import Logarithms
from cellgen.program.chunks.streams import ONE, Streams, moved_axes, varies
from cellgen.program.ssa import Statement

FLOOR = -80
"""A step's decay counts as exp(-80) where it is less: of what was held a part of 2e-35 remains.
Sums of logarithms stay finite, and keep the digits that the weak decays beside it need."""

EMPTY = NUMBERS.Zero


@dataclass
class _Group:
    """Terms that share a key: value parts with scalar parts, coefficients of erased reads."""

    terms: list[tuple[Expr, Expr]] = field(default_factory=list)
    erased: dict[int, Expr] = field(default_factory=dict)


@dataclass(frozen=True)
class Axes:
    """Which axes of a state are keys and values."""

    rank: int
    value: int | None
    key: int

    @property
    def both(self) -> tuple[int, ...]:
        """The axes of the matrix."""
        return (self.key,) if self.value is None else (self.value, self.key)

    def split(self, term: Expr) -> tuple[Expr, Expr, Expr]:
        """Factors of a product: along the key, along the value, along neither."""
        key, value, number = list[Expr](), list[Expr](), list[Expr]()
        for factor in Mul.make_args(term):
            on_key = varies(factor, self.key, self.rank)
            on_value = self.value is not None and varies(factor, self.value, self.rank)
            if on_key and on_value:
                raise ForbiddenError(f"has the factor {factor}, which is no outer product")
            (key if on_key else value if on_value else number).append(factor)
        return Mul(*key), Mul(*value), Mul(*number)

    def shape(self, state: Value, on_key: bool, on_value: bool) -> Shape:
        """The shape of a stream of a memory."""
        shape = list(state.shape)
        if not on_key:
            shape[self.key] = ONE
        if self.value is not None and not on_value:
            shape[self.value] = ONE
        return tuple(shape)


def memory_layer(
    forms: AffineForms, state: Value, new: Value
) -> tuple[Memory, tuple[Statement, ...]]:
    """Form a memory; also the equations of what is formed from its reads.

    Raises:
        ForbiddenError: what keeps it from being one.
    """
    return _Former(forms, state, new).memory()


class _Former:
    def __init__(self, forms: AffineForms, state: Value, new: Value) -> None:
        self.forms, self.state, self.new = forms, state, new
        self.streams: Streams = forms.streams
        self.terms = forms.next
        self.axes = self._axes()

    def memory(self) -> tuple[Memory, tuple[Statement, ...]]:
        logs = Logarithms(self.streams)
        decay, log_decay, bound, floored = self._decay(logs)
        erasers, groups = self._groups()
        keys = tuple(self._stream("erase_key", weight, on_key=True) for weight in erasers)
        updates = tuple(self._update(key, group) for key, group in groups.items())
        readouts, equations = self._readouts()
        memory = Memory(
            self.state,
            self.new,
            self.axes.value,
            self.axes.key,
            decay,
            log_decay,
            bound,
            floored,
            keys,
            updates,
            readouts,
            tuple(logs.positive),
        )
        return memory, equations

    # --- axes ---

    def _axes(self) -> Axes:
        """The key's axis is the one that is summed over, the value's one that no key varies on."""
        reads = [*weights_of(self.terms)]
        for terms in self.forms.read.values():
            reads += weights_of(terms)
        keys = {basis.axis for basis in reads}
        if not keys:
            raise ForbiddenError("is a matrix of which no sum is read")
        if len(keys) > 1:
            raise ForbiddenError("is read along two axes")
        key, rank = keys.pop(), len(self.state.shape)
        for value in range(rank - 1, 0, -1):
            axes = Axes(rank, value, key)
            if value != key and self._fits(axes, reads):
                return axes
        return Axes(rank, None, key)

    def _fits(self, axes: Axes, reads: Iterable[Basis]) -> bool:
        assert axes.value is not None
        if any(varies(basis.weight, axes.value, axes.rank) for basis in reads):
            return False
        try:
            axes.split(self._decay_factor(axes))
            for term in self._additions(axes):
                axes.split(term)
        except ForbiddenError:
            return False
        return True

    def _decay_factor(self, axes: Axes) -> Expr:
        factor = self.terms.get(BEFORE, EMPTY)
        return definitions_written(factor, self.streams.definitions, axes.both, axes.rank)

    def _additions(self, axes: Axes) -> list[Expr]:
        constant = self.terms.get(None, EMPTY)
        if axes.value is not None:
            by = self.streams.definitions
            constant = definitions_written(constant, by, axes.both, axes.rank)
        return [term for term in Add.make_args(sympy.expand_mul(constant)) if term != 0]

    # --- decay ---

    def _decay(self, logs: Logarithms) -> tuple[Decay, Value | None, float | None, bool]:
        factor = self.terms.get(BEFORE, EMPTY)
        if factor == 0:
            raise ForbiddenError("keeps nothing of what it held")
        if self.axes.value is not None:
            factor = self._decay_factor(self.axes)
        key, value, number = self.axes.split(factor)
        if value != 1:
            raise ForbiddenError(f"decays by value, with {value}")
        if key == 1 == number:
            return Decay.NONE, None, 0.0, False
        kind = Decay.HEAD if key == 1 else Decay.KEY
        written = logs.of(self.terms[BEFORE])
        low = interval(written, self.streams.definitions).low
        floored = low < FLOOR
        if floored:
            written = maximum(written, FLOOR)
        stream = self._stream("log_decay", written, on_key=kind is Decay.KEY)
        return kind, stream, (float(FLOOR) if floored else low), floored

    # --- what a step adds and takes away ---

    def _groups(self) -> tuple[list[Expr], dict[Expr, _Group]]:
        erasers: list[Expr] = []
        groups: dict[Expr, _Group] = {}
        for basis, coefficient in self.terms.items():
            if basis is None or basis.is_whole:
                continue
            if basis.after:
                raise ForbiddenError("reads its own new value")
            erasers.append(basis.weight)
            for term in Add.make_args(sympy.expand_mul(coefficient)):
                key, value, number = self.axes.split(term)
                if value != 1:
                    raise ForbiddenError(f"scales what it reads by value, with {value}")
                erased = groups.setdefault(key, _Group()).erased
                erased[len(erasers) - 1] = erased.get(len(erasers) - 1, EMPTY) - number
        for term in self._additions(self.axes):
            key, value, number = self.axes.split(term)
            groups.setdefault(key, _Group()).terms.append((value, number))
        return erasers, groups

    def _update(self, key: Expr, group: _Group) -> Update:
        value = scale = None
        if len(group.terms) == 1 and self.axes.value is not None:
            ((factor, number),) = group.terms
            value = self._stream("value", factor, on_value=True)
            scale = None if number == 1 else self._stream("scale", number)
        elif group.terms:
            value = self._stream("value", Add(*(v * n for v, n in group.terms)), on_value=True)
        return Update(
            self._stream("key", key, on_key=True),
            value,
            scale,
            {read: self._stream("erase", number) for read, number in group.erased.items()},
        )

    # --- what is read ---

    def _readouts(self) -> tuple[tuple[Readout, ...], tuple[Statement, ...]]:
        reads: dict[Basis, Readout] = {}
        equations = []
        for value, terms in self.forms.read.items():
            for basis in weights_of(terms):
                if basis not in reads:
                    query = self._stream("query", basis.weight, on_key=True)
                    shape = self.axes.shape(self.state, on_key=False, on_value=True)
                    read = self.streams.new(f"{self.new.name}_read", shape)
                    reads[basis] = Readout(read, query, basis.after)
            equations.append(Statement(value, self._equation(value, terms, reads)))
        return tuple(reads.values()), tuple(equations)

    def _equation(self, value: Value, terms: Terms, reads: Mapping[Basis, Readout]) -> Expr:
        total = EMPTY
        for basis, coefficient in terms.items():
            if basis is None:
                total += coefficient
                continue
            read: Expr = reads[basis].value
            if reads[basis].value.shape != value.shape:
                moved = moved_axes(reads[basis].value.shape, value.shape)
                if moved is None:
                    raise ForbiddenError(f"hands {value} on along other axes")
                ranks = len(reads[basis].value.shape), len(value.shape)
                read = self.streams.view(read, moved, *ranks)
            total += coefficient * read
        return total

    def _stream(
        self, name: str, expression: Expr, *, on_key: bool = False, on_value: bool = False
    ) -> Value:
        shape = self.axes.shape(self.state, on_key, on_value)
        return self.streams.emit(f"{self.new.name}_{name}", expression, shape)
