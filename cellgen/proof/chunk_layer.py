"""Run one layer of a cell over the chunks of a sequence with NumPy, forward and back.

Input: a layer's programs, its streams. Output: what is formed at each step, last states; gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cellgen.program.chunks.layout import StreamLayout
from cellgen.program.chunks.writer import ChunkProgram
from cellgen.program.closures import Array
from cellgen.program.derive import adjoint
from cellgen.program.identity import once_for_each
from cellgen.program.interpret import interpret
from cellgen.program.ssa import Program

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Adjoint:
    """A program's adjoint: what it takes beside its arguments, and what it gives."""

    program: Program
    upstream: Mapping[str, str]
    """Names of upstream gradients by results."""
    gradients: Mapping[str, str]
    """Names of gradients by arguments."""


@once_for_each
def adjoint_of(program: Program) -> Adjoint:
    """Derive the adjoint of a program by all its arguments, once."""
    full, adjoints = adjoint(program, program.results, program.arguments)
    wanted = tuple(adjoints[value] for value in program.arguments)
    upstream = full.arguments[len(program.arguments) :]
    return Adjoint(
        full.restrict(f"{program.function}_adjoint", wanted, ()),
        {str(r): str(d) for r, d in zip(program.results, upstream, strict=True)},
        {str(a): str(d) for a, d in zip(program.arguments, wanted, strict=True)},
    )


@dataclass
class LayerRun:
    """A layer's run over the chunks of a sequence, by each of some programs.

    ``starts`` holds what each chunk started from, for each program; ``marked`` the rows, for each
    head, in which products of the factored program may overflow.
    """

    chunk: ChunkProgram
    layout: StreamLayout
    streams: Arrays
    programs: tuple[Program, ...]
    sizes: Mapping[str, int]
    steps: str
    """The dimension that counts the steps of a chunk."""
    cuts: tuple[slice, ...]
    starts: list[list[list[Array]]] = field(default_factory=list)
    marked: Array | None = None

    def forward(self, first: Sequence[Array]) -> Arrays:
        """What is formed at each step, and the last states."""
        return self._chosen([self._forward(program, first) for program in self.programs])

    def backward(self, above: Mapping[str, Array], last: Sequence[Array]) -> Arrays:
        """Gradients of streams and first states, of what reaches steps and last states."""
        pairs = zip(self.programs, self.starts, strict=True)
        return self._chosen([self._backward(p, starts, above, last) for p, starts in pairs])

    def _chosen(self, results: Sequence[Arrays]) -> Arrays:
        """What the exact program gives for rows that are marked, the other for the rest."""
        if len(results) == 1:
            return results[0]
        assert self.marked is not None
        marked = self.marked[..., None, None] > 0
        exact, factored = results
        return {name: np.where(marked, array, factored[name]) for name, array in exact.items()}

    def _forward(self, program: Program, first: Sequence[Array]) -> Arrays:
        chunk, now = self.chunk, list(first)
        pieces: dict[str, list[Array]] = {str(over): [] for over in chunk.formed.values()}
        starts: list[list[Array]] = []
        self.starts.append(starts)
        for cut in self.cuts:
            starts.append(now)
            formed = interpret(program, self.arguments(now, cut), self._sizes(cut))
            for name, list_of in pieces.items():
                list_of.append(formed[name])
            now = [formed[str(value)] for value in chunk.last]
            if chunk.marks is not None and str(chunk.marks) in formed:
                marks = np.real(formed[str(chunk.marks)]).max(axis=(-2, -1))
                self.marked = marks if self.marked is None else np.maximum(self.marked, marks)
        joined = {name: np.concatenate(of, axis=-2) for name, of in pieces.items()}
        return joined | {str(v): array for v, array in zip(chunk.last, now, strict=True)}

    def _backward(
        self,
        program: Program,
        starts: Sequence[Sequence[Array]],
        above: Mapping[str, Array],
        last: Sequence[Array],
    ) -> Arrays:
        back, chunk, now = adjoint_of(program), self.chunk, list(last)
        pieces: dict[str, list[Array]] = {str(over): [] for over in chunk.streams.values()}
        for cut, first in reversed(list(zip(self.cuts, starts, strict=True))):
            arguments = self.arguments(first, cut)
            for name, array in above.items():
                arguments[back.upstream[name]] = array[..., cut, :]
            for value, array in zip(chunk.last, now, strict=True):
                arguments[back.upstream[str(value)]] = array
            formed = interpret(back.program, arguments, self._sizes(cut))
            for name, list_of in pieces.items():
                list_of.insert(0, formed[back.gradients[name]])
            now = [formed[back.gradients[str(value)]] for value in chunk.first]
        joined = {name: np.concatenate(of, axis=-2) for name, of in pieces.items()}
        return joined | {str(v): array for v, array in zip(chunk.first, now, strict=True)}

    def arguments(self, first: Sequence[Array], cut: slice) -> Arrays:
        """What a program takes for one chunk."""
        streams = {name: array[..., cut, :] for name, array in self.streams.items()}
        return streams | {str(v): a for v, a in zip(self.chunk.first, first, strict=True)}

    def _sizes(self, cut: slice) -> dict[str, int]:
        return {**self.sizes, self.steps: cut.stop - cut.start}
