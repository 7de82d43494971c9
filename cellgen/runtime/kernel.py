"""Call a compiled cell by the names of its equations.

Input: an ``Interface`` and the sources it was generated with. Output: ``Kernel``, with one callable
per function of the interface: ``kernel.forward(x=..., h_prev=...)`` returns a named tuple.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Never

import numpy as np

from cellgen import accept
from cellgen.errors import BuildError
from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.runtime.build.cache import digest
from cellgen.runtime.build.library import Library, load
from cellgen.runtime.build.shared_object import Built, build
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.call import compiled
from cellgen.runtime.call.arguments import no_function_error
from cellgen.runtime.call.backward import SequenceBackward
from cellgen.runtime.call.called import called_as, form_error
from cellgen.runtime.call.forward import SequenceForward
from cellgen.runtime.call.function import KernelFunction
from cellgen.runtime.call.over_time import TimeFunction
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.folders import read_interface
from cellgen.runtime.notebook import ShownInNotebooks
from cellgen.runtime.parameters import InitialNumbers, initial_of, shapes_of
from cellgen.runtime.paths import generated_folder
from cellgen.runtime.results import Array, Results, result_class
from cellgen.runtime.streams.make import stream_of
from cellgen.runtime.streams.rows import Id
from cellgen.runtime.streams.stream import Stream
from cellgen.runtime.system import after_fork_in_child

__all__ = ["Kernel", "KernelFunction", "Results", "TimeFunction", "load_folder", "result_class"]

RESERVED = ("name", "interface", "functions")
"""Attributes of a kernel that are not in ``dir(Kernel)``: no function can have these names."""

KINDS: dict[str, type[KernelFunction]] = {
    "sequence_forward": SequenceForward,
    "sequence_backward": SequenceBackward,
}


class Kernel(ShownInNotebooks):
    """A cell whose functions are compiled C; nothing is compiled or loaded before it is needed.

    ``sources`` is the folder of a generated cell or the texts themselves. Safe to call from
    several threads and after a fork. Pickled, it travels as its interface and its sources, or by
    its name where they ship with cellgen; where it arrives, the cache has its object or it is
    compiled. A copy is the kernel itself. Raises BuildError for an interface that cannot be called.
    """

    def __init__(
        self, interface: Interface, sources: Path | SourceFiles, *, include: Path | None = None
    ) -> None:
        self.name = interface.name
        self.interface = interface
        for item in interface.functions:
            if item.name in (*dir(Kernel), *RESERVED) or item.name.startswith("_"):
                raise BuildError(
                    f"{interface.name}.{item.name}: a kernel function cannot be named "
                    f"{item.name!r}; rename it"
                )
        self.functions: dict[str, KernelFunction] = {
            item.name: KINDS.get(item.name, KernelFunction)(self, item)
            for item in interface.functions
        }
        self.__dict__.update(self.functions)  # `kernel.forward` needs no __getattr__
        self._sources = sources
        self._include = include
        self._library: Library | None = None
        self._built: Built | None = None
        self._digest = ""
        self._lock = threading.RLock()
        _kernels.add(self)

    def __getattr__(self, name: str) -> KernelFunction:
        functions: dict[str, KernelFunction] = self.__dict__.get("functions", {})
        if name in functions:
            return functions[name]
        known = ", ".join(functions)
        if name.startswith("sequence_"):
            known += "; `cellgen explain` says why not over time"
        raise AttributeError(f"kernel {self.__dict__.get('name')} has no {name!r}; it has {known}")

    def __call__(self, /, *unnamed: Never, **named: Never) -> Never:
        """Raise ArgumentError: functions of a kernel are called, not the kernel itself."""
        raise no_function_error(self.name, self.interface.functions, unnamed, named)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __reduce__(self) -> tuple[object, ...]:
        sources = self.sources()
        sent = None if sources.digest == shipped_digest(self.name) else sources
        return _arrived, (ABI_VERSION, self.interface, sources.digest, sent)

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: object) -> Kernel:
        return self

    def __repr__(self) -> str:
        state = "loaded" if self._library else "not built yet" if not self._built else "built"
        return f"<kernel {self.name}: {', '.join(self.functions)}; {state}>"

    @called_as("sources()")
    def sources(self) -> SourceFiles:
        """Read what the kernel is compiled from. Raises BuildError when files are missing."""
        if isinstance(self._sources, SourceFiles):
            return self._sources
        return SourceFiles.read(self._sources, self.name, self._include)

    @called_as("digest()")
    def digest(self) -> str:
        """Identify what the kernel computes and how it lays out what one call hands to another.

        Kernels of the same sources and interface have the same. Raises BuildError.
        """
        if not self._digest:
            self.build()  # from then on, the sources are what runs
            self._digest = self.sources().digest
        return self._digest

    @called_as("build()")
    def build(self) -> Built:
        """Compile the kernel unless the cache has it, and load it; tell which it was.

        Raises BuildError.
        """
        with self._lock:
            if self._built is None or self._library is None:
                sources = self.sources()
                built = build(sources, self.interface, compiled.EXTENSION.compile_beside)
                self._library = load(built.path, self.interface)
                self._built, self._sources = built, sources  # what runs, should files change
            return self._built

    @called_as("shapes({dims})")
    def shapes(self, **sizes: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array of a call by name: ``shapes(T=7, B=2, I=3, H=4)``.

        Shapes are those of ``sequence_forward`` where ``T`` is given, else those of ``forward``.
        Raises ArgumentError for a dimension that is missing, unknown or no number.
        """
        return shapes_of(self.interface, sizes)

    @called_as("init(np.random.default_rng(0), {sizes})")
    def init(
        self,
        rng: np.random.Generator,
        /,
        *,
        dtype: np.dtype[np.floating] | type[np.floating] = np.float32,
        initial: Mapping[str, InitialNumbers] | None = None,
        **sizes: int,
    ) -> dict[str, Array]:
        """Return weights and biases to begin with, by name: ``init(rng, I=3, H=4)``.

        With ``B`` it also returns the states, as they begin. Weights of inputs start by Glorot &
        Bengio's rule, those of states orthogonal, biases 0 and those of forget gates 1;
        ``cellgen.runtime.initial`` lists what differs, as PyTorch's and JAX's layers start.
        ``initial`` has other numbers by name, or functions of the generator and a shape, and must
        have those of fixed weights (``gradient=False``). Raises ArgumentError.
        """
        return initial_of(self.interface, rng, dtype, initial, sizes)

    def pack(self, /, *unnamed: Never, **weights: object) -> Packed:
        """Lay out weights once for many calls: ``sequence_forward(x=..., packed=...)``.

        For ``sequence_backward`` they are laid out by its first call.

        Takes every weight and bias of the cell by name. Raises ArgumentError, BuildError.
        """
        function = self.functions.get("sequence_forward")
        if not isinstance(function, SequenceForward):
            raise BuildError(f"{self.name}.pack: this cell has no sequence_forward to pack for")
        return function.pack(*unnamed, **weights)

    @called_as("stream(weights), weights being arrays by name")
    def stream(
        self,
        weights: Mapping[str, object],
        rows: int | Iterable[Id] = 1,
        *,
        room: int | None = None,
        block: int = 1,
        output: str = "",
        products: str | None = None,
        **sizes: int,
    ) -> Stream:
        """Return a session that goes on step by step: ``y = kernel.stream(weights).step(x)``.

        ``weights`` maps weights, biases and run-time scalars to arrays and numbers, as they are
        now: they are copied. ``rows`` is how many rows there are at first, named 0, 1, ..., or
        their ids; up to ``room`` may be there at a time. ``block`` is the most steps of one
        ``run``. ``output`` is what a step returns, the cell's first output where left out;
        ``products`` as ``pack`` takes it. ``sizes`` has dimensions that no weight tells (``H=16``).

        Raises ArgumentError, BuildError, MemoryError.
        """
        return stream_of(
            self, weights, rows, room, block, output=output, products=products, sizes=sizes
        )

    def library(self, /, *unnamed: Never, **named: Never) -> Library:
        """Return the loaded shared object, built first if need be. Raises BuildError."""
        if unnamed or named:
            raise form_error("library", "library()", "it takes none", self, *unnamed, **named)
        if self._library is None:
            self.build()
        assert self._library is not None
        return self._library


