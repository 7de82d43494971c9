"""What the options of a call make of it: calls of the operators, and what is shown of results.

Input: a cell and options that passed their checks. Output: ``Planned``, kept for calls like it.
A call without gradients forms what it shows and nothing else. One that saves forms all outputs,
which its backward pass reads, and shows a part of them; with a checkpoint it forms what it shows
and, of the last step alone, outputs that are no states for all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cellgen.frameworks.selection import is_last, joined, when_plain, when_saving
from cellgen.runtime.call.signature import part_of
from cellgen.runtime.options import Options
from cellgen.torch.calls import Tables
from cellgen.torch.chunks.rows import valid_steps
from cellgen.torch.derivatives import Call


@dataclass(frozen=True)
class Planned:
    """The two calls that a call may become: of the forward pass alone, and one that saves.

    ``wanted`` says what is asked to be shown; None: everything.
    """

    plain: Call
    saving: Call
    wanted: Options | None = None

    def show(
        self, call: Call, outputs: Sequence[Tensor], tables: Tables, batch_first: bool
    ) -> list[Tensor | None]:
        """Put outputs of one of the calls in the places of all, as they are asked for."""
        formed = iter(outputs)
        selected: list[Tensor | None] = []
        for place, item in enumerate(self.plain.known.layout.outputs):
            output = None if call.hidden >> place & 1 else next(formed)
            if item.over_time and output is not None:
                output = self._part(call, place, output, tables)
                is_over_time = output is not None and not self._is_last
                if batch_first and is_over_time and output is not None:
                    output = output.transpose(0, 1)
            selected.append(output)
        return selected

    @property
    def _is_last(self) -> bool:
        """Whether the last step is shown alone."""
        return self.wanted is not None and is_last(self.wanted)

    def _part(self, call: Call, place: int, output: Tensor, tables: Tables) -> Tensor | None:
        """What is shown of an output over time."""
        wanted = self.wanted
        if wanted is None or call is self.plain:
            return output
        if self.plain.hidden >> place & 1:
            return None
        if self._is_last:
            return last_step(output, tables, call.options.reverse)
        steps = part_of(wanted, call.options)
        return output if steps is None else output[steps]


def planned(call: Call, wanted: Options | None) -> Planned:
    """Say what a call becomes that has what is ``wanted``, too; None: nothing more."""
    if wanted is None:
        return Planned(call, call)
    options = joined(call.options, wanted)
    plain = replace(call, options=when_plain(options))
    saving = replace(call, options=when_saving(options))
    if plain == saving:
        return Planned(plain, plain)
    return Planned(plain, saving, wanted)


def last_step(output: Tensor, tables: Tables, reverse: bool) -> Tensor:
    """An output (T, B, ...) at the last valid step of each row, zeros where none is."""
    steps, rows = output.shape[:2]
    if steps == 0:
        return output.new_zeros(output.shape[1:])
    lengths, mask, _ = tables
    if lengths is None and mask is None:
        return output[0 if reverse else -1]
    _, valid = valid_steps(output, steps, rows, lengths, mask)
    order = torch.arange(steps, device=output.device).unsqueeze(1)
    place = steps - 1 - order if reverse else order
    last = torch.where(valid, place, -1).max(0).values
    step = steps - 1 - last if reverse else last
    rows_at = output[step.clamp(0, steps - 1), torch.arange(rows, device=output.device)]
    some = (last >= 0).reshape(-1, *(1,) * (rows_at.dim() - 1))
    return torch.where(some, rows_at, 0)
