"""Lower the arrays that the caller of a function over time gives and gets.

Input: ``SequenceSchedule`` and the function's interface. Output: their tables in a ``TimePlan``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sympy import Expr

from cellgen.language.value import Role, Value
from cellgen.runtime.abi import Argument
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import c_name, final_of, gradient_of
from cellgen.schedule.lower.lengths import length, row_length, total
from cellgen.schedule.lower.plan import Series
from cellgen.schedule.lower.touched import read_from_memory, views_written, writes
from cellgen.schedule.over_time import Part, SequenceSchedule, Storage
from cellgen.schedule.schedule import BufferKind


@dataclass(frozen=True)
class CallerArrays:
    """The arrays of one function; ``stepped`` is what runs at every step."""

    schedule: SequenceSchedule
    signature: Signature
    stepped: Part
    is_backward: bool

    @property
    def members(self) -> tuple[Argument, ...]:
        """Members of the argument struct, then results."""
        return (*self.signature.struct_members, *self.signature.results)

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every value that the caller gives or gets, by its name in C."""
        programs = self.schedule.programs
        values = [*programs.arguments, *programs.outputs, *programs.saved, *programs.gradients]
        values += [*programs.upstream.values(), *(link.passed for link in programs.links)]
        return {c_name(str(value.name)): value for value in values}

    def required(self) -> tuple[str, ...]:
        """Members that are never missing; outputs over time may be, where the last step is."""
        outputs = {str(value.name) for value in self.schedule.programs.outputs}
        results = set(self.signature.results)
        return tuple(
            a.name
            for a in self.members
            if not a.is_scalar
            and not a.optional
            and not (a in results and (a.saved or a.name in outputs))
        )

    def row_arrays(self) -> tuple[tuple[str, Expr], ...]:
        """What has a row for each of the batch that no stride says: once, or saved."""
        arrays: list[tuple[str, Expr]] = []
        for item in self.members:
            by_row = item.shape[:1] == ("B",) or (item.saved and item.shape[:2] == ("T", "B"))
            if by_row:
                arrays.append((item.name, self._row_of(item.name)))
        return tuple(arrays)

    def summed(self) -> tuple[tuple[str, Expr], ...]:
        """Results that are sums over all rows and steps: gradients of weights and numbers."""
        results = self.signature.results if self.is_backward else ()
        sums = [item.name for item in results if not {"T", "B"} & set(item.shape)]
        return tuple((name, length(self.values[c_name(name)].shape)) for name in sums)

    def _row_of(self, name: str) -> Expr:
        """How long a row is: of a value, or of a state's last value or its gradient."""
        if c_name(name) in self.values:
            return row_length(self.values[c_name(name)])
        states = [link.next for link in self.schedule.programs.links]
        last = {
            c_name(own): state
            for state in states
            for own in (final_of(str(state.name)), gradient_of(final_of(str(state.name))))
        }
        return row_length(last[c_name(name)])

    def series(self) -> tuple[Series, ...]:
        """Every array over time of the call."""
        programs = self.schedule.programs
        timed = [a for a in self.members if a.shape[:1] == ("T",) and not a.saved]
        series = [self._strided(item) for item in timed]
        after = {link.next for link in programs.links}
        for value in programs.saved if self.is_backward else ():
            across = not self.schedule.by_step and self.is_saved_across(value)
            if value in after or across:
                width = row_length(value)
                series.append(Series(str(value.name), width, strided=False, across=across))
        return tuple(series)

    def _strided(self, item: Argument) -> Series:
        programs = self.schedule.programs
        outputs = {str(value.name) for value in programs.outputs}
        inputs = {str(v.name) for v in programs.definition.with_role(Role.INPUT)}
        after = {str(link.next.name) for link in programs.links}
        repeated = self.is_repeated(item.name)
        staged = (item.name in inputs or repeated) and self._steps_read(item.name)
        across = self.is_backward and item.name in self._read_across()
        width = row_length(self.values[c_name(item.name)])
        if self.schedule.by_step:
            output = item.name in outputs and not self.is_backward
            return Series(item.name, width, strided=False, output=output)
        return Series(
            item.name,
            width,
            output=item.name in outputs and not self.is_backward,
            repeats_when_masked=item.name in outputs - after and not self.is_backward,
            repeated=repeated and (staged or across),
            staged=staged,
            across=across,
            scattered=self.is_backward
            and item in self.signature.results
            and item.name not in self.written_in_place,
        )

    def _steps_read(self, name: str) -> bool:
        storage = self.stepped.storage
        return any(str(b.value.name) == name and b.kind is not BufferKind.RESULT for b in storage)

    @cached_property
    def written_in_place(self) -> frozenset[str]:
        """Results over time that only groups of the deferred part write, from their tiles."""
        if not self.is_backward:
            return frozenset()
        part = self.schedule.deferred
        others = read_from_memory(part.stages)
        for stage in part.stages:
            rows = {view.buffer for view in views_written(stage) if len(view.shape) == 2}
            others |= set(writes(stage)) - rows
        results = {
            b for b in part.function.of_kind(BufferKind.RESULT) if part.storage[b] is Storage.TIME
        }
        return frozenset(buffer.name for buffer in results - others)

    def is_saved_across(self, value: Value) -> bool:
        """Whether the deferred part reads a saved array, of which a row block's rows lie apart."""
        return value in self.schedule.programs.saved and str(value.name) in self._read_across()

    def is_repeated(self, name: str) -> bool:
        """Whether an argument is the gradient of an output over time that is no state."""
        programs = self.schedule.programs
        after = {link.next for link in programs.links}
        upstream = {str(g.name) for output, g in programs.upstream.items() if output not in after}
        return self.is_backward and name in upstream

    def _read_across(self) -> set[str]:
        """Names of the arrays over time that the deferred part reads."""
        return {
            str(buffer.value.name)
            for buffer, place in self.schedule.deferred.storage.items()
            if place is Storage.TIME and buffer.kind is not BufferKind.RESULT
        }

    def has_strides(self, value: Value) -> bool:
        """Whether the caller says how far the steps and rows of an array over time are apart."""
        return any(a.name == str(value.name) and not a.saved for a in self.members)

    def zeros(self) -> Expr | None:
        """Length of a row of zeros for upstream gradients that are left out."""
        rows = [self._row_of(a.name) for a in self.signature.arguments if a.optional]
        return total(list(dict.fromkeys(rows)))
