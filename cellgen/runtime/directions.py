"""What a process says of the two directions of a layer on a device; read at each call."""

from __future__ import annotations

DIRECTIONS_VARIABLE = "CELLGEN_CUDA_DIRECTIONS"
TURNS, BOTH = DIRECTIONS = ("turns", "both")
"""One after the other; at once, in half of the processors each."""
AUTO, HALF = "auto", "half"
"""Tiers of a launch: of a call that states none, and of a direction beside the other one."""
