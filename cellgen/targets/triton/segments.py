"""Cut the steps of a linear scan into segments that run beside each other.

Input: a kernel whose states are a linear scan. Output: kernels that say what a segment does as a
whole, ``x -> A x + b``, forward and back; from these each segment knows what it starts from. Each
stream is read twice: that pays where rows and units are too few for a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from cellgen.language.value import Value
from cellgen.program.chunks.layers import LinearScan
from cellgen.program.derive import adjoint
from cellgen.program.ssa import Program
from cellgen.targets.triton.expressions import triton_number
from cellgen.targets.triton.names import triton_name
from cellgen.targets.triton.rows import RowKernel
from cellgen.targets.triton.scan_text import (
    Ends,
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

    def starts(self, states: Sequence[Value]) -> Ends:
        """States behind a segment, of those before it."""
        names = [triton_name(state) for state in states]
        entries = [*self.all_factors, *self.all_terms]
        return Ends(entries, ", ".join(names), self._combined(names, turned=False), len(entries))

    def starts_back(self, carries: Sequence[str]) -> Ends:
        """Gradients before a segment, of those behind it."""
        size = len(self.all_factors) + self.count
        combined = self._combined(carries, turned=True)
        return Ends([], ", ".join(carries), combined, size, self.all_factors, self.all_terms)

    def _combined(self, of: Sequence[str], *, turned: bool) -> str:
        """A x + b; where states began anew A is 0, and nothing of x shows, if it is no number."""
        rows = []
        for i, term in enumerate(self.all_terms):
            names = [self.factor(j, i) if turned else self.factor(i, j) for j in range(self.count)]
            moved = [f"tl.where({f} == 0, 0.0, {f} * {x})" for f, x in zip(names, of, strict=True)]
            rows.append(" + ".join([*moved, term]))
        return ", ".join(rows)

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


def whole(kernel: RowKernel, segment: Segment) -> RowKernelSource:
    """The kernel of A and b of each segment, from its first step to its last."""
    arrays = RowArrays(kernel.axes)
    arrays.read(segment.program.arguments)
    arrays.by_pointer["ends_ptr"] = f"{kernel.name}.ends"
    entries = [*segment.all_factors, *segment.all_terms]
    diagonal = {segment.factor(i, i) for i in range(segment.count)}
    begun = zip(segment.all_terms, map(triton_number, kernel.initials), strict=True)
    before, lines, _ = lines_of_program(segment.program)
    text = RowKernelText(
        f"{kernel.name}_whole",
        before=before,
        lines=lines,
        entries=entries,
        updates=_held(entries, segment.updates()),
        starts=[(entry, "1.0" if entry in diagonal else "0.0") for entry in entries],
        anew=[*((factor, "0.0") for factor in segment.all_factors), *begun],
    )
    return spell("triton/scan_ends.j2", text, arrays, segment.program)


def whole_back(
    kernel: RowKernel, program: Program, upstream: Mapping[Value, Value], reached: Set[Value]
) -> RowKernelSource:
    """The kernel of what each segment hands back when nothing reaches it from behind."""
    arrays = RowArrays(kernel.axes)
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
    arrays.by_pointer["ends_ptr"] = f"{kernel.name}.back_ends"
    carries = [f"{triton_name(upstream[following])}_carry" for following in kernel.following]
    before, lines, _ = lines_of_program(program)
    text = RowKernelText(
        f"{kernel.name}_whole_back",
        before=[*zeros, *before],
        lines=[*opening, *lines],
        entries=carries,
        updates=_held(carries, [triton_name(result) for result in program.results]),
        starts=[(carry, "0.0") for carry in carries],
        anew=[(carry, "0.0") for carry in carries],
        is_back=True,
    )
    return spell("triton/scan_ends.j2", text, arrays, program)


def _held(entries: Sequence[str], updates: Sequence[str]) -> list[str]:
    """Updates of steps that there are."""
    pairs = zip(entries, updates, strict=True)
    return [f"tl.where(held, {update}, {entry}).to(ACC)" for entry, update in pairs]
