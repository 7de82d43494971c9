"""Schedules over time lowered to plans: every choice that a target would otherwise take.

``function`` lowers a function, ``part`` each of its parts: ``arrays`` what the caller gives and
gets, ``memory`` what the workspace holds, ``places`` where buffers lie at every step, ``products``
how products run, ``strips`` which loops go through a matrix together. ``plan`` is the data that
they make, and ``verify`` checks it.
"""

from cellgen.schedule.lower.function import lower
from cellgen.schedule.lower.plan import TimePlan

__all__ = ["TimePlan", "lower"]
