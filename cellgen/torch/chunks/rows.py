"""Which steps of which rows are valid, and what takes the place of those that are not.

Work of single steps runs over all T x B of them at once. A step that is left out computes what the
first valid one does, so that nothing of it is not a number where the others are numbers; what it
formed is then replaced. No number on a device is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cellgen.runtime.options import Options
from cellgen.torch.calls import Tables

ANEW, LEFT_OUT = -2, -3
"""In place of the step before one: states begin as they were declared; the step is left out."""
HALF = 0.5
"""What inputs are where no step of a batch is valid."""


@dataclass(frozen=True)
class StepRows:
    """Steps of a sequence in the order in which they run; tables (T, B) of a call with gaps.

    ``source``: the step of all T x B, that stands in for each. ``shown`` is the last valid step up
    to each one, -1 before the first; ``visible``: steps that show it. ``resets``: that states may
    begin anew.
    """

    steps: int
    batch: int
    reverse: bool
    valid: Tensor | None = None
    restart: Tensor | None = None
    source: Tensor | None = None
    last_valid: Tensor | None = None
    visible: Tensor | None = None
    resets: bool = False

    def ordered(self, array: Tensor) -> Tensor:
        """Steps as they run, or back."""
        return array.flip(0) if self.reverse else array

    def live(self, array: Tensor) -> Tensor:
        """All steps (T, B, ...) as rows (T B, ...)."""
        rows = array.flatten(0, 1)
        return rows if self.source is None else rows.index_select(0, self.source)

    def live_input(self, array: Tensor) -> Tensor:
        """The same of an input, which may be anything where no step is valid."""
        rows = self.live(array)
        if self.valid is None:
            return rows
        return torch.where(self.valid.any(), rows, HALF)

    @property
    def gaps(self) -> Gaps | None:
        """Steps that are left out or begin anew; None where there are none."""
        if self.valid is None or self.restart is None:
            return None
        return Gaps(self.valid, self.restart, self.resets)

    def placed(self, rows: Tensor, fill: float) -> Tensor:
        """Rows as (T, B, ...), with a number at steps that are left out."""
        array = self.by_step(rows)
        if self.valid is None:
            return array
        return torch.where(_as(self.valid, array), array, fill)

    def by_step(self, rows: Tensor) -> Tensor:
        """Rows as (T, B, ...)."""
        return rows.unflatten(0, (self.steps, self.batch))

    def output(self, array: Tensor, every: int) -> Tensor:
        """What an output (T, B, ...) shows: steps that are masked what the one before showed."""
        if self.last_valid is not None and self.visible is not None:
            at = _as(self.last_valid.clamp(min=0), array).expand_as(array)
            array = torch.where(_as(self.visible, array), array.gather(0, at), 0.0)
        array = self.ordered(array)
        return array if every == 1 else array[every - 1 :: every]


def _as(table: Tensor, array: Tensor) -> Tensor:
    return table.reshape(*table.shape, *(1,) * (array.dim() - 2))


def valid_steps(
    like: Tensor, steps: int, batch: int, lengths: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Steps (T, B) that are within the lengths, and those of them that no mask leaves out."""
    inside = torch.ones(steps, batch, dtype=torch.bool, device=like.device)
    if lengths is not None:
        inside = torch.arange(steps, device=like.device).unsqueeze(1) < lengths
    return inside, inside if mask is None else inside & mask


@dataclass(frozen=True)
class Gaps:
    """Steps (T, B), as they run, that are not left out, and those of them that begin anew.

    ``resets``: that some may begin anew.
    """

    valid: Tensor
    restart: Tensor
    resets: bool = True

    @cached_property
    def before(self) -> Tensor:
        """The table that kernels read."""
        return steps_before(self.valid, self.restart)


def steps_before(valid: Tensor, restart: Tensor) -> Tensor:
    """The table that kernels read, (T, B), int32: the valid step before each, -1 for none.

    ``ANEW`` where states begin as they were declared, ``LEFT_OUT`` where a step is not valid.
    """
    place = torch.arange(len(valid), device=valid.device).unsqueeze(1)
    last = torch.where(valid, place, -1).cummax(0).values
    before = torch.cat((torch.full_like(last[:1], -1), last[:-1]))
    before = torch.where(valid, torch.where(restart, ANEW, before), LEFT_OUT)
    return before.to(torch.int32)


def rows_of_call(
    like: Tensor, sizes: Mapping[str, int], tables: Tables, options: Options
) -> StepRows:
    """Read lengths, mask, reset of a call, its reverse and zero_output_for_mask."""
    lengths, mask, reset = tables
    steps, batch, reverse = sizes["T"], sizes["B"], options.reverse
    if all(table is None for table in tables):
        return StepRows(steps, batch, reverse)
    place = torch.arange(steps, device=like.device).unsqueeze(1)
    inside, valid = valid_steps(like, steps, batch, lengths, mask)
    restart = torch.zeros_like(valid) if reset is None else valid & reset
    if reverse:
        inside, valid, restart = inside.flip(0), valid.flip(0), restart.flip(0)
    flat = valid.flatten()
    number = torch.arange(steps * batch, device=like.device)
    first = torch.where(flat, number, steps * batch).amin().clamp(max=steps * batch - 1)
    last_valid = torch.where(valid, place, -1).cummax(0).values
    visible = valid if options.zero_output_for_mask else inside & (last_valid >= 0)
    source = torch.where(flat, number, first)
    resets = reset is not None
    return StepRows(steps, batch, reverse, valid, restart, source, last_valid, visible, resets)
