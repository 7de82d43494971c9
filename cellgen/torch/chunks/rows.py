"""Which steps of which rows are valid, and what takes the place of those that are not.

Work of single steps runs over all T x B of them at once. A step that is left out computes what the
first valid one does, so that nothing of it is not a number where the others are numbers; what it
formed is then replaced. No number on a device is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HALF = 0.5
"""What inputs are where no step of a batch is valid."""


@dataclass(frozen=True)
class StepRows:
    """Steps of a sequence in the order in which they run; tables (T, B) of a call with gaps.

    ``source``: the step of all T x B, that stands in for each. ``shown`` is the last valid step up
    to each one, -1 before the first; ``visible``: steps that show it.
    """

    steps: int
    batch: int
    reverse: bool
    valid: Tensor | None = None
    restart: Tensor | None = None
    source: Tensor | None = None
    shown: Tensor | None = None
    visible: Tensor | None = None

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

    def placed(self, rows: Tensor, fill: float) -> Tensor:
        """Rows as (T, B, ...), with a number at steps that are left out."""
        array = rows.unflatten(0, (self.steps, self.batch))
        if self.valid is None:
            return array
        return torch.where(_as(self.valid, array), array, fill)

    def output(self, rows: Tensor, every: int) -> Tensor:
        """What an output over time shows: steps that are masked what the one before showed."""
        array = rows.unflatten(0, (self.steps, self.batch))
        if self.shown is not None and self.visible is not None:
            at = _as(self.shown.clamp(min=0), array).expand_as(array)
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


def step_rows(
    like: Tensor,
    steps: int,
    batch: int,
    *,
    lengths: Tensor | None,
    mask: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    zero_output_for_mask: bool,
) -> StepRows:
    """Read lengths, mask, reset and reverse."""
    if lengths is None and mask is None and reset is None:
        return StepRows(steps, batch, reverse)
    place = torch.arange(steps, device=like.device).unsqueeze(1)
    inside, valid = valid_steps(like, steps, batch, lengths, mask)
    restart = torch.zeros_like(valid) if reset is None else valid & reset
    if reverse:
        inside, valid, restart = inside.flip(0), valid.flip(0), restart.flip(0)
    flat = valid.flatten()
    number = torch.arange(steps * batch, device=like.device)
    first = torch.where(flat, number, steps * batch).amin().clamp(max=steps * batch - 1)
    shown = torch.where(valid, place, -1).cummax(0).values
    visible = valid if zero_output_for_mask else inside & (shown >= 0)
    source = torch.where(flat, number, first)
    return StepRows(steps, batch, reverse, valid, restart, source, shown, visible)
