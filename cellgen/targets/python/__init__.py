"""Equations spelled as loops of Python frameworks, for comparison."""
