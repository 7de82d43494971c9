"""Streams of a device beside the current one, and the tier of kernels that are launched to them.

What launches kernels reads the tier of its run here, and keeps memory for a stream that others do
not wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from cellgen.runtime.directions import AUTO

TIER: ContextVar[str] = ContextVar("cellgen_tier", default=AUTO)
"""The tier that kernels of a device are launched with."""


@contextmanager
def in_tier(tier: str) -> Iterator[None]:
    """Launch kernels of a device with a tier for the body."""
    before = TIER.set(tier)
    try:
        yield
    finally:
        TIER.reset(before)


class CudaStreams:
    """Streams of CUDA, as torch has them."""

    def __init__(self) -> None:
        self._own = threading.local()

    def current(self, device: torch.device) -> Any:
        """The stream to which kernels go now."""
        return torch.cuda.current_stream(device)

    def beside(self, device: torch.device) -> Any:
        """This thread's other stream of a device: the same at each call, for graphs know theirs."""
        streams: dict[torch.device, Any] = self._own.__dict__
        stream = streams.get(device)
        if stream is None:
            stream = streams[device] = torch.cuda.Stream(device)
        return stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Send kernels to a stream for the body."""
        return torch.cuda.stream(stream)  # type: ignore[no-any-return]

    def keep(self, tensors: Iterable[Any], stream: Any) -> None:
        """Keep the memory of tensors until a stream has come to what it does now."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                tensor.detach().record_stream(stream)


class InOrder(CudaStreams):
    """The emulation's one stream, whose kernels have run when a call returns."""

    def current(self, device: torch.device) -> Any:
        """Itself: nothing waits for it."""
        return self

    def beside(self, device: torch.device) -> Any:
        """The same once more."""
        return self

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Change nothing."""
        return nullcontext()

    def keep(self, tensors: Iterable[Any], stream: Any) -> None:
        """Change nothing."""

    def wait_stream(self, other: Any) -> None:
        """Do not wait."""


STREAMS: dict[str, CudaStreams] = {"cuda": CudaStreams(), "cpu": InOrder()}
"""By torch's name of the type of device."""


def keep_until_run(device: torch.device, tensors: Iterable[Any]) -> None:
    """Keep what kernels of the current stream read until they have run; they are launched."""
    streams = STREAMS[device.type]
    streams.keep(tensors, streams.current(device))
