"""The parent's side of a contestant's process: start it, ask it, end it.

Thread counts are equal by two means: the environment that libraries read when they are imported,
and affinity to as many processors as there are threads, which no library can exceed.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cellgen.bench.peers import Peer
from cellgen.bench.problem import Arrays, Mode, Problem
from cellgen.errors import CellgenError

ENDING_SECONDS = 5.0
SETTLE_SECONDS, GLANCE_SECONDS = 0.3, 0.005

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NPROC",
    "TF_NUM_INTRAOP_THREADS",
    "CELLGEN_NUM_THREADS",
)
QUIET = {
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore",
}


class WorkerError(CellgenError):
    """A contestant's process failed; the message is its error."""

    code = "bench"


@dataclass(frozen=True)
class Patience:
    """How long a process is waited for: seconds an answer, and a time after which not at all.

    A process that takes longer is ended; the next problem gets a new one, while there is time.
    """

    limit: float | None = None
    until: float | None = None
    """By ``time.monotonic``."""

    @classmethod
    def of(cls, limit: float | None, seconds: float | None) -> Self:
        """So many seconds an answer, and so many from this moment for all of them."""
        return cls(limit, None if seconds is None else time.monotonic() + seconds)

    @property
    def seconds(self) -> float | None:
        """For the next answer; None: any number."""
        left = None if self.until is None else max(0.0, self.until - time.monotonic())
        return min((n for n in (self.limit, left) if n is not None), default=None)

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.until is not None and time.monotonic() >= self.until


class Worker:
    """A contestant in its own process; its methods are those of ``worker.Session``."""

    def __init__(self, peer: Peer, threads: int, patience: Patience = Patience()) -> None:
        self.peer = peer
        self.threads = threads
        self.patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with _confined(self.threads):
            return subprocess.Popen(
                [sys.executable, "-m", "cellgen.bench.worker", self.peer.module, str(self.threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment(self.threads),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait_until_imported(self) -> None:
        """Wait for the greeting. Raises WorkerError where the import fails."""
        self._answer()

    def prepare(self, problem: Problem, mode: Mode) -> None:
        """Start the peer on a problem."""
        if self.patience.over:
            raise self._too_late()
        if self.patience != Patience() and self._process.poll() is not None:
            self._close_pipes()
            self._process = self._started()
            self.wait_until_imported()
        self._ask("prepare", problem, mode)

    def results(self) -> Arrays:
        """Return what the peer computed."""
        answer = self._ask("results")
        assert isinstance(answer, dict)
        return answer

    def release(self) -> None:
        """Let the peer forget the problem."""
        self._ask("release")

    def repeats(self, seconds: float) -> int:
        """Calls that fill so many seconds."""
        return int(self._number("repeats", seconds))

    def time(self, repeats: int) -> float:
        """Seconds of a call, the median of some."""
        return self._number("time", repeats)

    def sgemm(self, n: int, repeats: int = 1) -> float | None:
        """Seconds of a product of n x n matrices, or None where the peer has none."""
        answer = self._ask("sgemm", n, repeats)
        return answer if isinstance(answer, float) else None

    def copy(self, count: int) -> float:
        """Seconds of a copy of so many numbers."""
        return self._number("copy", count)

    def peak(self, problem: Problem, mode: Mode) -> int:
        """Bytes at the peak of a call."""
        return int(self._number("peak", problem, mode))

    def settle(self) -> None:
        """Wait until the process is idle, but not for ever.

        Threads of BLAS libraries and of sessions go on spinning for some 100 ms after a call.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            before = _processor_seconds(self._process.pid)
            time.sleep(GLANCE_SECONDS)
            after = _processor_seconds(self._process.pid)
            if before is not None and after is not None and after - before < GLANCE_SECONDS / 10:
                return

    def close(self) -> None:
        """End the process: it ends itself when its stdin is closed, else it is made to."""
        process = self._process
        self._close_pipes()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent to a dead process
                    pipe.close()

    def _number(self, verb: str, *arguments: object) -> float:
        answer = self._ask(verb, *arguments)
        if not isinstance(answer, int | float):
            raise WorkerError(f"{self.peer.name}: {verb} gave {answer!r}, expected a number")
        return answer

    def _ask(self, verb: str, *arguments: object) -> object:
        assert self._process.stdin is not None
        try:
            pickle.dump((verb, arguments), self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            raise self._death() from None
        return self._answer()

    def _answer(self) -> object:
        assert self._process.stdout is not None
        seconds = self.patience.seconds
        if seconds is not None:
            # Nothing is left in the pipe's buffer: there is one answer to each question.
            ready, _, _ = select.select([self._process.stdout], [], [], seconds)
            if not ready:
                self._process.kill()
                self._process.wait()
                raise self._too_late()
        try:
            ok, answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._death() from None
        if not ok:
            raise WorkerError(f"{self.peer.name}: {answer}")
        return answer

    def _too_late(self) -> WorkerError:
        limit = self.patience.limit
        if self.patience.over or limit is None:
            return WorkerError(f"{self.peer.name}: was not ready in the time that there was")
        return WorkerError(f"{self.peer.name}: took longer than {limit:.0f} s")

    def _death(self) -> WorkerError:
        code = self._process.wait(ENDING_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        return WorkerError(f"{self.peer.name}: its process ended with status {code}{said}")


def environment(threads: int) -> dict[str, str]:
    """Variables of a worker: the caller's, with thread counts and silence on top."""
    flags = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return {
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        **QUIET,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }


def _processor_seconds(pid: int) -> float | None:
    """What all threads of a process have used; None where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:
        return None


def processors(threads: int) -> tuple[int, ...] | None:
    """Choose processors for workers, of different cores first; None where there is no affinity."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    firsts: dict[str, int] = {}
    for number in allowed:
        firsts.setdefault(_core(number), number)
    ordered = [*firsts.values(), *(n for n in allowed if n not in firsts.values())]
    return tuple(sorted(ordered[:threads]))


def _core(number: int) -> str:
    """Name the core that a processor belongs to: processors of one core share its units."""
    path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(number)


@contextmanager
def _confined(threads: int) -> Iterator[None]:
    """Stay on the chosen processors for a while: a process that is started then stays there."""
    chosen = processors(threads)
    if chosen is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
