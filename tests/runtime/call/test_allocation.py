"""Calls for which there is no memory: MemoryError, nothing changed or lost, and the next is right.

Every request for memory of a call is made to fail in turn, alone and with all that follow: those of
the interpreter, of NumPy, of cffi and of teams of threads. See ``tests/faults``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cellgen.runtime.host.out_of_memory import (
    dense,
    named_in_memory_errors,
    of_steps,
    steps_within,
)
from tests import faults

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or shutil.which("cc") is None,
    reason="needs glibc and a C compiler",
)
QUICK = (
    *("step", "forward with saving", "forward on two threads", "pack", "bind", "a long call"),
    *("backward with a mask", "layers forward", "a call that C makes", "forward in segments"),
)
"""Scenarios with few requests."""
CELLS = ("gru", "lstm_block_cell", "slstm_heads", "min_gru")
"""States alone; outputs that are no states; heads; no product that waits for a state."""


@pytest.fixture(scope="module")
def preload(tmp_path_factory) -> str:
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(faults.__file__).parent / "faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], check=True)
    return str(library)


def said(preload: str, *arguments: str) -> str:
    """Run ``python -m tests.faults``; return what it says. A crash is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *arguments],
        env={**os.environ, "LD_PRELOAD": preload},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@needs_glibc
def test_a_call_without_memory_raises_and_the_next_one_is_right(preload):
    lines = said(preload, "gru", "small", *QUICK).splitlines()
    assert len(lines) == 2 * len(QUICK)
    assert all(int(line.split()[-2]) > 0 for line in lines)


@needs_glibc
@pytest.mark.slow
def test_states_of_segments_are_compared_without_a_buffer(preload):
    """More than 500 numbers of float32, by a tolerance: NumPy would end the process."""
    assert "near: " in said(preload, "gru", "large", "forward in segments, near")


@needs_glibc
@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("cell", CELLS)
def test_every_request_of_every_call_may_fail(cell, size, preload):
    assert said(preload, cell, size).count("layers backward, two steps") == 2


def test_only_errors_without_a_word_count_as_lack_of_memory():
    class Owner:
        @named_in_memory_errors(lambda owner: "here")
        def work(self, error: Exception) -> None:
            raise error

    silent = "<built-in function where> returned NULL without setting an exception"
    with pytest.raises(MemoryError, match=r"^here: no memory for an array"):
        Owner().work(SystemError(silent))
    with pytest.raises(SystemError, match="bad argument"):
        Owner().work(SystemError("bad argument to internal function"))
    with pytest.raises(ValueError, match="without"):
        Owner().work(ValueError(silent))


def test_tables_of_steps_are_contiguous():
    """So that arithmetic on them needs no buffer."""
    within = steps_within(np.array([0, 2, 3]), 3)
    assert within.T.tolist() == [[False] * 3, [True, True, False], [True] * 3]
    assert of_steps(np.array([4, 5]), 3).tolist() == [[4] * 3, [5] * 3]
    transposed = dense(np.arange(6).reshape(2, 3).T)
    assert transposed.flags.c_contiguous
    assert transposed.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert dense(np.float64(2)).shape == ()
    assert np.shares_memory(dense(within), within)
