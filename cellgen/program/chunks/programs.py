"""Make programs of whole chunks: each layer's, over C consecutive steps of every row and head.

Input: a ``Definition``. Output: ``ChunkPrograms``. A chunk is to a layer what a step is to a cell:
a Program takes the state that a chunk starts from and the streams of its steps, and gives what the
steps read and the state that it ends with. It is a Program like any other: ``interpret``,
``adjoint`` and ``tangent`` work on it. Steps lie along the axis before the last, heads in front.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.errors import DerivationError
from cellgen.language.cell import Definition
from cellgen.language.value import Dim, Value
from cellgen.program.chunks.analyse import form_over_time
from cellgen.program.chunks.layers import (
    Delay,
    FormOverTime,
    Layer,
    LinearScan,
    MaxPlusScan,
    Refusal,
)
from cellgen.program.chunks.of_memory import memory_program
from cellgen.program.chunks.of_scan import delay_program, max_plus_program, scan_program
from cellgen.program.chunks.writer import Chunk, ChunkProgram
from cellgen.program.identity import once_for_each

NO_FORM = "derivation.chunks"
"""The code of the error for a cell without a form over time."""
NAMES = ("C", "L", "Q", "steps")
"""The first of these that is no dimension of a cell counts the steps of its chunks."""


@dataclass(frozen=True)
class ChunkPrograms:
    """A cell in chunks of ``length`` steps.

    ``layers`` in the order of ``form.layers``; between them ``form.pre`` forms streams of all
    steps, row by row, behind them ``form.post`` the outputs. With ``gaps`` steps may be left out,
    and begin with the initial state.
    """

    definition: Definition
    form: FormOverTime
    length: Dim
    layers: tuple[ChunkProgram, ...]
    gaps: bool

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Outputs over time; of memories only what they hold at the end is formed."""
        memories = {memory.next for memory in self.form.memories}
        return tuple(v for v in self.definition.outputs if v not in memories)


def chunk_programs(definition: Definition, gaps: bool = False) -> ChunkPrograms:
    """Derive the programs of a cell's chunks, once for each definition.

    Raises:
        DerivationError: a cell without a form over time, with the statement that forbids it; with
            ``gaps``, a memory that starts from a value other than 0.
    """
    return _with_gaps(definition) if gaps else _without_gaps(definition)


@once_for_each
def _without_gaps(definition: Definition) -> ChunkPrograms:
    return _derived(definition, False)


@once_for_each
def _with_gaps(definition: Definition) -> ChunkPrograms:
    return _derived(definition, True)


def _derived(definition: Definition, gaps: bool) -> ChunkPrograms:
    form = form_over_time(definition)
    if form.refusal is not None:
        states = ", ".join(map(str, form.refusal.states))
        raise DerivationError(
            f"{definition.name} has no form over time: {states}: {form.refusal.reason}; it runs "
            f"step by step",
            code=NO_FORM,
        )
    if gaps:
        _require_zeros(definition, form)
    taken = {str(dim) for dim in definition.dims}
    length = Dim(next(name for name in NAMES if name not in taken))
    layers = [layer for layer in form.layers if not isinstance(layer, Refusal)]
    programs = tuple(_program(definition, layer, length, gaps) for layer in layers)
    return ChunkPrograms(definition, form, length, programs, gaps)


def _require_zeros(definition: Definition, form: FormOverTime) -> None:
    for memory in form.memories:
        number = definition.initial_of(memory.state)
        if number != 0:
            raise DerivationError(
                f"{definition.name}: {memory.state} starts from {number}; in chunks a memory can "
                f"be reset to 0 alone; declare it without initial, or run step by step",
                code=NO_FORM,
            )


def _program(definition: Definition, layer: Layer, length: Dim, gaps: bool) -> ChunkProgram:
    chunk = Chunk(definition.name, length, gaps, definition.initials)
    if isinstance(layer, Delay):
        return delay_program(chunk, layer)
    if isinstance(layer, MaxPlusScan):
        return max_plus_program(chunk, layer)
    if isinstance(layer, LinearScan):
        return scan_program(chunk, layer)
    return memory_program(chunk, layer)
