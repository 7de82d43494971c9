"""Lower the functions over time, pass by pass.

Input: ``SequenceSchedule`` and the functions' interfaces. Output: a ``TimePlan`` of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cellgen.runtime.abi import Function as Signature
from cellgen.schedule.lower.barriers import with_barriers
from cellgen.schedule.lower.form import form
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.memory import with_memory
from cellgen.schedule.lower.packing import with_packed_operands
from cellgen.schedule.lower.plan import TimePlan
from cellgen.schedule.lower.prefetch import with_prefetch
from cellgen.schedule.lower.requests import with_requests, with_saved_on_request
from cellgen.schedule.lower.verify import verify
from cellgen.schedule.over_time import SequenceSchedule

Pass: TypeAlias = Callable[[FunctionOverTime, TimePlan], TimePlan]

PASSES: tuple[Pass, ...] = (
    with_requests,
    with_saved_on_request,
    with_barriers,
    with_packed_operands,
    with_prefetch,
    with_memory,
)
"""What follows ``form``. Each fills in fields that the others leave alone."""

BY_STEP: tuple[Pass, ...] = (with_memory,)
"""What follows where one thread goes from step to step: nothing is packed, fetched or waited for,
and all that is left is wanted."""


def lower(schedule: SequenceSchedule, signatures: Sequence[Signature]) -> tuple[TimePlan, TimePlan]:
    """Lower the two functions over time, forward and backward, and verify both.

    Raises:
        DerivationError: a fault of the compiler, found by the verifier.
    """
    forward, backward = signatures
    return (
        _lowered(FunctionOverTime(schedule, forward, forward, ("forward",))),
        _lowered(FunctionOverTime(schedule, backward, forward, ("reverse", "deferred"))),
    )


def _lowered(function: FunctionOverTime) -> TimePlan:
    plan = form(function)
    for apply in BY_STEP if function.by_step else PASSES:
        plan = apply(function, plan)
    verify(plan)
    return plan
