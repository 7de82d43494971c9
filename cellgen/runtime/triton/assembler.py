"""Take a right assembler for Triton's kernels, and say which.

Triton hands its PTX to the ``ptxas`` that a variable of the environment names, else to one that
comes with it; newer devices have another one than older ones, with a variable of its own. Where the
one that it would take is known to be wrong for a device, another one is named by that variable,
before Triton compiles: one that comes with Triton too, with NVIDIA's packages, or with a CUDA
toolkit. What a caller names is taken or refused, never replaced.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from cellgen.errors import DeviceError
from cellgen.runtime.device.assemblers import joined, refuse_assembler, version_of

VARIABLE = "TRITON_PTXAS_PATH"
VARIABLES = (VARIABLE, "TRITON_PTXAS_BLACKWELL_PATH")
"""What names an assembler; which one counts for a device is Triton's affair."""
TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
SECONDS = 60


@dataclass(frozen=True)
class Assembler:
    """A ``ptxas``; ``release`` is what it says of itself."""

    path: str
    release: str

    def __str__(self) -> str:
        """Its version and where it is.

        >>> print(Assembler("/opt/cuda/bin/ptxas", "Cuda tools, release 13.0, V13.0.88"))
        ptxas 13.0, /opt/cuda/bin/ptxas
        """
        return f"ptxas {joined(version_of(self.release))}, {self.path}"


def take_assembler(cell: str, arch: int, *, multiplies: bool = True) -> Assembler | None:
    """See to it that Triton takes a right assembler; ``arch`` is the compute capability times ten.

    ``multiplies``: that kernels have products of matrices, which a wrong one must not compile;
    others go through whatever there is. Raises DeviceError where only wrong ones are there, and
    where the one that a caller names is wrong or does not run.
    """
    variable, path = _of_triton(arch)
    try:
        return _taken(arch, variable, path, os.environ.get(variable))
    except DeviceError as error:
        if not multiplies:
            return None
        raise DeviceError(f"{cell}: {error.args[0]}", code="device.assembler") from None


def assembler_in_use(arch: int) -> Assembler:
    """The one that Triton takes for a device as things are. Raises DeviceError."""
    path = _of_triton(arch)[1]
    return Assembler(path, _release(path))


def _taken(arch: int, variable: str, path: str, named: str | None) -> Assembler:
    try:
        return _right(path, arch, variable)
    except DeviceError:
        right = None if named else next(_others(arch, variable, path), None)
        if right is None:
            raise
    os.environ[variable] = right.path
    _forget()
    return right


def _others(arch: int, variable: str, path: str) -> Iterator[Assembler]:
    """Right ones beside the one that Triton would take."""
    for other in _paths():
        if other != path:
            try:
                yield _right(other, arch, variable)
            except DeviceError:
                continue


def _paths() -> Iterator[str]:
    """Where assemblers are: beside Triton's own, in NVIDIA's packages, in a toolkit."""
    of_nvidia = [
        folder / "bin" for root in folders_of("nvidia") for folder in sorted(root.glob("*"))
    ]
    toolkits = [Path(os.environ[name]) / "bin" for name in TOOLKITS if name in os.environ]
    for folder in (*_folders_of_triton(), *of_nvidia, *toolkits):
        yield from (str(path) for path in sorted(folder.glob("ptxas*")))
    on_the_path = shutil.which("ptxas")
    if on_the_path:
        yield on_the_path


def _folders_of_triton() -> list[Path]:
    return [root / "backends" / "nvidia" / "bin" for root in folders_of("triton")]


def folders_of(package: str) -> list[Path]:
    """The folders of a package, none where it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


def _right(path: str, arch: int, variable: str) -> Assembler:
    """An assembler that is not known to be wrong for a device. Raises DeviceError."""
    try:
        right = Assembler(path, _release(path))
        refuse_assembler(right.release, arch, variable)
    except DeviceError as error:
        raise DeviceError(f"{path}: {error.args[0]}", code="device.assembler") from None
    return right


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


# --- what Triton does ----------------------------------------------------------------------------


def _of_triton(arch: int) -> tuple[str, str]:
    """The variable that counts for a device, and the path that Triton takes for it."""
    variable, bundled = assembler_for(arch)
    return variable, os.environ.get(variable) or bundled


@functools.cache
def assembler_for(arch: int) -> tuple[str, str]:
    """The variable that counts for a device, and the assembler that comes with Triton for it."""
    folder = next(iter(_folders_of_triton()), Path())
    variable, tool = VARIABLE, "ptxas"
    compiler = triton_compiler()
    if compiler is not None and _takes_newer(compiler, arch):
        variable, tool = VARIABLES[1], "ptxas-blackwell"
    return variable, str(folder / tool)


def _takes_newer(compiler: ModuleType, arch: int) -> bool:
    """Whether Triton takes its second assembler for a device."""
    try:
        return bool(compiler.get_ptxas(arch) == compiler.knobs.nvidia.ptxas_blackwell)
    except (AttributeError, TypeError, RuntimeError):  # a Triton that has one assembler
        return False


def triton_compiler() -> ModuleType | None:
    """Triton's module that calls assemblers."""
    try:
        return importlib.import_module("triton.backends.nvidia.compiler")
    except ImportError:
        return None


def _forget() -> None:
    """Let Triton ask again for the version, by which it names what it compiled."""
    compiler = triton_compiler()
    for name in ("get_ptxas_version", "get_features", "CUDABackend"):
        of = getattr(compiler, name, None)
        cached = getattr(of, "hash", of) if name == "CUDABackend" else of
        getattr(cached, "cache_clear", lambda: None)()
