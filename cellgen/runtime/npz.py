"""Arrays in an .npz under any names: NumPy's own ``savez`` takes none that is called ``file``.

Input: arrays by name. Output: a file that ``numpy.load`` reads.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.runtime.results import Array


def write_npz(file: Path | IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays as an .npz under any names, ``file`` among them. Raises ArgumentError, OSError.

    NumPy's own reader gives them; it knows no bfloat16.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise ArgumentError(
                f"save: {name} is of {array.dtype}, which an .npz does not hold; convert it, or "
                f"write a .safetensors"
            )
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
