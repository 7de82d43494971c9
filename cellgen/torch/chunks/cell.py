"""A cell over time in torch, by layers of whole chunks; every derivative is torch's.

Input: the tensors of a call by name. Output: outputs over time and final states by name. It runs
on whatever device the tensors are, needs no kernel, and is the reference of those of devices.
Tensors of 16 bits are computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cellgen.language.cell import Definition
from cellgen.language.value import Role
from cellgen.program.chunks.programs import ChunkPrograms, chunk_programs
from cellgen.runtime.options import Options
from cellgen.torch.chunks.layer import Tensors, TorchLayer, row_sizes
from cellgen.torch.chunks.rows import StepRows, rows_of_call
from cellgen.torch.chunks.spelled import Sizes, spelled
from cellgen.torch.errors import TensorError

WIDE = (torch.float64, torch.float32)
"""The types that chunks are computed in."""


@dataclass(frozen=True)
class HowRun:
    """How a sequence is run: steps of a ``chunk``, and the options of its call.

    With ``narrow`` products have operands in bfloat16. ``stored``: the type in which kernels would
    hold the rows of keys and values that a memory is handed.
    """

    chunk: int
    narrow: bool
    options: Options
    stored: torch.dtype | None = None


class LayersOverTime:
    """The layers of a cell; with ``gaps``, of sequences whose steps may be left out."""

    def __init__(self, definition: Definition, gaps: bool) -> None:
        programs: ChunkPrograms = chunk_programs(definition, gaps)
        form = programs.form
        assert form.post is not None
        self.layers = tuple(
            TorchLayer(
                chunk,
                form.pre[chunk.layer.states],
                [definition.next_state(state) for state in chunk.layer.states],
                str(programs.length),
            )
            for chunk in programs.layers
        )
        self.outputs = tuple(map(str, programs.outputs))
        self.post = spelled(form.post)
        self.reads = tuple(map(str, form.post.arguments))
        declared = [v for v in definition.declared if v.role is not Role.STATE]
        self.inputs = frozenset(str(v) for v in declared if v.role is Role.INPUT)
        self.by_batch = frozenset(
            str(v) for v in declared if v.is_batched and v.role is not Role.INPUT
        )

    def run(
        self,
        tensors: Mapping[str, Tensor],
        rows: StepRows,
        sizes: Sizes,
        how: HowRun,
    ) -> tuple[Tensors, Tensors]:
        """Outputs over time, and final states."""
        by_row = {name: self._by_row(name, tensor, rows) for name, tensor in tensors.items()}
        last: Tensors = {}
        for layer in self.layers:
            last |= layer.run(by_row, tensors, rows, sizes, how.chunk, how.narrow, how.stored)
        post = self.post(
            {name: by_row[name] for name in self.reads}, row_sizes(rows, sizes), how.narrow
        )
        by_row |= post
        every = how.options.every
        return {name: rows.output(rows.by_step(by_row[name]), every) for name in self.outputs}, last

    def _by_row(self, name: str, tensor: Tensor, rows: StepRows) -> Tensor:
        if name in self.inputs:
            return rows.live_input(rows.ordered(tensor))
        if name in self.by_batch:
            return rows.live(tensor.unsqueeze(0).expand(rows.steps, *tensor.shape))
        return tensor


class ChunkedCell:
    """A cell by layers of whole chunks, of sequences without gaps and with."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        memories = chunk_programs(definition).form.memories
        self.positive = tuple(
            (str(value), str(memory.state)) for memory in memories for value in memory.positive
        )
        self.unformed = frozenset(str(memory.next) for memory in memories)
        """Outputs over time that are memories: what they hold at the end is formed alone."""

        self._over_time: dict[bool, LayersOverTime] = {}

    def derive(self, gaps: bool) -> None:
        """Derive the programs of sequences without gaps, or with; a run needs them."""
        if gaps not in self._over_time:
            self._over_time[gaps] = LayersOverTime(self.definition, gaps)

    def run(
        self,
        tensors: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        sizes: Sizes,
        tables: tuple[Tensor | None, Tensor | None, Tensor | None],
        how: HowRun,
        learning: frozenset[str],
    ) -> tuple[Tensors, Tensors]:
        """Outputs over time and final states of a call, in the type of its tensors.

        Tensors that are not ``learning`` get no gradient.
        """
        like = next(iter(tensors.values()))
        rows = rows_of_call(like, sizes, tables, how.options)
        over_time = self._over_time[rows.valid is not None]
        read = {n: wide(t if n in learning else t.detach()) for n, t in tensors.items()}
        read |= {n: wide(like).new_full((), number) for n, number in scalars.items()}
        with torch.autocast(like.device.type, enabled=False):
            outputs, last = over_time.run(read, rows, sizes, how)
        return _as_type(outputs, like.dtype), _as_type(last, like.dtype)

    def check_positive(self, tensors: Mapping[str, Tensor], valid: Tensor | None) -> None:
        """Look at decays that are weights or inputs, at ``valid`` steps. Raises TensorError."""
        inputs = {str(value) for value in self.definition.with_role(Role.INPUT)}
        for name, state in self.positive:
            tensor = tensors[name].detach()
            numbers = tensor[valid] if valid is not None and name in inputs else tensor
            if numbers.numel() and float(numbers.min()) < 0:
                raise TensorError(
                    f"{self.definition.name}: {name} is {float(numbers.min()):g} somewhere, "
                    f"expected numbers that are not negative: {state} decays by it, and in chunks "
                    f"its logarithm is taken; run the cell step by step, form='step'"
                )


def wide(tensor: Tensor) -> Tensor:
    """A tensor in the type that chunks are computed in."""
    return tensor if tensor.dtype in WIDE else tensor.to(torch.float32)


def _as_type(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensors:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}
