"""The workspace of calls: aligned bytes, which each thread keeps for its next call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import _cffi_backend
import numpy as np

from cellgen.runtime.abi import WORKSPACE_ALIGNMENT
from cellgen.runtime.results import Array

Pointer: TypeAlias = object
"""An address, as cffi has it."""

KEPT_WORKSPACE = 256 << 20
"""Bytes of workspace that each thread keeps for its next call; a larger one is freed at once."""


@dataclass(frozen=True)
class AlignedBytes:
    """Aligned bytes, and the array that owns them."""

    pointer: Pointer
    bytes: int
    owner: Array
    address: int = 0


NOTHING = AlignedBytes(None, -1, np.empty(0, np.uint8))


class _PerThread(threading.local):
    """What each thread keeps from one call to the next."""

    memory = NOTHING


per_thread = _PerThread()
"""``per_thread.memory`` is what the thread that asks keeps."""
_ffi = _cffi_backend.FFI()


def take_workspace(label: str, size: int, dims: tuple[int, ...]) -> AlignedBytes:
    """Return workspace for a call: this thread's, grown if need be. Raises MemoryError."""
    memory = per_thread.memory
    if memory.bytes >= size:
        return memory
    memory = new_memory(label, size, dims)
    if size <= KEPT_WORKSPACE:
        per_thread.memory = memory
    return memory


@contextmanager
def lending(memory: AlignedBytes | None) -> Iterator[None]:
    """Let the workspace of a call be its own while Python runs in its thread, as in handlers."""
    if memory is None or per_thread.memory is not memory:
        yield
        return
    per_thread.memory = NOTHING
    try:
        yield
    finally:
        if per_thread.memory.bytes < memory.bytes:
            per_thread.memory = memory


def new_memory(label: str, size: int, dims: tuple[int, ...]) -> AlignedBytes:
    """Return aligned bytes. Raises MemoryError."""
    try:
        owner = np.empty(size + WORKSPACE_ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise MemoryError(
            f"{label}: no memory for a workspace of {size:,} bytes "
            f"(dimensions {dims}); call it with fewer rows or steps at a time"
        ) from error
    address = owner.ctypes.data
    address += -address % WORKSPACE_ALIGNMENT
    return AlignedBytes(_ffi.cast("void *", address), size, owner, address)
