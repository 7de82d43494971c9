"""Options of calls whose arrays have 16 bits, which bridges to frameworks take as kernels do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SIZES = {"T": 40, "B": 3}
"""Several windows of steps, and a last one that is shorter."""
MASK = np.random.default_rng(0).random((40, 3)) > 0.3
TABLES = {"lengths": np.array([40, 7, 23]), "mask": MASK, "reset": np.roll(MASK, 3, 0)}
OPTIONS: tuple[Mapping[str, object], ...] = (
    {**TABLES, "reverse": True},
    {"checkpoint": 6},
    {"checkpoint": 6, "mask": MASK, "reverse": True},
    {"products": "full", "mask": MASK, "zero_output_for_mask": True},
    {"memory_limit": 9_000},
    {"outputs": ("c",), "checkpoint": 6},
)
CELLS = ("elman", "gru", "sru")
"""Those that are tried each time: dense, gated, diagonal."""


def cell_of(options: Mapping[str, object]) -> str:
    """A cell that takes options: one whose output ``c`` is no state, where that alone is shown."""
    return "sru" if "outputs" in options else "lstm"


def of_backward(options: Mapping[str, object]) -> dict[str, object]:
    """Those that a backward pass has to be told again: ``saved`` has the others."""
    return {name: value for name, value in options.items() if name == "products"}
