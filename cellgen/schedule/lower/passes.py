"""Lower the functions over time, pass by pass.

Input: ``SequenceSchedule`` and the functions' interfaces. Output: a ``TimePlan`` of each. For a
device it is what ``schedule/device`` goes on from, by passes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cellgen.runtime.abi import Function as Signature
from cellgen.schedule.lower.barriers import with_barriers
from cellgen.schedule.lower.begun import with_begun_sums
from cellgen.schedule.lower.form import form
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.memory import with_memory
from cellgen.schedule.lower.packing import with_packed_operands
from cellgen.schedule.lower.plan import TimePlan
from cellgen.schedule.lower.prefetch import with_prefetch
from cellgen.schedule.lower.requests import with_requests, with_written_on_request
from cellgen.schedule.lower.stored import with_stored_products
from cellgen.schedule.lower.verify import OF_LAUNCHES, RULES, Rule, verify
from cellgen.schedule.over_time import SequenceSchedule

Pass: TypeAlias = Callable[[FunctionOverTime, TimePlan], TimePlan]

PASSES: tuple[Pass, ...] = (
    with_requests,
    with_written_on_request,
    with_barriers,
    with_packed_operands,
    with_prefetch,
    with_memory,
)
"""What follows ``form``. Each fills in fields that the others leave alone."""

BY_STEP: tuple[Pass, ...] = (with_memory,)
"""What follows where one thread goes from step to step: nothing is packed, fetched or waited for,
and all that is left is wanted."""

ON_DEVICE: tuple[Pass, ...] = (with_begun_sums, with_stored_products)
"""What follows where each stage is a launch: memory and tiles are those of a device."""


def lower(schedule: SequenceSchedule, signatures: Sequence[Signature]) -> tuple[TimePlan, TimePlan]:
    """Lower the two functions over time, forward and backward, and verify both.

    Raises:
        DerivationError: a fault of the compiler, found by the verifier.
    """
    forward, backward = functions_over_time(schedule, signatures)
    passes = BY_STEP if schedule.by_step else PASSES
    return _lowered(forward, passes), _lowered(backward, passes)


def functions_over_time(
    schedule: SequenceSchedule, signatures: Sequence[Signature]
) -> tuple[FunctionOverTime, FunctionOverTime]:
    """The two functions, forward and backward."""
    forward, backward = signatures
    return (
        FunctionOverTime(schedule, forward, forward, ("forward",)),
        FunctionOverTime(schedule, backward, forward, ("reverse", "deferred")),
    )


def lowered_for_launches(function: FunctionOverTime) -> TimePlan:
    """Lower one function as far as devices share it with all others; no memory is reserved."""
    return _lowered(function, ON_DEVICE, OF_LAUNCHES)


def _lowered(
    function: FunctionOverTime, passes: Sequence[Pass], rules: Sequence[Rule] = RULES
) -> TimePlan:
    plan = form(function)
    for apply in passes:
        plan = apply(function, plan)
    verify(plan, rules)
    return plan
