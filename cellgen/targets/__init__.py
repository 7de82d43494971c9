"""Spell planned cells: ``TARGETS``, by name, and the Python interface that calls what they give.

``target`` says what a target is; ``source`` lets each spell a cell; ``interface`` makes the plain
data; ``templates`` loads and checks Jinja files; ``c``, ``cuda`` and ``triton`` are the targets,
``python`` writes the loops of other libraries for measurements beside them.
"""

from cellgen.targets.source import TARGETS, Source, render, target_of
from cellgen.targets.target import PlannedCell

__all__ = ["TARGETS", "PlannedCell", "Source", "render", "target_of"]
