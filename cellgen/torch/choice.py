"""Choose the configurations of memories' kernels at the first call on a device, by their times.

Input: the launch of a call and its tensors. Output: the launch, configured. Each kernel is timed
with each of its blocks, warps and stages, on the streams of the call itself, into arrays that are
dropped; of the chunks' lengths, and of the two ways to form what is read, that is taken whose sum
is least: of both passes, or of the forward pass alone where the call does not train. Before a
configuration gives a result it is compared with the equations (``first_use``); where it is wrong
the next best is. The cache remembers. ``CELLGEN_TUNE=0`` takes the first of the lists, and so does
a call while a graph of CUDA is captured, or under ``torch.use_deterministic_algorithms``.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from cellgen.errors import BuildError
from cellgen.runtime.build import cache
from cellgen.runtime.progress import CallProgress, progress
from cellgen.torch.devices import is_capturing, on_device
from cellgen.torch.errors import WrongKernelsError
from cellgen.torch.first_use import prove_once, versions
from cellgen.torch.memories import (
    FIRST,
    UPSTREAM,
    Chosen,
    MemoryLaunches,
    Row,
    settings_of,
)

if TYPE_CHECKING:
    from cellgen.torch.launched import FormLaunch

VARIABLE, PROVE = "CELLGEN_TUNE", "CELLGEN_PROVE"
"""0 in the environment: nothing is chosen, nothing compared."""
MOST_COMPARED = 3
"""Configurations that are compared before the error of the best is the caller's."""
FLUSHED = 1 << 28
"""Bytes that are written before a kernel is timed: more than caches hold, and longer under way
than Python takes to launch the kernel behind them."""
ROUNDS, SECONDS = (3, 15), 0.02
"""Times that a kernel is timed, at least and at most, and for how long about."""
PATIENCE = 30.0
"""Seconds after which kernels are compiled no more, but for the first of each list: products of
float32 that are formed term by term are long texts for an assembler."""

log = logging.getLogger("cellgen")


@dataclass(frozen=True)
class Candidate:
    """A kernel with some blocks, warps and stages, and its launches in the passes of a memory."""

    memory: MemoryLaunches
    kernel: str
    settings: Mapping[str, int]
    rows: Sequence[Row]
    place: int = 0
    """In the list of its kernel."""

    def launch(self) -> None:
        """Launch the kernel as often as the passes do."""
        self.memory.launch(self.rows)


class Timer(Protocol):
    """What compiles candidates, and says how many milliseconds one takes."""

    def prepare(self, candidates: Sequence[Candidate], bar: CallProgress) -> Sequence[Candidate]:
        """Compile some candidates; returns those that may be timed."""

    def time(self, candidate: Candidate) -> float:
        """Milliseconds. Raises whatever a compiler or a device does."""


# --- the choice of a call ------------------------------------------------------------------------


def configured(launch: FormLaunch, theta: Sequence[Tensor]) -> FormLaunch:
    """The launch of a call with the best configuration that is right. Raises DeviceRunError."""
    device, dtype = theta[0].device, theta[0].dtype
    choices, error = _choices(launch, theta), None
    proves = os.environ.get(PROVE, "1") != "0"
    for place, choice in enumerate(choices[:MOST_COMPARED] if proves else choices[:1]):
        chosen = replace(launch, chosen=choice)
        try:
            if proves:
                prove_once(chosen, device, dtype)
        except WrongKernelsError as refused:
            error = error or refused
            continue
        if place:
            log.warning("%s; the next best configuration is taken: %s", error, choice.text)
            _forget(launch, theta, choices[:place])
        return chosen
    assert error is not None
    raise error


def _choices(launch: FormLaunch, theta: Sequence[Tensor]) -> Sequence[Chosen]:
    """Configurations, the best first; never none."""
    if os.environ.get(VARIABLE, "1") == "0" or torch.are_deterministic_algorithms_enabled():
        return (FIRST,)
    if not launch.module.PLAN.get("memories"):
        return (FIRST,)
    key = _call_key(launch, theta)
    if key not in _chosen():
        timer = timer_of(theta[0].device)
        if timer is None:
            return (FIRST,)
        found = _recalled_or_measured(launch, theta, timer)
        if not found and is_capturing(theta[0].device):
            return (FIRST,)
        _chosen()[key] = found or (FIRST,)
    return _chosen()[key]


@functools.cache
def _chosen() -> dict[object, Sequence[Chosen]]:
    """The choices of this process that need no look into the cache."""
    return {}


