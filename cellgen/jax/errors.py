"""cellgen's messages as the exceptions that JAX raises for the same faults.

An array of a wrong shape or dtype, and a name that a cell lacks, are a TypeError, an option of a
wrong value a ValueError; each is an ArgumentError, too.
"""

from __future__ import annotations

from cellgen.errors import ArgumentError


class ArrayError(ArgumentError, TypeError):
    """An array whose shape or dtype a cell cannot take, or a name that it does not have."""
