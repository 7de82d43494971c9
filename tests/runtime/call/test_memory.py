"""The memory of large results: used again once free, never while anything refers to it."""

from __future__ import annotations

import ast
import builtins
import dis
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.runtime.call.engine import CallInC
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.runtime.device.graphs import CapturedGraph, GraphWorkspace
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.host import memory
from cellgen.runtime.host.memory import KEPT, LINE, SMALLEST, empty

FLOAT = np.dtype(np.float32)
SHAPE = (SMALLEST // 4, 2)


@pytest.fixture(autouse=True)
def _empty_shelf() -> None:
    memory.SHELF.forget()


def test_a_free_block_is_used_again() -> None:
    array = empty(SHAPE, FLOAT)
    address = array.ctypes.data
    assert array.shape == SHAPE
    assert array.dtype == FLOAT
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    assert address % LINE == 0
    del array
    again = empty((SHAPE[1], SHAPE[0]), FLOAT)
    assert again.ctypes.data == address
    assert memory.SHELF.bytes == 0


@pytest.mark.parametrize(
    "refer",
    [
        lambda array: array[3:5],
        lambda array: array.T,
        lambda array: array.reshape(-1)[7:],
        lambda array: memoryview(array),
        lambda array: np.frombuffer(array, np.float32),
        lambda array: np.asarray(array[::2]).view(np.int32),
    ],
    ids=["rows", "transpose", "flat", "memoryview", "frombuffer", "bits"],
)
def test_whatever_refers_to_a_block_keeps_it(refer: object) -> None:
    array = empty(SHAPE, FLOAT)
    address = array.ctypes.data
    assert callable(refer)
    other = refer(array)
    del array
    gc.collect(1)  # what this test made is young
    assert empty(SHAPE, FLOAT).ctypes.data != address
    memory.SHELF.blocks.clear()
    del other
    assert empty(SHAPE, FLOAT).ctypes.data == address


def test_small_arrays_are_numpys_own() -> None:
    array = empty((16, 4), FLOAT)
    assert array.flags.owndata
    del array
    assert not memory.SHELF.blocks


def test_no_more_than_a_limit_waits() -> None:
    size = KEPT // 4
    arrays = [empty((size // 4 - count,), FLOAT) for count in range(6)]
    kept = [array.nbytes for array in arrays]
    while arrays:
        del arrays[0]
        assert memory.SHELF.bytes <= KEPT
    waiting = [len(blocks) for blocks in memory.SHELF.blocks.values()]
    assert sum(waiting) == 3
    assert list(memory.SHELF.blocks) == [bytes_ + LINE for bytes_ in kept[-3:]]
    assert memory.SHELF.bytes == sum(memory.SHELF.blocks)


def test_a_block_given_back_while_another_is_taken_is_freed() -> None:
    array = empty(SHAPE, FLOAT)
    with memory.SHELF.lock:
        del array
        assert empty(SHAPE, FLOAT).shape == SHAPE
    assert memory.SHELF.bytes == 0


def test_a_child_of_a_fork_starts_with_an_empty_shelf() -> None:
    del_me = empty(SHAPE, FLOAT)
    del del_me
    assert memory.SHELF.bytes
    with memory.SHELF.lock:
        child = os.fork()
        if child == 0:
            free = memory.SHELF.bytes == 0 and not memory.SHELF.lock.locked()
            os._exit(0 if free else 1)
    assert os.waitpid(child, 0)[1] == 0


# --- the end of a process -----------------------------------------------------------------------

FINALIZERS: tuple[Callable[..., object], ...] = (
    memory.Loan.__del__,
    CallInC.__del__,
    memory.Shelf.put,
    DeviceArray.__del__,
    GraphWorkspace.__del__,
    CapturedGraph.__del__,
    DeviceLibrary.free,
)
"""What runs where an object ends, and what that calls."""


def test_a_result_that_outlives_every_module_ends_without_a_word() -> None:
    program = (
        "import sys, numpy as np; from cellgen.runtime.host import memory;"
        "result = memory.empty((memory.SMALLEST, 2), np.dtype(np.float32));"
        "sys.held = memory, sys.modules['__main__']"  # cleared one after the other, not freed
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stderr == b""


@pytest.mark.parametrize("finalizer", FINALIZERS, ids=lambda f: f.__qualname__)
def test_a_finalizer_reads_no_global(finalizer: Callable[..., object]) -> None:
    read = {one.argval for one in dis.get_instructions(finalizer) if one.opname == "LOAD_GLOBAL"}
    assert read <= {*dir(builtins)}


def test_every_finalizer_is_looked_at() -> None:
    found = {
        f"{node.name}.__del__"
        for path in Path(cellgen.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(one, ast.FunctionDef) and one.name == "__del__" for one in node.body)
    }
    assert found == {f.__qualname__ for f in FINALIZERS if f.__name__ == "__del__"}