def _forget(launch: FormLaunch, theta: Sequence[Tensor], wrong: Sequence[Chosen]) -> None:
    """Choose configurations no more that were found to be wrong."""
    key = _call_key(launch, theta)
    _chosen()[key] = right = [one for one in _chosen()[key] if one not in wrong]
    _remember(_stated(launch, theta), right)


def _call_key(launch: FormLaunch, theta: Sequence[Tensor]) -> tuple[object, ...]:
    """What tells calls apart whose choices may differ.

    Times hang on how many programs of how many steps there are, but little on their exact numbers:
    between two powers of two of either all calls share one choice, so that sequences of all lengths
    have some dozen choices, each of which was measured at the first of its sizes.
    """
    sizes, own = launch.sizes, list[object]()
    for memory in launch.module.PLAN["memories"]:
        K, V, N = (math.prod(sizes[dim] for dim in memory["sizes"][axis]) for axis in "KVN")
        own += [K, V, (N * sizes["B"]).bit_length()]
    kind = (launch.gaps is not None, launch.gaps is not None and launch.gaps.resets, launch.trains)
    place = (theta[0].device, theta[0].dtype)
    return (launch.cell, launch.module.__file__, *place, *own, sizes["T"].bit_length(), *kind)


def _stated(launch: FormLaunch, theta: Sequence[Tensor]) -> tuple[str, ...]:
    """All that a choice holds for: the call, but for which of several like devices it is on."""
    _, _, device, dtype, *others = _call_key(launch, theta)
    assert isinstance(device, torch.device)
    return (*versions(launch, device), str(dtype), str(others))


# --- what is remembered --------------------------------------------------------------------------


def _name(stated: Sequence[str]) -> str:
    return "chosen-" + cache.digest((str(place), text) for place, text in enumerate(stated))


def _remember(stated: Sequence[str], choices: Sequence[Chosen]) -> None:
    rows = [{"blocks": one.blocks, "ms": one.ms} for one in choices]
    cache.remember(_name(stated), {"stated": list(stated), "choices": rows})


def _recalled(stated: Sequence[str]) -> list[Chosen]:
    facts = cache.recall(_name(stated)) or {}
    rows = facts.get("choices", [])
    try:
        return [Chosen(dict(row["blocks"]), float(row["ms"])) for row in rows]  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError):  # a damaged entry is none
        return []


def _recalled_or_measured(
    launch: FormLaunch, theta: Sequence[Tensor], timer: Timer
) -> list[Chosen]:
    """What is known, or found out now; nothing where that has to wait."""
    device, stated = theta[0].device, _stated(launch, theta)
    known = _recalled(stated)
    if known or is_capturing(device):
        return known
    with _by_one_process(_name(stated)):
        known = _recalled(stated)  # by a process beside this one
        if known:
            return known
        if device.type == "cuda":
            torch.cuda.current_stream(
                device
            ).synchronize()  # the thread below has a stream of its own
        with ThreadPoolExecutor(1) as apart_from_modes:  # of grad, autocast, devices of a caller
            try:
                found = apart_from_modes.submit(_measured, launch, theta, timer).result()
            except torch.OutOfMemoryError as error:  # a call needs less than what times it
                log.warning("%s: no memory to time its kernels: %s", launch.cell, error)
                return []
        if found:
            _remember(stated, found)
        else:
            log.warning("%s: no configuration of its kernels could be timed", launch.cell)
    return found


@contextmanager
def _by_one_process(name: str) -> Iterator[None]:
    """Let others wait that are about to measure the same, where the cache can be written."""
    with ExitStack() as stack:
        with suppress(BuildError):
            stack.enter_context(cache.building(name))
        yield


# --- what is measured ----------------------------------------------------------------------------


def _measured(launch: FormLaunch, theta: Sequence[Tensor], timer: Timer) -> list[Chosen]:
    """Choices for all memories of a cell, the best first: the next best of one is that of all."""
    device = theta[0].device
    with on_device(device), torch.no_grad():
        run = launch.to(device).run(theta)
        operations = run.plan["forward"]
        layers = {n: one["layer"] for n, one in enumerate(operations) if one["op"] == "memory"}
        ranked: list[list[Chosen]] = []
        for place, operation in enumerate(operations[: max(layers) + 1]):
            if place in layers:
                what = f"{launch.cell}: choosing kernels for {device}"
                ranked.append(_ranked(run.memory_of(layers[place]), launch.trains, timer, what))
                if not ranked[-1]:
                    return []
                run.chosen = {**run.chosen, **ranked[-1][0].blocks}
            run.operations([operation])
    return [_joined(ranked, place) for place in range(max(map(len, ranked)))]


