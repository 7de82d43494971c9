"""One layer of a cell in torch: how its arrays lie, and its run over the chunks of a sequence.

Input: a ``ChunkProgram``. Output: what the layer forms at each step, and its last states. Names and
numbers are read of the derivation once; a run works on tensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cellgen.language.value import Value
from cellgen.program.chunks.layers import Delay, Layer, LinearScan, MaxPlusScan, Memory
from cellgen.program.chunks.writer import ChunkProgram
from cellgen.program.ssa import Program
from cellgen.torch.chunks.rows import StepRows
from cellgen.torch.chunks.spelled import Sizes, lengths_of, spelled
from cellgen.torch.chunks.unfit import Unfit, put_in, taken_out
from cellgen.torch.chunks.unfit_gradients import entering, leaving
from cellgen.torch.modes import is_in_forward_mode

Tensors = dict[str, Tensor]


def neutral(layer: Layer, stream: Value) -> float:
    """What a stream is at steps that are left out: what changes nothing."""
    if isinstance(layer, MaxPlusScan):
        return -math.inf if stream == layer.other else 0.0
    if isinstance(layer, LinearScan):
        own = [factor for (i, j), factor in layer.factors.items() if i == j]
        return 1.0 if stream in own else 0.0
    return 0.0


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class TorchLayer:
    """A layer over all steps of a sequence, chunk by chunk."""

    def __init__(self, chunk: ChunkProgram, pre: Program, following: Sequence[Value], steps: str):
        layer = chunk.layer
        rank = len(layer.states[0].shape)
        is_memory = isinstance(layer, Memory)
        last = (rank - 1,)
        if isinstance(layer, Memory):
            axes = (layer.value_axis, layer.key_axis)
            last = tuple(axis for axis in axes if axis is not None)  # type: ignore[assignment]
        front = [n for n in range(rank) if n not in last]
        self.is_memory, self.is_matrix = is_memory, is_memory and len(last) == 2
        self.is_delay = isinstance(layer, Delay)
        self.is_largest = isinstance(layer, MaxPlusScan)
        self.last, self.heads = last, len(front)
        self.order = (*(n + 1 for n in front), 0, *(n + 1 for n in last))
        self.back = inverse(self.order)
        self.state_order = (*front, *last)
        self.state_back = inverse(self.state_order)
        self.steps = steps
        self.pre = spelled(pre)
        self.reads = tuple(map(str, pre.arguments))
        self.program = spelled(chunk.program)
        self.factored = None if chunk.factored is None else spelled(chunk.factored)
        self.safe_steps = chunk.safe_steps
        self.streams = tuple(
            (str(value), str(over), neutral(layer, value)) for value, over in chunk.streams.items()
        )
        in_rows = layer.in_rows if isinstance(layer, Memory) else ()
        self.in_rows = frozenset(str(chunk.streams[value]) for value in in_rows)
        self.formed = tuple((str(value), str(over)) for value, over in chunk.formed.items())
        self.formed_axes = lengths_of([tuple(v.shape[n] for n in last) for v in chunk.formed])
        self.states = tuple(map(str, layer.states))
        self.first = tuple(map(str, chunk.first))
        self.ends = tuple(map(str, chunk.last))
        self.finals = tuple(f"{value}_last" for value in following)
        flags = ((chunk.restart, True), (chunk.hold, False))
        self.flags = tuple((str(v), len(v.shape), one) for v, one in flags if v is not None)

    # --- how arrays lie ---

    def to_chunk(self, steps: Tensor) -> Tensor:
        """Lay the steps (T, B, ...) of a stream before the last axis: (B, ..., T, K)."""
        return steps.permute(self.order).flatten(self.heads + 1)

    def to_steps(self, chunk: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Lay what a chunk gives as steps again, with axes of some lengths."""
        return chunk.unflatten(-1, axes).permute(self.back)

    def _state(self, state: Tensor) -> Tensor:
        moved = state.permute(self.state_order)
        return moved if self.is_matrix else moved.unsqueeze(-2)

    def _state_back(self, end: Tensor) -> Tensor:
        return (end if self.is_matrix else end.squeeze(-2)).permute(self.state_back)

    # --- a run ---

    def run(
        self,
        by_row: Tensors,
        states: Mapping[str, Tensor],
        rows: StepRows,
        sizes: Sizes,
        length: int,
        narrow: bool,
        stored: torch.dtype | None,
    ) -> Tensors:
        """Form what the layer gives of each step, into ``by_row``; return its last states."""
        pre = self.pre({name: by_row[name] for name in self.reads}, row_sizes(rows, sizes), narrow)
        streams = {
            over: self.to_chunk(rows.placed(pre[value], fill)) for value, over, fill in self.streams
        }
        if stored is not None:
            streams |= {name: as_stored(streams[name], stored) for name in self.in_rows}
        anew = self._unfit(rows, len(next(iter(streams.values())).shape))
        unfit = None if self.is_delay else anew  # a delay holds nothing back that it lost
        came = None if unfit is None else unfit.of_steps(streams)
        if came is not None:
            fills = {over: fill for _, over, fill in self.streams}
            streams = {name: taken_out(a, came, fills[name]) for name, a in streams.items()}
        now = [self._state(states[name]) for name in self.states]
        back = None if is_in_forward_mode() else anew
        if back is not None:
            entered, now, mark = entering(back, [*streams.values()], now)
            streams = dict(zip(streams, entered, strict=True))
        streams |= self._flags(rows, states[self.states[0]].dtype)
        formed, now = self._over_chunks(streams, now, rows.steps, unfit, sizes, length, narrow)
        if back is not None:
            left, now = leaving(back, mark, [*formed.values()], now)
            formed = dict(zip(formed, left, strict=True))
        if unfit is not None and came is not None:
            formed, now = self._with_unfit(unfit, unfit.after(came), formed, now)
        for (value, over), axes in zip(self.formed, self.formed_axes(sizes), strict=True):
            by_row[value] = rows.live(self.to_steps(formed[over], axes))
        return {name: self._state_back(end) for name, end in zip(self.finals, now, strict=True)}

    def _unfit(self, rows: StepRows, rank: int) -> Unfit | None:
        """What is unfit, of a call that resets states."""
        if rows.restart is None or not rows.resets:
            return None
        restart = rows.restart.t().reshape(rows.batch, *(1,) * (rank - 3), rows.steps, 1)
        return Unfit(restart, self.is_memory, self.is_largest)

    def _with_unfit(
        self, unfit: Unfit, after: Tensor, formed: Tensors, now: Sequence[Tensor]
    ) -> tuple[Tensors, list[Tensor]]:
        """What steps form, and the last states, with NaN where something unfit came."""
        before = unfit.before(after)
        formed = {
            over: put_in(formed[over], before if value in self.states else after)
            for value, over in self.formed
        }
        return formed, [put_in(end, after.narrow(-2, -1, 1)) for end in now]

    def _over_chunks(
        self,
        streams: Tensors,
        now: list[Tensor],
        steps: int,
        unfit: Unfit | None,
        sizes: Sizes,
        length: int,
        narrow: bool,
    ) -> tuple[Tensors, list[Tensor]]:
        is_safe = self.factored is not None and length <= self.safe_steps
        program = self.factored if self.factored is not None and is_safe else self.program
        pieces: dict[str, list[Tensor]] = {over: [] for _, over in self.formed}
        for start in range(0, steps, length):
            count = min(length, steps - start)
            arrays = {name: array.narrow(-2, start, count) for name, array in streams.items()}
            lost = None if unfit is None else unfit.of_states(now)
            if lost is not None:
                now = [taken_out(state, lost) for state in now]
            arrays |= dict(zip(self.first, now, strict=True))
            formed = program(arrays, {**sizes, self.steps: count}, narrow)
            now = [formed[name] for name in self.ends]
            if unfit is not None and lost is not None:
                untouched, read = unfit.untouched(start, count), unfit.as_read(lost)
                formed = {over: put_in(formed[over], untouched & read) for over in pieces}
                now = [put_in(end, untouched.narrow(-2, -1, 1) & lost) for end in now]
            for over, pieces_of in pieces.items():
                pieces_of.append(formed[over])
        return {over: torch.cat(pieces_of, -2) for over, pieces_of in pieces.items()}, now

    def _flags(self, rows: StepRows, dtype: torch.dtype) -> Tensors:
        """1 at steps that begin with the initial state, and at those that are left out."""
        flags: Tensors = {}
        if rows.restart is None or rows.valid is None:
            return flags
        for name, rank, is_restart in self.flags:
            table = rows.restart if is_restart else ~rows.valid
            shape = (rows.batch, *(1,) * (rank - 3), rows.steps, 1)
            flags[name] = table.t().reshape(shape).to(dtype)
        return flags


def as_stored(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as a type of fewer bits holds it; its gradient is not rounded."""
    return tensor + (tensor.to(dtype).to(tensor.dtype) - tensor).detach()


def row_sizes(rows: StepRows, sizes: Sizes) -> dict[str, int]:
    """The sizes of work on all steps at once: as many rows as there are steps."""
    return {**sizes, "B": rows.steps * rows.batch}
