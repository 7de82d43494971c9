"""The generated Triton module of a cell: kept as a file, imported when it is asked for."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType

from cellgen.errors import BuildError
from cellgen.runtime.abi import Interface
from cellgen.runtime.build import cache
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles


def configuration_text(blocks: Mapping[str, Mapping[str, int]], ms: float, note: str) -> str:
    """Blocks, warps and stages by kernel, milliseconds, and a note, in words; empty for none.

    >>> configuration_text({"rows_1": {"units": 2, "warps": 1}}, 0.5, "")
    'rows_1 units=2 warps=1; 0.5 ms'
    """
    kernels = (
        f"{kernel} {' '.join(f'{name}={number}' for name, number in of.items())}"
        for kernel, of in blocks.items()
    )
    return "; ".join([*kernels, *([f"{ms:.3g} ms"] if blocks else []), *([note] if note else [])])


def module_digest(file: Path) -> str:
    """What tells a module from that of other equations, or of another version."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class TritonKernel:
    """Kernels of a cell for all steps at once; ``module`` has them, and ``PLAN`` their order.

    ``functions`` is empty: what runs the plan is a door, ``cellgen.torch``.
    """

    interface: Interface
    files: SourceFiles
    functions: Mapping[str, Callable[..., object]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the cell."""
        return self.interface.name

    def build(self) -> Built:
        """Keep the module as a file, from which Triton reads its kernels. Raises BuildError."""
        start = time.perf_counter()
        entry = f"{self.files.name}_triton-{self.files.digest}"
        path = cache.find(entry)
        if path is not None:
            return Built(path, True, time.perf_counter() - start)
        with cache.workplace() as place:
            (place / "module.py").write_text(self.files.files[0][1], encoding="utf-8")
            published = cache.publish(place, entry, "module.py")
        return Built(published, False, time.perf_counter() - start)

    @cached_property
    def module(self) -> ModuleType:
        """The module. Raises BuildError where Triton is not installed."""
        path = self.build().path
        name = f"cellgen_triton_{self.files.name}_{self.files.digest}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            raise BuildError(
                f"{self.name}: kernels of Triton need {error.name}; pip install {error.name}",
                code="build.triton",
            ) from None
        return module
