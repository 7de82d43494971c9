"""Weights in files: which kinds there are, reading and writing one.

Input: a path. Output: arrays by their names in the file. How each kind is read: ``formats``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.npz import write_npz
from cellgen.weights.formats import READERS, FormatError, required
from cellgen.weights.grids import Array, Arrays

WRITTEN = ".safetensors", ".npz"


def load(path: str | Path) -> Arrays:
    """Read the arrays of a file by their names: ``.safetensors``, ``.npz``, ``.pt``, ``.h5``, ...

    A file of PyTorch (``.pt``, ``.pth``, ``.ckpt``) is read with ``weights_only``: tensors alone,
    no code; names of nested dicts are joined with "/", and bfloat16 comes as float32. Of a file of
    Keras (``.h5``, ``.hdf5``, ``.keras``) the numbered variables of a recurrent cell are named as
    its layer has them: ``kernel``, ``recurrent_kernel``, ``bias``.

    Raises ArgumentError: another kind of file, one that is not there or cannot be read, a package
    missing that reads it.
    """
    file = _path("load", path, tuple(READERS))
    if not file.is_file():
        raise ArgumentError(f"load: there is no file {file}; give one that is there")
    kind = file.suffix[1:]
    if not file.stat().st_size:
        raise ArgumentError(f"load: {file} is empty, expected a file of arrays; write it again")
    try:
        return READERS[file.suffix](file)
    except FormatError as error:
        raise ArgumentError(f"load: {file} cannot be read as {kind}: {error}") from None
    except Exception as error:
        raise ArgumentError(
            f"load: {file} cannot be read as {kind}: {accept.reason(error)}; give a whole file"
        ) from None


def save(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a ``.safetensors`` or ``.npz`` file, by their names.

    Raises ArgumentError: another kind of file, a folder that is not there, numbers that it cannot
    hold, a mask of an array's own, the package safetensors missing.
    """
    file = _path("save", path, WRITTEN)
    for name, array in arrays.items():
        accept.refuse_masked("save", name, array)
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        if file.suffix == ".npz":
            write_npz(file, whole)
        else:
            required("safetensors.numpy", "weights").save_file(whole, file)
    except FormatError as error:
        raise ArgumentError(f"save: {file}: {error}") from None
    except ArgumentError:
        raise
    except OSError as error:
        raise ArgumentError(f"save: {file} cannot be written: {error.strerror}") from None
    except Exception as error:  # of the package safetensors
        raise ArgumentError(f"save: {file} cannot be written: {accept.reason(error)}") from None


def _path(label: str, path: str | Path, kinds: tuple[str, ...]) -> Path:
    file = accept.path(label, "path", path, error=ArgumentError)
    if file.suffix not in kinds:
        raise ArgumentError(
            f"{label}: {file.name} ends with {file.suffix or 'nothing'!r}, expected "
            f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        )
    return file
