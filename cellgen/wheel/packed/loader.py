"""Load prebuilt kernels: NumPy and ctypes alone, no compiler, nothing of cellgen.

Input: ``manifest.json`` and the shared objects beside it, one for each level of processors; each
says by its descriptor (``cellgen_descriptor.h``) which functions its cells have. Output: ``Kernel``
objects, whose functions take arrays by the names of the equations and return named tuples.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import sys
from ctypes import POINTER
from pathlib import Path

from cellgen.wheel.packed.structs import CellRecord

VARIABLE = "CELLGEN_LEVEL"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other names of machines."""


INCOMPLETE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a manifest that is missing, cut or of other keys ends in."""


class Objects:
    """The kernels of a package, at the highest level that the processor has, or a named one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            self.abi = int(self._manifest["abi"])
            self.cells: dict[str, str] = dict(self._manifest["cells"])
            self._variants = self._of_machine(self._manifest["machines"])
            chosen = self._chosen()
            self.level = chosen["level"]
            """The level that is loaded: v2, v3, v4 or amx; base on arm64."""
            self._shared = self._load(chosen["file"])
        except INCOMPLETE as error:
            raise ImportError(f"{folder} is incomplete ({error!r}); install it again") from error

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels that the package has for this machine, the lowest first."""
        return tuple(variant["level"] for variant in self._variants)

    def cell(self, name: str) -> CellRecord:
        """The descriptor of a cell. Raises ImportError: of another ABI, or of other equations."""
        try:
            describe = self._shared[f"{name}_cellgen"]
        except AttributeError as error:
            raise ImportError(f"{self._folder} has no cell {name!r}: {error}") from error
        describe.restype = POINTER(CellRecord)
        cell: CellRecord = describe().contents
        if cell.abi != self.abi:
            raise ImportError(
                f"{self._folder}: {name} is of ABI {cell.abi}, expected {self.abi}; install again"
            )
        if cell.digest.decode() != self.cells.get(name):
            raise ImportError(
                f"{self._folder}: {name} has the equations {cell.digest.decode()}, expected "
                f"{self.cells.get(name)}; install again"
            )
        return cell

    def _of_machine(self, every: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
        """The objects for this machine, the lowest level first. Raises ImportError."""
        machine = platform.machine().lower()
        machine = MACHINES.get(machine, machine)
        if sys.platform != "linux" or machine not in every:
            fix = "compile its cells here with cellgen, which writes wheels for Linux alone"
            if sys.platform == "linux":
                fix = "build them for it with `cellgen wheel`"
            raise ImportError(
                f"{self._folder} has kernels for Linux on {', '.join(every)}, and this is "
                f"{sys.platform} on {machine}; {fix}"
            )
        return every[machine]

    def _chosen(self) -> dict[str, str]:
        """The object to load. Raises ImportError: the processor has too little, or no such level.

        Where there is a probe, it says the number of the highest level that the processor has.
        """
        probe = self._manifest["probes"].get(self._variants[0]["machine"])
        reached = 1 if probe is None else int(self._load(probe).cellgen_level())
        usable = [v for v in self._variants if int(v["number"]) <= reached]
        if not usable:
            raise ImportError(
                f"{self._folder} needs a processor with {self._variants[0]['needs']}, which this "
                f"one has not; compile its cells here with cellgen"
            )
        named = os.environ.get(VARIABLE, "")
        if not named:
            return usable[-1]
        for variant in usable:
            if variant["level"] == named:
                return variant
        raise ImportError(
            f"{VARIABLE} is {named!r}, expected a level that this package and the processor have, "
            f"one of {', '.join(v['level'] for v in usable)}; correct or unset it"
        )

    def _load(self, file: str) -> ctypes.CDLL:
        """Load an object that is what was packed. Raises ImportError."""
        path = self._folder / file
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != self._manifest["sha256"][file]:
                raise ImportError(f"{path} is not what was packed: it is damaged; install it again")
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"cannot load {path}: {error}") from error
