"""Derivation: a program of a definition, and the programs that differentiate it."""

from cellgen.program.derive.adjoint import adjoint
from cellgen.program.derive.forward import forward
from cellgen.program.derive.tangent import directional, tangent

__all__ = ["adjoint", "directional", "forward", "tangent"]
