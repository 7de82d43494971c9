"""What computes the files of ``tests/golden`` with the peers themselves; nothing is of cellgen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1]


def write(name: str, arrays: Mapping[str, object]) -> None:
    """Write one file, ``<folder>/<case>``, and say what it holds."""
    held = {key: np.asarray(array) for key, array in arrays.items()}
    np.savez_compressed(GOLDEN / f"{name}.npz", **held)
    print(name, {key: array.shape for key, array in held.items()})
