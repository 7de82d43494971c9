"""Launch the kernels of a call: its argument struct, the images that it needs, its workspace.

Input: the dimensions of a call that passed every check, and where the engine has the words of its
members and its options. Output: ``Launch``; results are written where the addresses point, when the
stream comes to it. Every door launches here: arrays of any library, torch's operators, JAX's
programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from cellgen.runtime.abi import Function, Interface
from cellgen.runtime.backend import WordsOfCall
from cellgen.runtime.call.views import ArrayView
from cellgen.runtime.device.arrays import SUFFIXES
from cellgen.runtime.device.cuda_abi import cuda_symbols, over_time
from cellgen.runtime.device.engine import DeviceEngine, FarCall
from cellgen.runtime.device.graphs import Graphs, Launch
from cellgen.runtime.device.halves import CLUSTER, DEVICE, OWN, SHARED
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.device.settings import TABLES, TIERS, tier_of_run
from cellgen.runtime.directions import AUTO, HALF
from cellgen.runtime.options import Options

STAYS, LACKS_DEVICE, LACKS_CLUSTER = 1 << 62, 1 << 61, 1 << 60
"""In what a call needs: its blocks would stay on the device; kernels that tell whether they do."""
PARTS = {
    0: (SHARED, OWN),
    LACKS_DEVICE: (SHARED, OWN, DEVICE),
    LACKS_CLUSTER: (SHARED, OWN, CLUSTER),
    LACKS_DEVICE | LACKS_CLUSTER: (SHARED, OWN, DEVICE, CLUSTER),
}
"""The parts of a function's kernels that a call may take, by what it lacks."""
WAITING = ("together", HALF)
"""Tiers that leave open whether blocks stay on the device and wait for each other."""
WORD = 8
"""Bytes."""


class DeviceOwner(Protocol):
    """The kernel that a function belongs to."""

    name: str
    interface: Interface

    def digest(self) -> str:
        """Identify what the kernel computes."""

    def library(self, element: str = "") -> DeviceLibrary:
        """The loaded library, with functions of an element type."""

    def blas(self, device: int, path: str = "") -> object:
        """An open cuBLAS, or NULL."""

    def require_device(self, device: int) -> None:
        """Check that a device can run the kernel."""


@dataclass(frozen=True)
class _Entry:
    """A function in one element type: its struct, and the functions that take it.

    ``how`` is None for functions of one step.
    """

    symbol: str
    struct: object
    call: Callable[..., int]
    size: Callable[..., int]
    how: Callable[..., int] | None


