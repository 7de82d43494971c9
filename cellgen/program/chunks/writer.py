"""Write the statements of a chunk: values with an axis of steps, and what they are made of.

Input: a layer, whose streams are values of one step. Output: the same over the steps of a chunk,
with statements over them, as a ``ChunkProgram``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import shape_of
from cellgen.language.value import Apply, B, Dim, Role, Shape, Value
from cellgen.program.chunks.layers import Layer
from cellgen.program.rewrites.unused import drop_dead, merge_equal
from cellgen.program.rewrites.zeros import drop_zeros
from cellgen.program.simplify import simplify
from cellgen.program.ssa import Program, Statement

ONE = Integer(1)


@dataclass(frozen=True)
class ChunkProgram:
    """A layer over the steps of a chunk.

    ``first`` are the layer's states where the chunk starts, ``last`` where it ends; ``streams``
    maps values of a step to those of the steps; so does ``formed`` for what the layer gives at each
    step: a state before it and after it, or what is read of a memory. With gaps, ``restart`` is 1
    at steps that begin with the initial state, and ``hold`` at those that leave a delay as it is;
    the streams of steps that are left out change nothing.

    ``factored`` is the same of plain products, for rows of which ``marks``, a result of it, is 0
    throughout; elsewhere an exponential may overflow. Where ``bound`` is proven for the decays of a
    step, no chunk of at most ``safe_steps`` has such rows.
    """

    layer: Layer
    program: Program
    first: tuple[Value, ...]
    last: tuple[Value, ...]
    streams: Mapping[Value, Value]
    formed: Mapping[Value, Value]
    restart: Value | None = None
    hold: Value | None = None
    factored: Program | None = None
    marks: Value | None = None
    safe_steps: int = 0


@dataclass
class Chunk:
    """What is written of a chunk so far."""

    cell: str
    length: Dim
    gaps: bool
    initials: Mapping[str, float]
    statements: list[Statement] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    names: Names = field(default_factory=lambda: Names(()))

    def argument(self, name: str, shape: Shape) -> Value:
        """Declare an argument."""
        value = self._new(name, shape)
        self.arguments.append(value)
        return value

    def emit(self, name: str, expression: Expr, shape: Shape | None = None) -> Value:
        """Define a value, one operator of others or pointwise work."""
        target = self._new(name, shape_of(expression) if shape is None else shape)
        self.statements.append(Statement(target, expression))
        return target

    def apply(self, name: str, op: str, *operands: Value, by: Iterable[Expr] = ()) -> Value:
        """Define a value as one operator of others, by some attributes."""
        return self.emit(name, Apply(op, operands, by))

    def _new(self, name: str, shape: Shape) -> Value:
        order = len(self.arguments) + len(self.statements)
        return Value(self.names.fresh(name), shape, Role.LOCAL, "", order)

    def flags(self, name: str, rank: int) -> Value | None:
        """Flags of steps where a chunk may have gaps: (B, 1, ..., C, 1), in so many axes."""
        if not self.gaps:
            return None
        return self.argument(name, (B, *(ONE,) * (rank - 3), self.length, ONE))

    def program(self, function: str, results: Iterable[Value]) -> Program:
        """The program of some results."""
        statements, kept = tuple(self.statements), tuple(dict.fromkeys(results))
        whole = Program(self.cell, function, tuple(self.arguments), statements, kept)
        whole.verify()
        return simplify(whole, (merge_equal, drop_zeros, drop_dead))
