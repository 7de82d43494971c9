"""Memory over time in an explanation: what a run keeps for its backward pass, and at what cost.

Input: a schedule, the functions over time, a shape with or without a limit in bytes. Output: a
section: what is chosen, and what else there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cellgen.errors import ArgumentError, UsageError
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.call.checkpoints import StepBytes, checkpoints, segment_steps, step_bytes
from cellgen.runtime.options import FORWARD, NONE
from cellgen.views.explanation import ChoiceRow, ExplainedShape, Section, bytes_of, count_of

NOT_REVERSED = (
    "the state before a step, solved for, is rounded otherwise, so that the bits would not be "
    "those of saving"
)


def memory_over_time(
    functions: Sequence[Signature], shape: ExplainedShape, multiply_adds: int
) -> Section:
    """What is chosen for a shape; a forward pass has so many ``multiply_adds``.

    Raises:
        UsageError: a limit that nothing fits.
    """
    forward = next(function for function in functions if function.name == FORWARD)
    size = np.dtype(shape.dtype).itemsize
    per_step = step_bytes(forward, shape.sizes, size, NONE)
    steps = 0
    if shape.memory_limit is not None:
        try:
            steps = segment_steps("cellgen explain", per_step, shape.memory_limit)
        except ArgumentError as error:
            raise UsageError(str(error.args[0])) from None
    limit = None if shape.memory_limit is None else bytes_of(shape.memory_limit)
    saving = f"{bytes_of(per_step.whole)}, no multiply-adds more"
    if steps:
        rows = [
            _checkpoints_row("chosen: ", per_step, steps, multiply_adds, f"within {limit}"),
            ChoiceRow(f"every step saves: {saving}", f"more than {limit}"),
        ]
    else:
        why = (
            f"within {limit}" if limit else "no limit: memory_limit= of a call, --memory-limit here"
        )
        least = per_step.least
        rows = [
            ChoiceRow(f"chosen: every step saves: {saving}", why),
            _checkpoints_row("", per_step, least, multiply_adds, "the fewest bytes of all"),
        ]
    return Section("memory over time", (*rows, ChoiceRow("no step in reverse", NOT_REVERSED)))


def _checkpoints_row(
    before: str, per_step: StepBytes, steps: int, multiply_adds: int, why: str
) -> ChoiceRow:
    count = checkpoints(per_step.steps, steps)
    return ChoiceRow(
        f"{before}checkpoints every {count_of(steps, 'step')}: {bytes_of(per_step.total(steps))}: "
        f"{count_of(count, 'checkpoint')} of {bytes_of(per_step.kept)} and a segment with "
        f"{bytes_of(per_step.resident)} a step; {multiply_adds:,} multiply-adds in products more",
        f"{why}; one more forward pass, whatever the number of steps",
    )
