"""Schedules over time lowered to plans: every choice that a target would otherwise take.

``plan`` holds the data, ``places`` says where arrays lie, ``groups`` how products run, ``deferred``
what runs over many steps; ``lower`` puts a function together.
"""

from cellgen.schedule.lower.function import lower
from cellgen.schedule.lower.plan import TimePlan

__all__ = ["TimePlan", "lower"]
