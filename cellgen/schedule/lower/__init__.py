"""Schedules over time lowered to plans: every choice that a target would otherwise take.

A function is lowered by passes from value to value (``passes``): ``form`` makes a ``TimePlan`` of
its arrays, and of ``stages`` in their ``places``, ``products`` in tiles; ``requests`` says what is
formed for a caller alone, ``barriers`` where threads meet, ``packing`` and ``memory`` what the
workspace holds, ``prefetch`` what tiles fetch; for C, ``strips`` which loops go through a matrix
together. ``plan`` is the data. Each pass has a rule in ``verify``, which every plan is held to.
A schedule ``by_step``, of one thread that runs all parts in each step, takes the same ``form`` and
rules, and of the passes ``memory`` alone: there is nothing to share, to pack or to fetch.
"""

from cellgen.schedule.lower.passes import lower
from cellgen.schedule.lower.plan import TimePlan

__all__ = ["TimePlan", "lower"]
