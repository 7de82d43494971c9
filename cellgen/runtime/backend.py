"""What a backend is: what compiles the files of a target and calls them. ``BACKENDS`` by name.

A backend has the name of the target whose files it runs (``targets/target.py``). Its module is
imported when it is asked for: loading a C kernel imports nothing of CUDA. Others are those of
packages, whose entry points name a module with ``TARGET`` and ``BACKEND``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from cellgen.errors import BuildError
from cellgen.runtime.imports import whole_imports
from cellgen.runtime.plugins import TARGETS, named, plugins

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cellgen.runtime.abi import Interface
    from cellgen.runtime.build.shared_object import Built
    from cellgen.runtime.build.sources import SourceFiles
    from cellgen.runtime.call.views import ArrayView
    from cellgen.runtime.options import Options

BACKENDS: dict[str, str] = {
    "c": "cellgen.runtime.host.backend",
    "cuda": "cellgen.runtime.device.backend",
    "triton": "cellgen.runtime.triton.backend",
}
"""The module of each backend, which has it as ``BACKEND``."""
DEFAULT = "c"
"""What is meant where no target is named; the only one that cellgen requires tools for."""


@dataclass(frozen=True)
class Need:
    """A tool or library that a backend looks for.

    ``look`` says what is there, or raises a BuildError whose message ends with the remedy, after a
    semicolon.
    """

    name: str
    look: Callable[[], str]


class AnyKernel(Protocol):
    """What kernels of all backends have."""

    @property
    def name(self) -> str:
        """Of the cell."""

    @property
    def interface(self) -> Interface:
        """Its functions, and what they take and return."""

    @property
    def functions(self) -> Mapping[str, Callable[..., object]]:
        """By name."""

    def build(self) -> Built:
        """Compile it unless the cache has it, and load it. Raises BuildError."""


class WordsOfCall(NamedTuple):
    """A call as the engine has it: dimensions in order, addresses of its members and options.

    Options at 0: it says nothing.
    """

    dims: tuple[int, ...]
    members: int
    options: int


class CallOnDevice(Protocol):
    """A call that the engine has bound, whose arrays lie on a device."""

    @property
    def is_run(self) -> bool:
        """Whether a result has an element."""

    @property
    def words(self) -> WordsOfCall:
        """What launches it, once it is prepared; it leads somewhere as long as the call lives."""

    def prepare(
        self, results: Iterable[tuple[str, ArrayView]], tables: Mapping[str, ArrayView]
    ) -> None:
        """Add results that are new, and tables of steps."""


class Launcher(Protocol):
    """What launches one function over time on a device, of arguments that are checked."""

    def bind(
        self,
        element: str,
        arrays: Iterable[tuple[str, ArrayView]],
        options: Options,
        scalars: Iterable[tuple[str, float]],
    ) -> CallOnDevice:
        """Bind a call by the engine; its results are among the arrays. Raises BuildError."""

    def __call__(
        self,
        element: str,
        device: int,
        words: WordsOfCall,
        stream: int,
        workspace: Callable[[int], int],
        tier: str = "auto",
    ) -> None:
        """Launch a call that is prepared on a stream, in memory of the caller's.

        Raises DeviceError.
        """


class DeviceKernel(AnyKernel, Protocol):
    """What kernels of devices have beside."""

    def launcher(self, name: str) -> Launcher:
        """What launches a function by its name, for bindings that check themselves."""

    def number(self, address: float, dtype: str, device: int, stream: int) -> float:
        """Read a number of the arithmetic of elements of a type, which waits for the stream."""


class Backend(Protocol):
    """What compiles and calls the files of one target."""

    @property
    def name(self) -> str:
        """That of the target."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """Element types that kernels come in."""

    @property
    def threads(self) -> bool:
        """Whether kernels run on threads of the host, for which a plan is chosen."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that ``weigh`` knows."""

    @property
    def emulates(self) -> bool:
        """Whether kernels can be emulated on the CPU."""

    def toolchain(self) -> tuple[Need, ...]:
        """What it needs, for ``cellgen doctor``; first the compiler, or its like."""

    def preparing(self) -> AbstractContextManager[None]:
        """Begin what kernels of all cells need, while the body derives and builds one of them."""

    def build(self, files: SourceFiles, interface: Interface) -> Built:
        """Compile a cell unless the cache has it. Raises BuildError."""

    def kernel(self, interface: Interface, files: SourceFiles, *, emulated: bool) -> AnyKernel:
        """The kernel of a cell: compiled here or when it is first called. Raises BuildError."""

    def load(self, folder: Path, *, emulated: bool) -> AnyKernel:
        """The kernel of a generated folder. Raises BuildError."""

    def weigh(
        self, kernel: AnyKernel, sizes: Mapping[str, int], dtype: str, device: str
    ) -> list[str]:
        """Lines that say what is chosen for a shape on a device, on all known ones if it is empty.

        ``kernel`` is emulated where that can be.
        """


def backend_names(target: object = None) -> tuple[str, ...]:
    """Every target there is, of packages too; those of cellgen alone where ``target`` is one."""
    if isinstance(target, str) and target in BACKENDS:
        return tuple(BACKENDS)
    return tuple(dict.fromkeys((*BACKENDS, *(plugin.name for plugin in plugins(TARGETS)))))


def backend(name: str) -> Backend:
    """Import a backend, cellgen's own or that of a package.

    Raises:
        BuildError: there is none of this name, or the package that brings it is at fault.
    """
    if name not in BACKENDS:
        return cast("Backend", from_package(name, "BACKEND", _PARTS))
    with whole_imports():
        module = importlib.import_module(BACKENDS[name])
    own: Backend = module.BACKEND
    return own


_PARTS = ("name", "precisions", "threads", "devices", "emulates", "toolchain", "kernel", "load")


def from_package(name: str, part: str, attributes: tuple[str, ...]) -> object:
    """``TARGET`` or ``BACKEND`` of the module that a package brings as a target.

    Raises:
        BuildError: no package brings it, or what stands there is none: it has not these attributes.
    """
    plugin = named(TARGETS, name)
    if plugin is None:
        raise BuildError(
            f"there is no target {name!r}, expected one of {', '.join(backend_names())}",
            code="build.target",
        )
    value = getattr(plugin.load(BuildError), part, None)
    missing = [attribute for attribute in attributes if not hasattr(value, attribute)]
    if value is None:
        raise plugin.fault(f"{plugin.value} has no {part}", BuildError)
    if missing:
        raise plugin.fault(f"{part} of {plugin.value} has no {', '.join(missing)}", BuildError)
    label = getattr(value, "name", None)
    if label != name:
        raise plugin.fault(f"{part} of {plugin.value} is called {label!r}", BuildError)
    return value