def _joined(ranked: Sequence[Sequence[Chosen]], place: int) -> Chosen:
    ones = [of[min(place, len(of) - 1)] for of in ranked]
    return Chosen(
        {kernel: blocks for one in ones for kernel, blocks in one.blocks.items()},
        sum(one.ms for one in ones),
    )


def _ranked(memory: MemoryLaunches, trains: bool, timer: Timer, what: str) -> list[Chosen]:
    """Choices for a memory, the best first.

    Of each length of chunks and each way to read: the best of every kernel, the second of every
    kernel, and so on. So the second shares as little as it can with one that is found to be wrong.
    """
    ways = {1: "training" if trains else "forward", 0: "few_rows"}
    back = memory.plan["backward"] if trains else ()
    passes = {
        reads: _by_kernel([*memory.plan[way], *back])
        for reads, way in ways.items()
        if memory.plan[way]
    }
    scan = memory.plan["forward"][-1]["kernel"]
    found: list[Chosen] = []
    lengths = memory.lengths()
    with progress(what) as bar:
        for length in lengths:
            times = _times(memory, length, passes, timer, bar)
            for reads, kernels in passes.items():
                of = [times[_key(kernel, rows)] for kernel, rows in kernels.items()]
                depth = max(map(len, of)) if all(of) else 0
                for place in range(depth):
                    taken = [one[min(place, len(one) - 1)] for one in of]
                    blocks = {n: dict(s) for n, (_, s) in zip(kernels, taken, strict=True)}
                    blocks[scan]["READS"] = reads
                    found.append(Chosen(blocks, sum(ms for ms, _ in taken)))
    return sorted(found, key=lambda one: one.ms)


Kernels = Mapping[str, Sequence[Row]]
Key = tuple[str, str]
Timed = list[tuple[float, Mapping[str, int]]]


def _by_kernel(rows: Sequence[Row]) -> Kernels:
    kernels: dict[str, list[Row]] = {}
    for row in rows:
        kernels.setdefault(row["kernel"], []).append(row)
    return kernels


def _key(kernel: str, rows: Sequence[Row]) -> Key:
    """A kernel and what is constant in its launches: it is timed once for two passes alike."""
    return kernel, str([row["constants"] for row in rows])


def _times(
    memory: MemoryLaunches,
    length: int,
    passes: Mapping[int, Kernels],
    timer: Timer,
    bar: CallProgress,
) -> dict[Key, Timed]:
    """Of each kernel the times of its configurations that run with chunks of a length.

    All launches share their arrays, but for shares of gradients, as many as blocks are.
    """
    arrays, buffers = dict(memory.arrays), memory.plan["buffers"]
    numbers = torch.Generator(memory.device).manual_seed(0)  # a caller's own stay as they were
    for name in (n for n, b in buffers.items() if b["role"] in UPSTREAM):
        arrays[name] = memory.new(name).normal_(generator=numbers)
    shared = [name for name, buffer in buffers.items() if buffer["shares"]]
    wanted = {_key(k, rows): (k, rows) for of in passes.values() for k, rows in of.items()}
    candidates: list[Candidate] = []
    for kernel, rows in wanted.values():
        every = [settings_of(one) for one in memory.configurations(kernel)]
        fitting = (settings for settings in every if settings["BT"] == length)
        for place, settings in enumerate(fitting):
            run = replace(memory, chosen={"": {"BT": length}, kernel: settings}, arrays=arrays)
            candidates.append(Candidate(run, kernel, settings, rows, place))
    times: dict[Key, Timed] = {key: [] for key in wanted}
    for one in timer.prepare(candidates, bar):
        for name in shared:
            arrays.pop(name, None)
        try:
            times[_key(one.kernel, one.rows)].append((timer.time(one), one.settings))
        except Exception as error:  # of a device that has too little
            log.info("%s is left out with %s: %s", one.kernel, one.settings, error)
        bar.step()
    return {key: sorted(of, key=lambda one: one[0]) for key, of in times.items()}


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
            candidate.memory.make(candidate.rows)
        until = time.monotonic() + PATIENCE

        def is_compiled(one: Candidate) -> bool:
            if one.place and time.monotonic() > until:
                return False
            try:
                with on_device(self.device), torch.no_grad():
                    one.memory.compile(one.rows)
            except Exception as error:  # of Triton, or of an assembler
                log.info("%s is left out with %s: %s", one.kernel, one.settings, error)
                return False
            bar.step()
            return True

        with ThreadPoolExecutor(_workers()) as pool:
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


def _workers() -> int:
    """Threads that compile: one, where Triton does not say that it may be called by several."""
    import triton

    return min(8, os.cpu_count() or 1) if hasattr(triton, "AsyncCompileMode") else 1
