"""Derivatives of any order, from the kernel of a tangent: ``compile(tangent(Cell))``."""

from cellgen.runtime.derivatives import First, Second, directions, double_backward, hvp, jvp

__all__ = ["First", "Second", "directions", "double_backward", "hvp", "jvp"]
