"""Run a cell in chunks with NumPy, forward and back: what its chunk programs mean over a sequence.

Input: a ``Definition``, arrays, options of functions over time. Output: outputs over time and final
states; gradients of everything. Streams are formed for the rows of valid steps alone; those of
others are what changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.language.cell import Definition
from cellgen.language.value import Role, Value
from cellgen.program.chunks.layers import Delay, LinearScan, MaxPlusScan, Memory
from cellgen.program.chunks.layout import StreamLayout
from cellgen.program.chunks.programs import ChunkPrograms, chunk_programs
from cellgen.program.chunks.writer import ChunkProgram
from cellgen.program.closures import Array
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.program.ssa import Program
from cellgen.proof.chunk_layer import LayerRun, adjoint_of
from cellgen.proof.over_time import Sequence as Steps
from cellgen.runtime.call.signature import shown_steps
from cellgen.runtime.options import NONE, Options

Arrays = dict[str, Array]


@dataclass
class StreamRows:
    """Which steps of which rows are valid, in the order in which they run."""

    order: np.ndarray
    valid: np.ndarray
    """(T, B), in that order."""
    restart: np.ndarray
    held: np.ndarray
    """Steps that show what the step before showed."""

    @classmethod
    def of(cls, options: Options, steps: int, rows: int) -> StreamRows:
        """Read lengths, mask, reset and reverse."""
        order = np.arange(steps)[:: -1 if options.reverse else 1]
        inside = np.ones((steps, rows), bool)
        if options.lengths is not None:
            inside = np.arange(steps)[:, None] < np.asarray(options.lengths)
        valid = inside if options.mask is None else inside & np.asarray(options.mask)
        none = np.zeros_like(valid)
        restart = none if options.reset is None else valid & np.asarray(options.reset)
        inside, valid, restart = inside[order], valid[order], restart[order]
        started = np.cumsum(valid, axis=0) > 0
        held = none if options.zero_output_for_mask else inside & ~valid & started
        return cls(order, valid, restart, held)

    @property
    def has_gaps(self) -> bool:
        """Whether steps are left out, or begin with initial states."""
        return not self.valid.all() or bool(self.restart.any())

    def live(self, array: Array) -> Array:
        """The valid steps of (T, B, ...), row by row."""
        picked: Array = array[self.valid]
        return picked

    def placed(self, live: Array, fill: float) -> Array:
        """Rows as (T, B, ...), with a number at steps that are left out."""
        full = np.full((*self.valid.shape, *live.shape[1:]), fill, live.dtype)
        full[self.valid] = live
        return full


class ChunkRun:
    """One sequence in chunks of so many steps."""

    def __init__(
        self,
        definition: Definition,
        arguments: Mapping[str, Array],
        sizes: Mapping[str, int],
        options: Options = NONE,
        length: int = 64,
        exact: bool = False,
    ) -> None:
        self.definition, self.options, self.length = definition, options, length
        self.exact = exact
        self.sizes = dict(sizes)
        self.rows = StreamRows.of(options, sizes["T"], sizes["B"])
        self.programs: ChunkPrograms = chunk_programs(definition, self.rows.has_gaps)
        self.arguments: Arrays = {
            **{name: np.asarray(number) for name, number in definition.defaults.items()},
            **arguments,
        }
        self.by_row: Arrays = {}
        self.last: Arrays = {}
        self.passes: list[LayerRun] = []
        self._require_positive()
        for value in definition.declared:
            self._declare(value)

    def _require_positive(self) -> None:
        for memory in self.programs.form.memories:
            for value in memory.positive:
                least = np.min(np.real(self.arguments[str(value)]), initial=0.0)
                if least < 0:
                    raise ArgumentError(
                        f"{self.definition.name}: {value} is {least:g} somewhere, expected numbers "
                        f"that are not negative: {memory.state} decays by it, and in chunks its "
                        f"logarithm is taken; run the cell step by step"
                    )

    def _declare(self, value: Value) -> None:
        name = str(value)
        array = self.arguments.get(name)
        if array is None or value.role is Role.STATE:
            return
        if value.role is Role.INPUT:
            array = self.rows.live(array[self.rows.order])
        elif value.is_batched:
            steps = self.rows.valid.shape[0]
            array = self.rows.live(np.broadcast_to(array, (steps, *array.shape)))
        self.by_row[name] = array

    @property
    def _row_sizes(self) -> dict[str, int]:
        return {**self.sizes, "B": int(self.rows.valid.sum())}

    # --- forward ---

    def forward(self) -> Steps:
        """Outputs over time and final states."""
        for chunk in self.programs.layers:
            self._layer(chunk)
        post = self.programs.form.post
        assert post is not None
        formed = interpret(post, self._given(post), self._row_sizes)
        self.by_row |= {str(v): formed[str(v)] for v in post.results}
        outputs, at_end = {}, {}
        for value in self.programs.outputs:
            every = self.rows.placed(self.by_row[str(value)], 0)
            at_end[str(value)] = self._last_valid(every)
            for t in range(1, len(every)):
                held = self.rows.held[t]
                every[t][held] = every[t - 1][held]
            in_time = np.empty_like(every)
            in_time[self.rows.order] = every
            outputs[str(value)] = in_time[shown_steps(self.options)]
        return Steps(outputs, self.last, at_end)

    def _last_valid(self, every: Array) -> Array:
        last = np.zeros(every.shape[1:], every.dtype)
        for t in range(len(every)):
            last[self.rows.valid[t]] = every[t][self.rows.valid[t]]
        return last

    def _given(self, program: Program) -> Arrays:
        return {str(v): self.by_row[str(v)] for v in program.arguments}

    def _layer(self, chunk: ChunkProgram) -> None:
        layer, layout = chunk.layer, StreamLayout(chunk.layer)
        pre = self.programs.form.pre[layer.states]
        formed = interpret(pre, self._given(pre), self._row_sizes)
        streams = {
            str(over): layout.to_chunk(self.rows.placed(formed[str(value)], _neutral(layer, value)))
            for value, over in chunk.streams.items()
        }
        streams |= self._flags(chunk)
        steps, programs = self.sizes["T"], self._which(chunk)
        starts = range(0, steps, self.length)
        cuts = tuple(slice(start, min(start + self.length, steps)) for start in starts)
        name = str(self.programs.length)
        run = LayerRun(chunk, layout, streams, programs, self.sizes, name, cuts)
        self.passes.append(run)
        first = [
            layout.state_to_chunk(np.asarray(self.arguments[str(state)])) for state in layer.states
        ]
        chosen = run.forward(first)
        for value, over in chunk.formed.items():
            shape = shape_sizes(value, self.sizes)
            self.by_row[str(value)] = self.rows.live(layout.to_steps(chosen[str(over)], shape))
        following = [self.definition.next_state(state) for state in layer.states]
        for value, over in zip(following, chunk.last, strict=True):
            self.last[f"{value}_last"] = layout.state_from_chunk(chosen[str(over)])

    def _flags(self, chunk: ChunkProgram) -> Arrays:
        flags = {}
        steps, rows = self.rows.valid.shape
        for value, table in ((chunk.restart, self.rows.restart), (chunk.hold, ~self.rows.valid)):
            if value is not None:
                middle = (1,) * (len(value.shape) - 3)
                flags[str(value)] = table.T.reshape(rows, *middle, steps, 1).astype(float)
        return flags

    def _which(self, chunk: ChunkProgram) -> tuple[Program, ...]:
        """The exact program, the one of plain products, or both where rows have to be marked."""
        if chunk.factored is None or self.exact:
            return (chunk.program,)
        is_safe = self.length <= chunk.safe_steps
        return (chunk.factored,) if is_safe else (chunk.program, chunk.factored)

    # --- back ---

    def backward(self, upstream: Mapping[str, Array]) -> Arrays:
        """Gradients by argument, of what reaches outputs (``d_h``) and final states (``d_h_last``).

        Outputs that are memories reach nothing: they are not formed.
        """
        gradients: Arrays = {}
        by_row: Arrays = {}
        for value in self.programs.outputs:
            _add(by_row, str(value), self.rows.live(self._unheld(upstream[f"d_{value}"])))
        post = self.programs.form.post
        assert post is not None
        self._back(post, by_row)
        for run in reversed(self.passes):
            self._layer_back(run, by_row, upstream, gradients)
        for value in self.definition.declared:
            if str(value) in by_row and value.role is not Role.STATE:
                gradients[str(value)] = self._declared_back(value, by_row[str(value)])
        return gradients

    def _unheld(self, of_outputs: Array) -> Array:
        """Upstream gradients of all steps in their order; held ones count where they are from."""
        every = np.zeros((self.sizes["T"], *of_outputs.shape[1:]))
        every[shown_steps(self.options)] = of_outputs
        ordered: Array = every[self.rows.order]
        for t in range(len(ordered) - 1, 0, -1):
            held = self.rows.held[t]
            ordered[t - 1][held] += ordered[t][held]
        return ordered

    def _back(self, program: Program, by_row: Arrays) -> None:
        """Hand gradients of results on to arguments, row by row."""
        back = adjoint_of(program)
        arguments = self._given(program)
        for result, name in back.upstream.items():
            if result in by_row:
                arguments[name] = by_row[result]
        formed = interpret(back.program, arguments, self._row_sizes)
        passed = {str(v) for v in program.results} & {str(v) for v in program.arguments}
        for name in passed:
            by_row.pop(name, None)
        for argument, name in back.gradients.items():
            _add(by_row, argument, formed[name])

    def _layer_back(
        self,
        run: LayerRun,
        by_row: Arrays,
        upstream: Mapping[str, Array],
        gradients: Arrays,
    ) -> None:
        chunk, layout, layer = run.chunk, run.layout, run.chunk.layer
        above: Arrays = {}
        for value, over in chunk.formed.items():
            name = str(value)
            if name in by_row:
                laid = layout.to_chunk(self.rows.placed(by_row.pop(name), 0))
                _add(above, str(over), laid)
        last = []
        for state in layer.states:
            name = f"d_{self.definition.next_state(state)}_last"
            last.append(layout.state_to_chunk(upstream[name]))
        chosen = run.backward(above, last)
        for state, over in zip(layer.states, chunk.first, strict=True):
            gradients[str(state)] = layout.state_from_chunk(chosen[str(over)])
        streams = dict[str, Array]()
        for value, over in chunk.streams.items():
            shape = shape_sizes(value, self.sizes)
            streams[str(value)] = self.rows.live(layout.to_steps(chosen[str(over)], shape))
        for name, array in streams.items():
            _add(by_row, name, array)
        self._back(self.programs.form.pre[layer.states], by_row)

    def _declared_back(self, value: Value, rows: Array) -> Array:
        if value.role is Role.INPUT:
            ordered = self.rows.placed(rows, 0)
            in_time = np.empty_like(ordered)
            in_time[self.rows.order] = ordered
            return in_time
        if value.is_batched:
            total: Array = self.rows.placed(rows, 0).sum(axis=0)
            return total
        return rows


def _neutral(layer: object, value: Value) -> float:
    """What a stream is at steps that are left out."""
    if isinstance(layer, MaxPlusScan):
        return -math.inf if value == layer.other else 0.0
    if isinstance(layer, LinearScan):
        own = [factor for (i, j), factor in layer.factors.items() if i == j]
        return 1.0 if value in own else 0.0
    assert isinstance(layer, Delay | Memory)
    return 0.0


def _add(into: Arrays, name: str, array: Array) -> None:
    into[name] = into[name] + array if name in into else array
