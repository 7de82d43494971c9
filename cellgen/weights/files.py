"""Weights in files: safetensors and .npz."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.npz import write_npz
from cellgen.weights.grids import Array, Arrays

KINDS = ".safetensors", ".npz"


def load(path: str | Path) -> Arrays:
    """Read the arrays of a ``.safetensors`` or ``.npz`` file, by their names.

    Raises ArgumentError: another kind of file, one that is not there or cannot be read, the package
    safetensors missing.
    """
    found = _path("load", path)
    if not found.is_file():
        raise ArgumentError(f"load: there is no file {found}; give one that is there")
    try:
        if found.suffix == ".npz":
            with found.open("rb") as file, np.load(file, allow_pickle=False) as held:
                return {name: held[name] for name in held.files}
        return dict(_safetensors("load").load_file(found))
    except ArgumentError:
        raise
    except AttributeError as error:  # of a type of numbers that NumPy lacks
        raise ArgumentError(
            f"load: {found} cannot be read as {found.suffix[1:]}: {error}; give one in float32"
        ) from None
    except Exception as error:
        raise ArgumentError(
            f"load: {found} cannot be read as {found.suffix[1:]}: {error}; give a whole file"
        ) from None


def save(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a ``.safetensors`` or ``.npz`` file, by their names.

    Raises ArgumentError: another kind of file, a folder that is not there, numbers that it cannot
    hold, the package safetensors missing.
    """
    found = _path("save", path)
    for name, array in arrays.items():
        accept.refuse_masked("save", name, array)
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        if found.suffix == ".npz":
            write_npz(found, whole)
        else:
            _safetensors("save").save_file(whole, found)
    except ArgumentError:
        raise
    except OSError as error:
        raise ArgumentError(f"save: {found} cannot be written: {error.strerror}") from None
    except Exception as error:  # of the package safetensors
        raise ArgumentError(f"save: {found} cannot be written: {accept.reason(error)}") from None


def _path(where: str, path: str | Path) -> Path:
    found = accept.path(where, "path", path, error=ArgumentError)
    if found.suffix not in KINDS:
        raise ArgumentError(
            f"{where}: {found.name} ends with {found.suffix or 'nothing'!r}, expected "
            f"{' or '.join(KINDS)}"
        )
    return found


def _safetensors(where: str):  # type: ignore[no-untyped-def]
    try:
        from safetensors import numpy
    except ImportError:
        raise ArgumentError(
            f"{where}: .safetensors files need the package safetensors, which is not installed: "
            f"pip install 'cellgen[weights]'; or use .npz"
        ) from None
    return numpy
