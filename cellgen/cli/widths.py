"""How wide output is where nobody looks at it."""

PIPE_WIDTH = 200
"""Columns of tables where stdout is no terminal: wide enough that nothing is cut."""
