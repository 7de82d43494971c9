"""Rules of a device's plan that passes leave behind, whatever made it.

Input: ``DeviceTimePlan``. Output: faults, as text. ``verify`` follows the launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from sympy import Expr, Mul

from cellgen.schedule.device.accesses import AnyStage, MemoryAccess, accesses
from cellgen.schedule.device.panels import panel_faults
from cellgen.schedule.device.places import NeededWhen
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import Cleared, WeightGradients
from cellgen.schedule.device.verify_held import held_faults
from cellgen.schedule.lower.flow import reaches, unwritten_area
from cellgen.schedule.schedule import Buffer, View

Rule: TypeAlias = Callable[[DeviceTimePlan], Iterator[str]]


def gradients_are_whole(plan: DeviceTimePlan) -> Iterator[str]:
    """``with_deferred``: products of a weight gradient write all of it, block by block."""
    blocks: dict[Buffer, dict[View, Expr]] = {}
    for stage in plan.deferred:
        for product in stage.products if isinstance(stage, WeightGradients) else ():
            view = product.target
            blocks.setdefault(view.buffer, {})[view] = Mul(*view.shape)
    for buffer, areas in blocks.items():
        yield from unwritten_area(buffer.name, areas.values(), Mul(*buffer.shape))


def launches_form_the_plan(plan: DeviceTimePlan) -> Iterator[str]:
    """``with_steps``, ``with_deferred``: a part's launches write what its stages write."""
    launches: tuple[tuple[AnyStage, ...], ...] = ((*plan.ahead, *plan.steps), plan.deferred)
    for part, own in zip(plan.time.parts, launches, strict=False):
        uses = (use for stage in part.stages for use in reaches(stage))
        planned = {use.buffer.value for use in uses if use.writes}
        stages = (stage for stage in own if not isinstance(stage, Cleared))
        written = {a.value for stage in stages for a in accesses(stage) if a.writes}
        for value in sorted(map(str, planned - written)):
            yield f"no launch of {part.name} forms {value}"
        for value in sorted(map(str, written - planned)):
            yield f"a launch of {part.name} writes {value}, which no stage of it forms"


def launches_find_rows(plan: DeviceTimePlan) -> Iterator[str]:
    """``with_layout``: launches of all steps find rows in order, those of a step their strides."""
    over_time = {array.name for array in plan.options.arrays}
    for stage in (*plan.ahead, *plan.deferred):
        for access in accesses(stage):
            name = access.rows.array
            if access.rows.of_caller and name in over_time - {*plan.options.whole}:
                yield f"{name} is one matrix over all steps, but need not lie row after row"
    for step in plan.steps:
        for access in accesses(step):
            for name in access.rows.strides or ():
                if name not in plan.strides:
                    yield f"a step reads {access.value} at strides {name}, which nobody gives it"


def workspace_has_arrays(plan: DeviceTimePlan) -> Iterator[str]:
    """All passes that add to it: each array is there once, and so is what launches name.

    ``with_persistent``: a channel's is there for the kernel that has the channel.
    """
    counts = Counter(array.name for array in plan.memory)
    yield from (f"{name} is there {n} times" for name, n in counts.items() if n > 1)
    for access in _all(plan):
        if not access.rows.of_caller and access.rows.array not in counts:
            yield f"{access.value} lies in {access.rows.array}, which is no array of the workspace"
    own = plan.persistent.persistent
    channels = set(own.exchanged) if own else set[str]()
    together = {a.name for a in plan.memory if a.extent.need is NeededWhen.TOGETHER}
    yield from (f"{name} is of no channel" for name in sorted(together - channels))
    yield from (f"the channel {name} has no memory" for name in sorted(channels - together))


def _all(plan: DeviceTimePlan) -> Iterator[MemoryAccess]:
    once = (*plan.prologue, *plan.packed, *plan.ahead)
    for stage in (*once, *plan.steps, *plan.deferred, *plan.epilogue):
        yield from accesses(stage)


BEFORE_FOLLOWING: tuple[Rule, ...] = (panel_faults, held_faults)
AFTER_FOLLOWING: tuple[Rule, ...] = (
    gradients_are_whole,
    launches_form_the_plan,
    launches_find_rows,
    workspace_has_arrays,
)
"""What following the launches would say too is said there, with the step and the array."""
