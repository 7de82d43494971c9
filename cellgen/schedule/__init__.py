"""Schedules: what runs when and where each value lives. Target-neutral.

``plan`` holds the data, ``step`` plans the functions of a single step. This package is the only
place that knows about layout, order, buffers and loops; no mathematics is left to decide after it.
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
