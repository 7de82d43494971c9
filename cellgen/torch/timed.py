"""Time kernels with some configurations on a device, by its events.

Input: candidates, which are launches with a configuration each. Output: milliseconds of each that
the device runs.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from cellgen.runtime.progress import CallProgress
from cellgen.torch.devices import on_device
from cellgen.torch.memories import Row

FLUSHED = 1 << 28
"""Bytes that are written before a kernel is timed: more than caches hold, and longer under way
than Python takes to launch the kernel behind them."""
ROUNDS, SECONDS = (3, 15), 0.02
"""Times that a kernel is timed, at least and at most, and for how long about."""
PATIENCE = 30.0
"""Seconds after which kernels are compiled no more, but for the first of each list: products of
float32 that are formed term by term are long texts for an assembler."""

log = logging.getLogger("cellgen")


class KernelsToTime(Protocol):
    """Launches of a configuration, by rows of a plan."""

    def make(self, launches: Sequence[Row]) -> None:
        """Make the arrays that are not there."""

    def compile(self, launches: Sequence[Row]) -> None:
        """Have Triton compile the kernels."""

    def launch(self, launches: Sequence[Row]) -> None:
        """Launch the kernels."""


@dataclass(frozen=True)
class Candidate:
    """A kernel with some blocks, warps and stages, and its launches in the passes of a layer."""

    launches: KernelsToTime
    kernel: str
    settings: Mapping[str, int]
    rows: Sequence[Row]
    place: int = 0
    """In the list of its kernel."""

    def launch(self) -> None:
        """Launch the kernel as often as the passes do."""
        self.launches.launch(self.rows)


class Timer(Protocol):
    """What compiles candidates, and says how many milliseconds one takes."""

    def prepare(self, candidates: Sequence[Candidate], bar: CallProgress) -> Sequence[Candidate]:
        """Compile some candidates; returns those that may be timed."""

    def time(self, candidate: Candidate) -> float:
        """Milliseconds. Raises whatever a compiler or a device does."""


Timed = list[tuple[float, Mapping[str, int]]]
"""Milliseconds and settings, the least first."""


def sorted_times(
    candidates: Sequence[Candidate],
    timer: Timer,
    bar: CallProgress,
    key: Callable[[Candidate], Hashable],
    before: Callable[[], None] = lambda: None,
) -> dict[Hashable, Timed]:
    """The times of what runs, by a key; ``before`` is called before each."""
    times = dict[Hashable, Timed]()
    for one in timer.prepare(candidates, bar):
        before()
        try:
            times.setdefault(key(one), []).append((timer.time(one), one.settings))
        except Exception as error:  # of a device that has too little
            log.info("%s is left out with %s: %s", one.kernel, one.settings, error)
        bar.step()
    return {of: sorted(every, key=lambda one: one[0]) for of, every in times.items()}


def timer_of(device: torch.device) -> Timer | None:
    """What times kernels on a device; None on the CPU, where they are interpreted."""
    return DeviceTimer(device) if device.type == "cuda" else None


class DeviceTimer:
    """Time kernels on a device, by its events."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @cached_property
    def _flushed(self) -> Tensor:
        return torch.empty(FLUSHED, dtype=torch.uint8, device=self.device)

    def prepare(self, candidates: Sequence[Candidate], bar: CallProgress) -> Sequence[Candidate]:
        """Compile beside each other, for a while; the first of each list always.

        Assemblers are processes, and Triton lets Python go on.
        """
        ordered = sorted(candidates, key=lambda one: one.place)
        for candidate in ordered:  # arrays are made by one thread
            candidate.launches.make(candidate.rows)
        until = time.monotonic() + PATIENCE

        def is_compiled(one: Candidate) -> bool:
            if one.place and time.monotonic() > until:
                return False
            try:
                with on_device(self.device), torch.no_grad():
                    one.launches.compile(one.rows)
            except Exception as error:  # of Triton, or of an assembler
                log.info("%s is left out with %s: %s", one.kernel, one.settings, error)
                return False
            bar.step()
            return True

        with ThreadPoolExecutor(workers()) as pool:
            are_compiled = list(pool.map(is_compiled, ordered))
        return [one for one, is_so in zip(ordered, are_compiled, strict=True) if is_so]

    def time(self, candidate: Candidate) -> float:
        """The median of some times, each behind a write that leaves nothing in the cache."""
        candidate.launch()  # loads the kernel
        torch.cuda.synchronize(self.device)
        once = self._once(candidate.launch, 1)[0]
        rounds = max(ROUNDS[0], min(ROUNDS[1], int(1e3 * SECONDS / max(once, 1e-3))))
        return statistics.median(self._once(candidate.launch, rounds))

    def _once(self, call: Callable[[], None], rounds: int) -> list[float]:
        """Milliseconds of each of some rounds."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
        for begin, end in events:
            self._flushed.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize(self.device)
        return [float(begin.elapsed_time(end)) for begin, end in events]


def workers() -> int:
    """Threads that compile: one, where Triton does not say that it may be called by several."""
    import triton

    return min(8, os.cpu_count() or 1) if hasattr(triton, "AsyncCompileMode") else 1
