"""Schedules over time lowered to plans: every choice that a target would otherwise take.

A function is lowered by passes from value to value (``passes``): ``form`` makes a ``TimePlan`` of
its arrays, and of ``stages`` in their ``places``, ``products`` in tiles; ``requests`` says what is
formed for a caller alone, ``barriers`` where threads meet, ``packing`` and ``memory`` what the
workspace holds, ``prefetch`` what tiles fetch; for C, ``strips`` which loops go through a matrix
together. ``plan`` is the data. Each pass has a rule in ``verify``, which every plan is held to.
"""

from cellgen.schedule.lower.passes import lower
from cellgen.schedule.lower.plan import TimePlan

__all__ = ["TimePlan", "lower"]
