"""Capture what a call launches in a CUDA graph, and replay it when the same call comes again.

Input: a ``Launch``, with everything that its kernels depend on as ``key``. A graph holds addresses,
not values: what lies in the arrays may change between calls. It is launched on the caller's stream,
and graphs of one stream, which run one after the other, share a workspace. Capturing happens on a
stream of this module's own, so that it works for the default stream too; a caller who captures gets
the kernels themselves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cellgen.errors import DeviceError

KEPT = 32
"""Graphs of a function that are kept; the one unused longest goes first."""
IDLE = 256
"""Calls of a function after which a graph that none of them replayed may make room by itself:
where more calls take turns than are kept, capturing each of them again would cost more than it
saves."""
SEEN = 256
"""Calls that are remembered, to know one that comes again."""
FEWEST = 8
"""Nodes below which a graph saves nothing: launching it costs about as much as some kernels."""


class GraphLibrary(Protocol):
    """What is needed of a loaded library."""

    ffi: Any

    @property
    def lib(self) -> Any:
        """What has its functions."""

    def error(self, code: int) -> str:
        """Say what a code means and what to do."""

    def allocate(self, device: int, size: int, stream: int) -> int:
        """Take device memory. Raises MemoryError, DeviceError."""

    def free(self, address: int, stream: int) -> None:
        """Give device memory back in the order of a stream."""

    def is_captured(self, stream: int) -> tuple[int, bool]:
        """Whether a stream is being captured into a graph, behind a code."""


def stream_text(stream: int) -> str:
    """Name a stream in a message."""
    return f"stream {stream:#x}" if stream else "the default stream"


@dataclass(frozen=True)
class Launch:
    """One call of a function: ``run(stream, workspace)`` launches its kernels, returns a code.

    ``may_be_refused``: blocks may have to be on the device together, which not every device does.
    """

    label: str
    key: bytes
    device: int
    stream: int
    size: int
    run: Callable[[int, int], int]
    may_be_refused: bool = False

    def fault(self, what: str) -> DeviceError:
        """Say what went wrong, and where."""
        place = f"on device {self.device}, {stream_text(self.stream)}"
        return DeviceError(f"{self.label}: {place}: {what}")


class GraphWorkspace:
    """Device memory for the graphs of one stream, given back with the last of them."""

    def __init__(self, library: GraphLibrary, device: int, stream: int, size: int) -> None:
        self.device, self.stream, self.size, self._library = device, stream, size, library
        self.address = library.allocate(device, size, stream)

    def serves(self, call: Launch) -> bool:
        """Whether a call can use it."""
        return (self.device, self.stream) == (call.device, call.stream) and self.size >= call.size

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._library.free(self.address, self.stream)


class CapturedGraph:
    """A graph that can be launched, and the workspace that its kernels use.

    ``used`` is the number of the call that launched it last.
    """

    used = 0

    def __init__(self, library: GraphLibrary, handle: object, workspace: GraphWorkspace) -> None:
        self._library, self._handle, self.workspace = library, handle, workspace
        self._stream = library.ffi.cast("void *", workspace.stream)

    def launch(self) -> int:
        """Launch on the stream that it is kept for; returns a code."""
        return int(self._library.lib.cellgen_cuda_graph_launch(self._handle, self._stream))

    def __del__(self) -> None:
        self._library.lib.cellgen_cuda_graph_destroy(self._handle)


class Graphs:
    """The graphs of one function, by the calls that they replay."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[bytes, CapturedGraph] = OrderedDict()
        self._seen: OrderedDict[bytes, bool] = OrderedDict()
        self._streams: dict[int, object] = {}
        self._calls = 0
        self._lock, self._busy = threading.RLock(), False

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Give up all graphs and their workspaces."""
        with self._lock:
            if not self._busy:
                self._graphs.clear()

    def launch(self, library: GraphLibrary, call: Launch, wanted: bool | None) -> bool:
        """Replay a call, capturing it before if that pays; tell whether it has been launched.

        ``wanted`` None: from the second time on that the call comes, if it has kernels enough.
        False means that the caller launches: also while the stream is being captured, and for a
        signal's handler that comes while its own thread is here.

        Raises:
            DeviceError: with ``wanted``, for a call that cannot be captured.
        """
        if _is_captured(library, call):
            return False
        with self._lock:
            if self._busy:
                return False
            self._busy = True
            try:
                return self._launch(library, call, wanted)
            finally:
                self._busy = False

    def _launch(self, library: GraphLibrary, call: Launch, wanted: bool | None) -> bool:
        self._calls += 1
        graph = self._graphs.get(call.key)
        if graph is None and (wanted or self._came_before(call.key)):
            graph = self._capture(library, call, wanted)
        if graph is None:
            return False
        self._graphs.move_to_end(call.key)
        graph.used = self._calls
        code = graph.launch()
        if code:
            raise call.fault(library.error(code))
        return True

    def _came_before(self, key: bytes) -> bool:
        """Whether a call comes again and may pay; remembers it."""
        before = self._seen.get(key)
        if before is None:
            self._seen[key] = True
            while len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        return bool(before)

    def _capture(
        self, library: GraphLibrary, call: Launch, wanted: bool | None
    ) -> CapturedGraph | None:
        """Capture a call; None if it pays not, or cannot be captured and nobody insists."""
        if len(self._graphs) >= KEPT:
            oldest = next(iter(self._graphs.values()))
            if not wanted and self._calls - oldest.used < IDLE:
                return None
            self._graphs.popitem(last=False)
        stream = self._stream(library, call)
        shared = (g.workspace for g in self._graphs.values() if g.workspace.serves(call))
        workspace = next(shared, None) or GraphWorkspace(
            library, call.device, call.stream, call.size
        )
        ffi, lib = library.ffi, library.lib
        handle, nodes = ffi.new("void **"), ffi.new("int64_t *")
        code = lib.cellgen_cuda_graph_begin(stream)
        if not code:
            code = call.run(int(ffi.cast("uintptr_t", stream)), workspace.address)
            ended = lib.cellgen_cuda_graph_end(stream, handle, nodes)
            code = code or ended
        if not code and (wanted or nodes[0] >= FEWEST):
            graph = CapturedGraph(library, handle[0], workspace)
            self._graphs[call.key] = graph
            return graph
        self._seen[call.key] = False
        lib.cellgen_cuda_graph_destroy(handle[0])
        if code and wanted:
            raise call.fault(
                f"its kernels cannot be captured in a CUDA graph: {library.error(code)}; pass "
                f"graph=False to launch them one by one"
            )
        return None

    def _stream(self, library: GraphLibrary, call: Launch) -> object:
        """The stream to capture on."""
        if call.device not in self._streams:
            handle = library.ffi.new("void **")
            code = library.lib.cellgen_cuda_stream_create(handle)
            if code:
                raise call.fault(f"making a stream to capture on: {library.error(code)}")
            self._streams[call.device] = handle[0]
        return self._streams[call.device]


def _is_captured(library: GraphLibrary, call: Launch) -> bool:
    """Whether the caller is capturing the stream into a graph."""
    code, capturing = library.is_captured(call.stream)
    if code:
        raise call.fault(library.error(code))
    return capturing