class FunctionLauncher:
    """Launches one function of a kernel; nothing is checked."""

    def __init__(self, kernel: DeviceOwner, function: Function) -> None:
        self._kernel, self._function, self.graphs = kernel, function, Graphs()
        self._label = f"{kernel.name}.{function.name}"
        self.engine = DeviceEngine(kernel.interface, function)
        self._entries: dict[str, _Entry] = {}
        self._rows = function.dims.index("B") if function.team else None
        self._bytes = WORD * len((*function.struct_members, *function.results))
        flags = sum(len(option.axes) > 1 for option in TABLES.values())
        self._strides = 2 * (len(over_time(function)) + flags)

    def bind(
        self,
        element: str,
        arrays: Iterable[tuple[str, ArrayView]],
        options: Options,
        scalars: Iterable[tuple[str, float]],
    ) -> FarCall:
        """Bind a call whose arrays passed every check, results among them.

        Raises BuildError, CellgenError.
        """
        call = self.engine.bind(element, arrays, options, scalars)
        if call is None:
            raise self.engine.defect()
        return call

    def __call__(
        self,
        element: str,
        device: int,
        words: WordsOfCall,
        stream: int,
        workspace: Callable[[int], int],
        tier: str = AUTO,
    ) -> None:
        """Launch on a stream, or replay as a graph what came before with the same memory.

        ``workspace`` gives the address of so many bytes of the device, which nothing else may write
        before the stream has passed. ``tier`` is ``"auto"`` or ``"half"``. Raises DeviceError.
        """
        library = self._kernel.library(element)
        self._kernel.require_device(device)
        with library.on(device):
            ready = self.ready(library, element, device, words, stream, tier_of_run(tier))
            if not self.graphs.launch(library, ready, None):
                self._launch_in(library, ready, workspace)
            if ready.may_be_refused:
                library.warn_of_refusal(ready.device)

    def launch(self, library: DeviceLibrary, ready: Launch, graph: bool | None) -> None:
        """Launch a call in memory of the library's own, or replay it."""
        graphs = self.graphs
        if graph is False or not graphs.launch(library, ready, graph):
            workspace = _workspace(library, graphs, ready)
            try:
                _run(library, ready, workspace)
            finally:
                library.free(workspace, ready.stream)
        if ready.may_be_refused:
            library.warn_of_refusal(ready.device)

    def _launch_in(
        self, library: DeviceLibrary, ready: Launch, workspace: Callable[[int], int]
    ) -> None:
        """Launch in memory of the caller's."""
        try:
            address = workspace(ready.size)
        except Exception:  # of the caller's allocator
            if not len(self.graphs):
                raise
            self.graphs.clear()  # they hold workspaces
            address = workspace(ready.size)
        _run(library, ready, address)

    def ready(
        self,
        library: DeviceLibrary,
        element: str,
        device: int,
        words: WordsOfCall,
        stream: int,
        tier: str,
    ) -> Launch:
        """Fill the argument struct of a call; its device is current.

        Kernels that the call may take are loaded. Raises BuildError, DeviceError.
        """
        entry = self._entries.get(element) or self._look(library, element)
        ffi, blas, dims = library.ffi, self._kernel.blas(device), words.dims
        if self._rows is not None and not dims[self._rows]:
            dims = self._without_steps(dims)
        args, null = ffi.new(entry.struct), ffi.NULL
        ffi.memmove(args, ffi.cast("char *", words.members), self._bytes)
        args.tier, args.blas = TIERS[tier], blas
        strides = null
        if words.options:
            args.options = ffi.cast("cellgen_options *", words.options)[0]
            strides = args.options.strides
        needed = 0 if entry.how is None else entry.how(*dims, args)
        while library.loads and library.load(
            device, element, self._function.name, PARTS[needed & (LACKS_DEVICE | LACKS_CLUSTER)]
        ):
            needed = 0 if entry.how is None else entry.how(*dims, args)
        how = () if entry.how is None else (needed,)
        args.workspace_bytes = size = entry.size(*dims, int(blas != null), *how)
        said = repr((entry.symbol, dims, device, stream)).encode()
        if strides != null:  # what they are counts, not where
            args.options.strides = null
            said += bytes(ffi.buffer(strides, WORD * self._strides))
        key = said + bytes(ffi.buffer(args))
        if strides != null:
            args.options.strides = strides

        def run(on: int, workspace: int) -> int:
            """Launch the kernels."""
            args.workspace, args.stream = ffi.cast("void *", workspace), ffi.cast("void *", on)
            return int(entry.call(*dims, args))

        waits = tier in WAITING and needed & STAYS != 0
        return Launch(self._label, key, device, stream, size, run, waits)

    def _without_steps(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions that kernels count where there are no rows: then no steps either."""
        named = zip(self._function.dims, dims, strict=True)
        return tuple([0 if name == "T" else size for name, size in named])

    def _look(self, library: DeviceLibrary, element: str) -> _Entry:
        """Find the struct of the function in an element type, and what takes it."""
        function = self._function
        names = cuda_symbols(self._kernel.interface, function, SUFFIXES[element])
        lib = library.of(element)
        entry = self._entries[element] = _Entry(
            names.call,
            library.ffi.typeof(f"{names.struct} *"),
            getattr(lib, names.call),
            getattr(lib, names.workspace_size),
            getattr(lib, names.how) if function.team else None,
        )
        return entry


def _run(library: DeviceLibrary, ready: Launch, workspace: int) -> None:
    code = ready.run(ready.stream, workspace)
    if code:
        raise ready.fault(library.error(code))


def _workspace(library: DeviceLibrary, graphs: Graphs, call: Launch) -> int:
    """Take a workspace; where memory is short, graphs give theirs back first."""
    try:
        return library.allocate(call.device, call.size, call.stream)
    except MemoryError:
        if not len(graphs):
            raise
        graphs.clear()
        return library.allocate(call.device, call.size, call.stream)
