"""Render schedules to C text and to the Python interface that calls it.

``source`` puts a cell's files together; ``step`` and ``sequence`` spell the functions; ``loops`` is
what they share; ``interface`` makes the plain data; ``templates`` loads and checks Jinja files.
"""

from cellgen.targets.source import Source, render

__all__ = ["Source", "render"]
