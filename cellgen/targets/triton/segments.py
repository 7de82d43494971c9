"""Cut the steps of a linear scan into segments that run beside each other.

Input: a kernel whose states are a linear scan. Output: kernels that say what a segment does as a
whole, ``x -> A x + b``, forward and back; from these each segment knows what it starts from. Each
stream is read twice by two launches, or once by one, whose programs hold their steps in registers.

In that one a program takes its segment from a counter, in order, so that those that it waits for
have begun. It tells A and b, looks for the nearest segment before whose end is known, and applies
the A and b between in the order of the steps: what it finds hangs on no time, to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from cellgen.language.value import Value
from cellgen.program.chunks.layers import LinearScan
from cellgen.program.derive import adjoint
from cellgen.program.ssa import Program
from cellgen.targets.triton.expressions import triton_number
from cellgen.targets.triton.names import triton_name
from cellgen.targets.triton.rows import RowKernel, is_by_row
from cellgen.targets.triton.scan_text import (
    EndAccess,
    Ends,
    Once,
    RowArrays,
    RowKernelSource,
    RowKernelText,
    lines_of_program,
    spell,
)


@dataclass(frozen=True)
class Segment:
    """A linear scan over several steps, from the factors and terms of ``program``.

    ``is_back``: that what its adjoint hands back hangs on no state.
    """

    program: Program
    factors: Mapping[tuple[int, int], Value]
    terms: tuple[Value, ...]
    is_back: bool

    @property
    def count(self) -> int:
        """Of states."""
        return len(self.terms)

    def factor(self, i: int, j: int) -> str:
        """The name of an entry of A."""
        return f"factor_{i}{j}"

    @property
    def all_factors(self) -> list[str]:
        """A, row by row."""
        return [self.factor(i, j) for i in range(self.count) for j in range(self.count)]

    @property
    def all_terms(self) -> list[str]:
        """B."""
        return [f"term_{i}" for i in range(self.count)]

    @property
    def entries(self) -> list[str]:
        """A, then b."""
        return [*self.all_factors, *self.all_terms]

    def starts(self, states: Sequence[Value]) -> Ends:
        """States behind a segment, of those before it."""
        names = [triton_name(state) for state in states]
        combined = ", ".join(self._combined(names, turned=False))
        return Ends(self.entries, ", ".join(names), combined, len(self.entries))

    def starts_back(self, carries: Sequence[str]) -> Ends:
        """Gradients before a segment, of those behind it."""
        combined = ", ".join(self._combined(carries, turned=True))
        size = len(self.entries)
        return Ends([], ", ".join(carries), combined, size, self.all_factors, self.all_terms)

    def _combined(self, of: Sequence[str], *, turned: bool, end: str = "") -> list[str]:
        """A x + b; where states began anew A is 0, and nothing of x shows, if it is no number.

        ``end`` is what the names of A and b end in.
        """
        rows = []
        for i, term in enumerate(self.all_terms):
            names = [self.factor(j, i) if turned else self.factor(i, j) for j in range(self.count)]
            moved = [
                f"tl.where({f}{end} == 0, 0.0, {f}{end} * {x})"
                for f, x in zip(names, of, strict=True)
            ]
            rows.append(" + ".join([*moved, f"{term}{end}"]))
        return rows

    def once(self, first: RowKernelText, begun: Sequence[tuple[str, str]]) -> Once:
        """Of the pass forward: ``begun`` are states and pointers to first ones."""
        every = _accesses(self.entries, "ends_ptr", len(self.entries))
        return self._once(first, begun, [], [], every, every, turned=False)

    def once_back(self, first: RowKernelText, begun: Sequence[tuple[str, str]]) -> Once:
        """Of the pass back, which reads what the pass forward told of A."""
        factors = _accesses(self.all_factors, "ends_ptr", len(self.entries))
        terms = _accesses(self.all_terms, "back_ends_ptr", self.count)
        named = [f"{t} = {c}" for t, c in zip(self.all_terms, first.entries, strict=True)]
        return self._once(first, begun, factors, named, terms, [*factors, *terms], turned=True)

    def _once(
        self,
        first: RowKernelText,
        begun: Sequence[tuple[str, str]],
        loaded: list[EndAccess],
        named: list[str],
        stored: list[EndAccess],
        reads: list[EndAccess],
        *,
        turned: bool,
    ) -> Once:
        names = [name for name, _ in begun]
        then = self._combined(names, turned=turned, end="_then[i]")
        behind = self._combined(names, turned=turned)
        return Once(first, loaded, named, stored, [*begun], reads, then, behind)

    def updates(self) -> list[str]:
        """Entries of A, then of b, after one more step."""
        columns = [[self.factor(k, j) for k in range(self.count)] for j in range(self.count)]
        moved = {
            (i, j): self._moved(i, columns[j]) for i in range(self.count) for j in range(self.count)
        }
        updates = [" + ".join(moved[i, j]) or "0.0" for i, j in moved]
        for i, term in enumerate(self.terms):
            updates.append(" + ".join([*self._moved(i, self.all_terms), triton_name(term)]))
        return updates

    def _moved(self, i: int, column: Sequence[str]) -> list[str]:
        return [
            f"{triton_name(self.factors[i, k])} * {entry}"
            for k, entry in enumerate(column)
            if (i, k) in self.factors
        ]


def segment_of(kernel: RowKernel, scan: LinearScan, streams: Program) -> Segment | None:
    """What a segment needs; None where its streams are made of more than the kernel reads."""
    read = set(kernel.step.arguments)
    program = streams.restrict(f"{kernel.name}_whole", scan.streams, read)
    if not set(program.arguments) <= read - set(kernel.states):
        return None
    full, adjoints = adjoint(kernel.step, kernel.step.results, kernel.states)
    back = full.restrict("back", [adjoints[state] for state in kernel.states], ())
    is_back = not set(back.arguments).intersection(kernel.states)
    return Segment(program, scan.factors, scan.terms, is_back)


def formed_apart(program: Program, states: Collection[Value]) -> int:
    """How many values of a row are formed without states and then meet them, or are results.

    A program whose steps all stand in its text may form these of all steps before it has a state.
    """
    waiting, met = set(states), set(program.results)
    for statement in program.statements:
        if waiting.intersection(statement.operands):
            waiting.add(statement.target)
            met.update(statement.operands)
    apart = (s.target for s in program.statements if s.target not in waiting)
    return sum(is_by_row(value) for value in met.intersection(apart))


def _accesses(names: Sequence[str], pointer: str, many: int) -> list[EndAccess]:
    return [EndAccess(name, pointer, place, many) for place, name in enumerate(names)]


def whole(kernel: RowKernel, segment: Segment) -> RowKernelSource:
    """The kernel of A and b of each segment, from its first step to its last."""
    arrays = RowArrays(kernel.axes)
    text = whole_text(kernel, segment, arrays)
    arrays.by_pointer["ends_ptr"] = f"{kernel.name}.ends"
    return spell("triton/scan_ends.j2", text, arrays, [segment.program])


def whole_text(kernel: RowKernel, segment: Segment, arrays: RowArrays) -> RowKernelText:
    """What forms A and b of a segment of ``arrays``."""
    arrays.read(segment.program.arguments)
    entries = segment.entries
    diagonal = {segment.factor(i, i) for i in range(segment.count)}
    begun = zip(segment.all_terms, map(triton_number, kernel.initials), strict=True)
    before, lines, _ = lines_of_program(segment.program)
    return RowKernelText(
        f"{kernel.name}_whole",
        before=before,
        lines=lines,
        entries=entries,
        updates=_held(entries, segment.updates()),
        starts=[(entry, "1.0" if entry in diagonal else "0.0") for entry in entries],
        anew=[*((factor, "0.0") for factor in segment.all_factors), *begun],
        streams=arrays.streams,
    )


def whole_back(
    kernel: RowKernel, program: Program, upstream: Mapping[Value, Value], reached: Set[Value]
) -> RowKernelSource:
    """The kernel of what each segment hands back when nothing reaches it from behind."""
    arrays = RowArrays(kernel.axes)
    text = whole_back_text(kernel, program, upstream, reached, arrays)
    arrays.by_pointer["ends_ptr"] = f"{kernel.name}.back_ends"
    return spell("triton/scan_ends.j2", text, arrays, [program])


def whole_back_text(
    kernel: RowKernel,
    program: Program,
    upstream: Mapping[Value, Value],
    reached: Set[Value],
    arrays: RowArrays,
) -> RowKernelText:
    """What forms that of ``arrays``."""
    arrays.read(v for v in program.arguments if v in {*kernel.weights, *kernel.streams})
    zeros, opening = [], []
    for result, gradient in upstream.items():
        name = triton_name(gradient)
        if result in kernel.following:
            above = f" + {name}_above" if result in reached else ""
            opening.append(f"{name} = {name}_carry{above}")
            if above:
                arrays.stream(f"{name}_above", f"d_{result}")
        elif gradient in program.arguments and result in reached:
            arrays.stream(name, f"d_{result}")
        elif gradient in program.arguments:
            zeros.append(f"{name} = tl.zeros([UNITS], ACC)")
    carries = [f"{triton_name(upstream[following])}_carry" for following in kernel.following]
    before, lines, _ = lines_of_program(program)
    return RowKernelText(
        f"{kernel.name}_whole_back",
        before=[*zeros, *before],
        lines=[*opening, *lines],
        entries=carries,
        updates=_held(carries, [triton_name(result) for result in program.results]),
        starts=[(carry, "0.0") for carry in carries],
        anew=[(carry, "0.0") for carry in carries],
        is_back=True,
        streams=arrays.streams,
    )


def _held(entries: Sequence[str], updates: Sequence[str]) -> list[str]:
    """Updates of steps that there are."""
    pairs = zip(entries, updates, strict=True)
    return [f"tl.where(held, {update}, {entry}).to(ACC)" for entry, update in pairs]
