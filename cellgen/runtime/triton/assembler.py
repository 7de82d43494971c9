"""Refuse the assembler that Triton would take for a device, where it is known to be wrong."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
from pathlib import Path

from cellgen.errors import DeviceError
from cellgen.runtime.device.assemblers import refuse_assembler

VARIABLE = "TRITON_PTXAS_PATH"
SECONDS = 60


def require_assembler(cell: str, arch: int) -> None:
    """Look at the ``ptxas`` of this process; ``arch`` is the compute capability times ten.

    Raises DeviceError for one that is known to be wrong for the device, or that does not run.
    """
    path = _path()
    try:
        refuse_assembler(_release(path), arch)
    except DeviceError as error:
        raise DeviceError(f"{cell}: {path}: {error.args[0]}", code="device.assembler") from None


def assembler_in_use() -> str:
    """What the ``ptxas`` of this process says of itself. Raises DeviceError."""
    return _release(_path())


def _path() -> str:
    return os.environ.get(VARIABLE) or _bundled()


def _bundled() -> str:
    """The one that comes with Triton."""
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    return str(folder / "backends" / "nvidia" / "bin" / "ptxas")


@functools.cache
def _release(path: str) -> str:
    """What an assembler says of itself."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(
            f"this assembler does not run ({error}); name one that does: {VARIABLE}=/path/to/ptxas",
            code="device.assembler",
        ) from error
    return done.stdout
