"""Choose a plan by measuring: time the few that come into question, keep the fastest on disk.

Input: the plan that the C chooses for a shape, and a way to run one. Output: a ``SequencePlan``.
Nothing measures unless it is asked to: results never depend on a plan, but times do, and a run
that measures does not repeat itself step by step.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cellgen.errors import CellgenError
from cellgen.runtime.abi import ERROR_CODES, UNFIT_PLAN
from cellgen.runtime.build import cache
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.progress import progress_between

ROUNDS = 5
"""Times that each plan is run, in turns, so that what else the machine does meets all of them."""

MARGIN = 0.03
"""What another plan must gain, so that noise does not decide: the interquartile range of calls on a
quiet machine."""

UNFIT = ERROR_CODES[UNFIT_PLAN]

WINDOW_STEPS = 4
"""Steps of a window of products formed ahead that share far weights, as calls on AMX take them."""

CHUNKS = (1, 2, 4)
"""Lengths of a chunk of what is deferred, as multiples of the constant that plans are chosen by."""


def candidates(
    plan: SequencePlan, steps: int, rows: int, *, chunked: bool = False
) -> tuple[SequencePlan, ...]:
    """List the plans that may be faster than the chosen one, that one first.

    ``chunked``: the function has a deferred part, which follows in chunks of steps; no product of
    it is formed ahead.
    """
    plans = [plan]
    if plan.threads > plan.row_blocks:  # else a row block has one thread, which shares nothing
        plans.append(replace(plan, by_units=not plan.by_units, hoist=False, unpacked=False))
    for other in list(plans):
        shared = other.threads == 1 or other.by_units
        if not chunked and shared and steps > 1 and rows < other.window_rows:
            plans.append(replace(other, hoist=not other.hoist, unpacked=False))
    if not chunked and min(WINDOW_STEPS, steps) * rows > plan.window_rows:
        longer = min(WINDOW_STEPS, steps) * rows
        plans += [replace(other, window_rows=longer) for other in plans if other.hoist]
    if chunked and rows:
        row_block = -(-rows // plan.row_blocks)  # the rows of the longest
        for multiple in CHUNKS:
            fitting = min(max(multiple * plan.by.chunk_rows // row_block, 1), steps)
            plans.append(replace(plan, chunk_rows=fitting * row_block))
    return tuple(dict.fromkeys(plans))


def measured(
    key: Sequence[tuple[str, str]],
    plans: Sequence[SequencePlan],
    run: Callable[[SequencePlan], object],
    label: str,
) -> SequencePlan:
    """Return the fastest of some plans: the one that is kept under a key, or that is found now.

    ``label``: the function, for the bar of a measurement that takes long.

    A plan that the function cannot follow is left out. The first stays unless another is faster by
    a margin.

    Raises:
        CellgenError: what a call raises for another reason.
    """
    name = "plan-" + cache.digest([*key, ("plans", repr(plans))])
    known = _known(name, plans)
    if known is not None:
        return known
    with progress_between(f"measuring plans of {label}", ROUNDS + 1) as bar:
        seconds = _rounds(plans, run, bar.step)
    medians = {plan: statistics.median(times[1:]) for plan, times in seconds.items()}
    best = min(medians, key=lambda plan: medians[plan])
    if medians[best] > (1 - MARGIN) * medians[plans[0]]:
        best = plans[0]
    cache.remember(name, {"plan": plans.index(best), "seconds": json.dumps(medians[best])})
    return best


def _rounds(
    plans: Sequence[SequencePlan],
    run: Callable[[SequencePlan], object],
    report: Callable[[], None],
) -> dict[SequencePlan, list[float]]:
    """Seconds of every plan that fits; the first round warms up and finds those that do not.

    ``told`` hears of each round when it is over: nothing else runs while a plan does.
    """
    seconds: dict[SequencePlan, list[float]] = {plan: [] for plan in plans}
    for _ in range(ROUNDS + 1):
        for plan in list(seconds):
            began = time.perf_counter()
            try:
                run(plan)
            except CellgenError as error:
                if UNFIT not in str(error) or plan == plans[0]:
                    raise
                del seconds[plan]
                continue
            seconds[plan].append(time.perf_counter() - began)
        report()
    return seconds


def _known(name: str, plans: Sequence[SequencePlan]) -> SequencePlan | None:
    match cache.recall(name):
        case {"plan": int(index)} if 0 <= index < len(plans):
            return plans[index]
    return None
