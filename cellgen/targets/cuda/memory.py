"""Collect the arrays of a function's workspace."""

from __future__ import annotations

from dataclasses import dataclass, field

from cellgen.language.names import Names


@dataclass(frozen=True)
class MemoryContext:
    """One array of the workspace: its C name, element type and count."""

    name: str
    element: str
    count: str


@dataclass
class DeviceWorkspace:
    """Collects the arrays of a workspace."""

    names: Names
    arrays: list[MemoryContext] = field(default_factory=list)

    def add(self, name: str, element: str, count: str) -> str:
        """Reserve an array; returns its C name."""
        own = self.names.fresh(name)
        self.arrays.append(MemoryContext(own, element, count))
        return own
