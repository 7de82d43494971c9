"""The process of one contestant: keeps its arrays, obeys commands on a pipe.

Input: pickled ``(verb, arguments)`` on stdin. Output: pickled ``(ok, answer)`` on stdout, which is
kept for that alone: whatever libraries print goes to stderr. Ends when its stdin is closed.
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from cellgen.bench import memory
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem

MAX_REPEATS = 100_000
COPIED_BYTES, COPY_ROUNDS = 32 << 20, 5
"""How much is copied in a round, in as many calls as it takes."""


class Session:
    """What a worker can be asked; a public method is a verb."""

    def __init__(self, module: str, threads: int) -> None:
        self._module = importlib.import_module(module)
        self._threads = threads
        self._prepared: Prepared | None = None
        self._found: object = None

    def prepare(self, problem: Problem, mode: Mode) -> None:
        """Draw the arrays, build what has to be built and run once, which compiles."""
        self.release()
        self._prepared = self._module.prepare(problem, mode, self._threads)
        self._found = self._prepared.run()

    def results(self) -> Arrays:
        """Name what the first run returned."""
        assert self._prepared is not None
        named = self._prepared.results(self._found)
        self._found = None
        return {name: np.ascontiguousarray(array) for name, array in named.items()}

    def release(self) -> None:
        """Drop the arrays of the last problem."""
        self._prepared = self._found = None

    def repeats(self, seconds: float) -> int:
        """Find how many calls last ``seconds``."""
        self.time(1)
        once = min(self.time(1), self.time(1))
        return max(1, min(MAX_REPEATS, math.ceil(seconds / max(once, 1e-9))))

    def time(self, repeats: int) -> float:
        """Seconds of a call, the median of ``repeats``, after one that wakes threads and caches.

        A processor that is taken away for some milliseconds is not the kernel's time.
        """
        assert self._prepared is not None
        self._prepared.run()
        return statistics.median(_seconds(self._prepared.run, 1) for _ in range(repeats))

    def sgemm(self, n: int, repeats: int = 1) -> float | None:
        """Operations per second of products of (n, n) matrices; None where there is no product."""
        make = getattr(self._module, "sgemm", None)
        if make is None:
            return None
        multiply: Callable[[], object] = make(n, self._threads)
        multiply()
        return 2.0 * n**3 * repeats / _seconds(multiply, repeats)

    def copy(self, count: int) -> float:
        """Bytes per second, read and written, of a warm copy: the best of several."""
        move: Callable[[], object] = self._module.copy(count, self._threads)
        repeats = max(1, min(MAX_REPEATS, COPIED_BYTES // max(count, 1)))
        move()
        return max(count * repeats / _seconds(move, repeats) for _ in range(COPY_ROUNDS))

    def peak(self, problem: Problem, mode: Mode) -> int:
        """Peak resident bytes of warm calls, less what was resident after the imports."""
        before = memory.resident()
        self.prepare(problem, mode)
        self._found = None
        memory.forget_peak()
        self.time(1)
        return memory.peak() - before


def main() -> None:
    """Serve until stdin is closed: ``python -m cellgen.bench.worker MODULE THREADS``."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        session = Session(sys.argv[1], int(sys.argv[2]))
    except Exception as error:
        _answer(answers, False, error)
        return
    _answer(answers, True, None)
    while True:
        try:
            verb, arguments = pickle.load(orders)
        except EOFError:
            return
        try:
            _answer(answers, True, getattr(session, verb)(*arguments))
        except Exception as error:
            _answer(answers, False, error)


def _seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def _answer(answers: BinaryIO, ok: bool, answer: object) -> None:
    if isinstance(answer, Exception):
        traceback.print_exception(answer)
        answer = f"{type(answer).__name__}: {answer}"
    pickle.dump((ok, answer), answers, protocol=pickle.HIGHEST_PROTOCOL)
    answers.flush()


if __name__ == "__main__":
    main()
