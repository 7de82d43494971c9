"""Derivation: a program of a definition, and the programs that differentiate it."""

from cellgen.program.derive.adjoint import adjoint, forward, tangent

__all__ = ["adjoint", "forward", "tangent"]