_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()


def renew_locks() -> None:
    """Give a forked child locks that no thread of its parent holds."""
    for kernel in _kernels:
        kernel._lock = threading.RLock()


after_fork_in_child(renew_locks)


ARRIVALS = 16
"""Kernels from pickles that a process keeps, so that one which comes with every task is loaded
once."""


@functools.lru_cache(maxsize=ARRIVALS)
def _arrived(abi: int, interface: Interface, digest: str, sources: SourceFiles | None) -> Kernel:
    """Make a kernel again from a pickle; ``sources`` None: those that ship.

    Raises BuildError: another version of cellgen, sources that are not what was sent.
    """
    name = interface.name
    require_abi(name, abi)
    if sources is not None:
        actual, origin, remedy = sources.digest, "in the pickle", "pickle the kernel again"
        kernel = Kernel(interface, sources)
    else:
        actual, origin = shipped_digest(name) or "none", "that ship here"
        remedy = "install the same version of cellgen on both sides"
        kernel = Kernel(interface, generated_folder() / name)
    if actual != digest:
        raise BuildError(
            f"{name}: the sources {origin} have the digest {actual}, expected {digest}, of those "
            f"that were pickled; {remedy}",
            code="build.pickle",
        )
    return kernel


def require_abi(name: str, abi: int) -> None:
    """Raise BuildError for a kernel that a cellgen of another ABI pickled."""
    if abi != ABI_VERSION:
        raise BuildError(
            f"{name}: this kernel was pickled by a cellgen of ABI {abi}, expected {ABI_VERSION}; "
            f"pickle it again with this version of cellgen, or install that one",
            code="build.pickle",
        )


def shipped_digest(name: str) -> str | None:
    """The digest of the sources of a cell that ships; None where no cell of that name does."""
    folder = generated_folder() / name
    return SourceFiles.read(folder, name).digest if (folder / f"{name}.c").is_file() else None


def folder_kernel(folder: Path) -> Kernel:
    """Return the built kernel of a generated folder: what its ``__init__.py`` holds.

    Raises BuildError.
    """
    kernel = Kernel(read_interface(folder), folder)
    kernel.build()
    return kernel


def load_folder(path: Path) -> Kernel:
    """Import a generated cell from any folder and return its kernel. Raises BuildError."""
    folder = accept.path("load_folder", "path", path, error=BuildError)
    file = folder / "__init__.py"
    if not file.is_file():
        raise BuildError(
            f"{folder} holds no generated cell ({file.name} is missing); "
            f"write one with `cellgen build <cell> --out {folder.parent}`"
        )
    name = f"_cellgen_folder_{digest([('folder', str(folder))])}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise BuildError(
            f"{file} defines no `kernel`, so it is not a generated cell; "
            f"write it again with `cellgen build`"
        )
    return kernel
