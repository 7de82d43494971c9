"""Schedules: what runs when and where each value lives. Target-neutral.

What decides what, in this order:

- ``stages``: in which stage and loop of a step a statement runs; ``groups``: which of them run on
  the tiles of products; ``walks``: how a loop goes through its arrays;
- ``buffers``: which values have memory of their own, and which are views of another's;
- ``over_time``: what runs at each step, forward and in reverse, what waits for many steps, and how
  many steps of each value are kept;
- ``on_request`` and ``operands``: what a caller may leave out, or give in another type;
- ``lower``: every choice that is left, with the place of each array at every step; ``device``: the
  same for what launches kernels.

``schedule`` is the data that these make. This package is the only place that knows about layout,
order, buffers and loops; no mathematics is left to decide after it.
"""

from cellgen.schedule.schedule import (
    Access,
    Buffer,
    BufferKind,
    Load,
    Loop,
    PlannedFunction,
    Product,
    Routine,
    Schedule,
    Store,
    View,
)
from cellgen.schedule.stages import schedule_step

__all__ = [
    "Access",
    "Buffer",
    "BufferKind",
    "Load",
    "Loop",
    "PlannedFunction",
    "Product",
    "Routine",
    "Schedule",
    "Store",
    "View",
    "schedule_step",
]
