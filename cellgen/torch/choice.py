"""Choose the configurations of a form's kernels at the first call on a device, by their times.

Input: the launch of a call and its tensors. Output: the launch, configured. Each kernel of a memory
or a scan is timed with each of its blocks, warps and stages, on the streams of the call itself,
into arrays that are dropped; of the chunks' lengths, and of the two ways to form what is read, that
is taken whose sum is least, and so is into how many segments the steps of a scan are cut: of both
passes, or of the forward pass alone where the call does not train. Before a configuration gives a
result it is compared with the equations (``first_use``); where it is wrong the next best is. The
cache remembers. ``CELLGEN_TUNE=0`` takes the first of the lists, and so does
a call while a graph of CUDA is captured, or under ``torch.use_deterministic_algorithms``.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cellgen.errors import BuildError
from cellgen.runtime.build import cache
from cellgen.runtime.progress import CallProgress, progress
from cellgen.torch.cuts import Cut, configurations, may_be_read_once, size_of
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
from cellgen.torch.passes import PlanRun
from cellgen.torch.timed import Candidate, Timed, Timer, sorted_times, timer_of

if TYPE_CHECKING:
    from cellgen.torch.launched import FormLaunch

VARIABLE, PROVE = "CELLGEN_TUNE", "CELLGEN_PROVE"
"""0 in the environment: nothing is chosen, nothing compared."""
MOST_COMPARED = 3
"""Configurations that are compared before the error of the best is the caller's."""
log = logging.getLogger("cellgen")


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
    if not any(map(_is_chosen, launch.module.PLAN["forward"])):
        return (FIRST,)
    key = _call_key(launch, theta)
    if key not in choices_of_process():
        timer = timer_of(theta[0].device)
        if timer is None:
            return (FIRST,)
        choices = _recalled_or_measured(launch, theta, timer)
        if not choices and is_capturing(theta[0].device):
            return (FIRST,)
        choices_of_process()[key] = choices or (FIRST,)
    return choices_of_process()[key]


@functools.cache
def choices_of_process() -> dict[object, Sequence[Chosen]]:
    """The choices of this process that need no look into the cache."""
    return {}


def _forget(launch: FormLaunch, theta: Sequence[Tensor], wrong: Sequence[Chosen]) -> None:
    """Choose configurations no more that were found to be wrong."""
    key = _call_key(launch, theta)
    choices_of_process()[key] = right = [
        one for one in choices_of_process()[key] if one not in wrong
    ]
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
    scans = [one for one in launch.module.PLAN["forward"] if _is_scan(one)]
    own += [(size_of(one["units"], sizes), sizes["B"].bit_length()) for one in scans]
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
    rows = [{"blocks": one.blocks, "ms": one.ms, "note": one.note} for one in choices]
    cell, module, device, *_, dtype, _ = stated
    of = {"cell": cell, "module": module, "device": device, "dtype": dtype}
    cache.remember(_name(stated), {**of, "stated": list(stated), "choices": rows})


def _recalled(stated: Sequence[str]) -> list[Chosen]:
    facts = cache.recall(_name(stated)) or {}
    rows = facts.get("choices", [])
    try:
        return [_chosen_of(row) for row in rows]  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError):  # a damaged entry is none
        return []


def _chosen_of(row: Mapping[str, Any]) -> Chosen:
    return Chosen(dict(row["blocks"]), float(row["ms"]), str(row["note"]))


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
                choices = apart_from_modes.submit(measure_choices, launch, theta, timer).result()
            except torch.OutOfMemoryError as error:  # a call needs less than what times it
                log.warning("%s: no memory to time its kernels: %s", launch.cell, error)
                return []
        if choices:
            _remember(stated, choices)
        else:
            log.warning("%s: no configuration of its kernels could be timed", launch.cell)
    return choices


@contextmanager
def _by_one_process(name: str) -> Iterator[None]:
    """Let others wait that are about to measure the same, where the cache can be written."""
    with ExitStack() as stack:
        with suppress(BuildError):
            stack.enter_context(cache.building(name))
        yield


# --- what is measured ----------------------------------------------------------------------------


def _is_scan(operation: Row) -> bool:
    """Whether an operation goes from step to step, unit by unit."""
    return operation["op"] == "launch" and not operation["is_flat"]


def _is_chosen(operation: Row) -> bool:
    """Whether kernels of an operation have configurations."""
    return operation["op"] == "memory" or _is_scan(operation)


def measure_choices(launch: FormLaunch, theta: Sequence[Tensor], timer: Timer) -> list[Chosen]:
    """Choices for all layers of a cell, the best first: the next best of one is that of all."""
    device = theta[0].device
    with on_device(device), torch.no_grad():
        run = launch.to(device).run(theta)
        operations = run.plan["forward"]
        last = max(place for place, one in enumerate(operations) if _is_chosen(one))
        ranked: list[list[Chosen]] = []
        what = f"{launch.cell}: choosing kernels for {device}"
        for operation in operations[: last + 1]:
            if _is_chosen(operation):
                ranked.append(_ranked_of(run, operation, timer, what))
                if not ranked[-1]:
                    return []
                run.chosen = {**run.chosen, **ranked[-1][0].blocks}
            run.operations([operation])
    choices = [_joined(ranked, place) for place in range(max(map(len, ranked)))]
    if choices[0].note:
        log.warning("%s: %s", launch.cell, choices[0].note)
    return choices


def _ranked_of(run: PlanRun, operation: Row, timer: Timer, what: str) -> list[Chosen]:
    if operation["op"] == "memory":
        return _ranked(run.memory_of(operation["layer"]), run.trains, timer, what)
    return _ranked_scan(run, operation, timer, what)


def _joined(ranked: Sequence[Sequence[Chosen]], place: int) -> Chosen:
    ones = [of[min(place, len(of) - 1)] for of in ranked]
    return Chosen(
        {kernel: blocks for one in ones for kernel, blocks in one.blocks.items()},
        sum(one.ms for one in ones),
        "; ".join(dict.fromkeys(one.note for one in ones if one.note)),
    )


def _ranked(memory: MemoryLaunches, trains: bool, timer: Timer, what: str) -> list[Chosen]:
    """Choices for a memory, the best first: of each length of chunks and each way to read."""
    ways = {1: "training" if trains else "forward", 0: "few_rows"}
    back = memory.plan["backward"] if trains else ()
    passes = {
        reads: _by_kernel([*memory.plan[way], *back])
        for reads, way in ways.items()
        if memory.plan[way]
    }
    scan = memory.plan["forward"][-1]["kernel"]
    choices: list[Chosen] = []
    lengths = memory.lengths()
    if not lengths:
        return [Chosen({}, note=memory.untuned)]
    with progress(what) as bar:
        for length in lengths:
            times = _times(memory, length, passes, timer, bar)
            for reads, kernels in passes.items():
                of = {n: times.get(_key(n, rows), []) for n, rows in kernels.items()}
                for one in _by_rank(of):
                    scans = {**one.blocks[scan], "READS": reads}
                    choices.append(replace(one, blocks={**one.blocks, scan: scans}))
    return sorted(choices, key=lambda one: one.ms)


def _by_rank(times: Mapping[str, Timed]) -> Iterator[Chosen]:
    """The best of every kernel, the second of every kernel, and so on; none if one runs with none.

    So the second shares as little as it can with one that is found to be wrong.
    """
    depth = max(map(len, times.values())) if all(times.values()) else 0
    for place in range(depth):
        taken = {kernel: of[min(place, len(of) - 1)] for kernel, of in times.items()}
        blocks = {kernel: settings for kernel, (_, settings) in taken.items()}
        yield Chosen(blocks, sum(ms for ms, _ in taken.values()))


Kernels = Mapping[str, Sequence[Row]]
Key = tuple[str, str]


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
) -> Mapping[object, Timed]:
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

    def drop_shares() -> None:
        for name in shared:
            arrays.pop(name, None)

    return sorted_times(candidates, timer, bar, lambda one: _key(one.kernel, one.rows), drop_shares)


# --- scans ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScanLaunches:
    """Launches of kernels over rows and units, as a run has them configured."""

    run: PlanRun

    def make(self, launches: Sequence[Row]) -> None:
        """Make the arrays that are not there."""
        for row in launches:
            self.run.each(row, self.run.call_of)

    def compile(self, launches: Sequence[Row]) -> None:
        """Have Triton compile the kernels."""
        for row in launches:
            self.run.each(row, self._compile)

    def launch(self, launches: Sequence[Row]) -> None:
        """Launch the kernels."""
        self.run.operations(launches)

    def _compile(self, kernel: str, *of: Any) -> None:
        tensors, constants, grid = self.run.call_of(kernel, *of)
        getattr(self.run.module, kernel).warmup(*tensors, **constants, grid=grid)


def _beside(run: PlanRun, chosen: Mapping[str, Mapping[str, int]]) -> PlanRun:
    """The same run with other configurations, on the same arrays; it adds none to the other's.

    Arrays that hang on how steps are cut are its own.
    """
    other, own = copy.copy(run), {"segments", "shares"}
    other.chosen, other.sizes = chosen, dict(run.sizes)
    other.arrays = {n: a for n, a in run.arrays.items() if not own.intersection(run.axes(n))}
    return other


Cuts = dict[str, dict[Cut, Mapping[str, int]]]


def _ranked_scan(run: PlanRun, forward: Row, timer: Timer, what: str) -> list[Chosen]:
    """Choices for a scan, the best first: of each number of segments, common to both passes."""
    back = f"{forward['kernel']}_back"
    passes = [forward, *(run.plan["backward"] if run.trains else ())]
    own = (forward["kernel"], back)
    launches = {one["kernel"]: one for one in passes if one.get("kernel") in own}
    whole = _beside(run, {})
    ScanLaunches(whole).make([*launches.values()])
    ways = _ways(whole, launches)
    candidates = {
        (kernel, cut): Candidate(
            ScanLaunches(_beside(whole, {kernel: settings})),
            kernel,
            settings,
            [launches[kernel]],
            n,
        )
        for cuts in reversed(ways)
        for kernel, of in cuts.items()
        for n, (cut, settings) in enumerate(of.items())
    }
    keys = {id(one): key for key, one in candidates.items()}
    with progress(what) as bar:
        every = [*candidates.values()]
        times = sorted_times(every, timer, bar, lambda one: keys[id(one)])
    choices = list[Chosen]()
    for cuts in ways:
        timed: dict[str, Timed] = {}
        for kernel, of in cuts.items():
            ms = ((times[kernel, cut][0][0], s) for cut, s in of.items() if (kernel, cut) in times)
            timed[kernel] = sorted(ms, key=lambda one: one[0])
        choices += _by_rank(timed)
    return sorted(choices, key=lambda one: one.ms)


def _ways(run: PlanRun, launches: Mapping[str, Row]) -> list[Cuts]:
    """Of each way to cut steps how kernels are cut by each configuration, without repetition.

    A way is a number of programs, or a length of segments that are read once, which all kernels
    are that can be: their steps fit registers.
    """
    ways: dict[str, Cuts] = {}
    every = [*configurations(run.plan)]
    width = run.like.element_size()
    for way in dict.fromkeys((one["programs"], one["once"]) for one in every):
        cuts: Cuts = {kernel: {} for kernel in launches}
        for settings in (one for one in every if (one["programs"], one["once"]) == way):
            for kernel, launch in launches.items():
                if way[1] and launch["once"] and not may_be_read_once(launch, settings, width):
                    continue
                cuts[kernel].setdefault(_beside(run, {kernel: settings}).cut_of(launch), settings)
        if all(cuts.values()) and (not way[1] or _is_read_once(cuts)):
            ways.setdefault(str([list(of) for of in cuts.values()]), cuts)
    return [*ways.values()]


def _is_read_once(cuts: Cuts) -> bool:
    return any(cut.once and cut.grid[2] > 1 for of in cuts.values() for cut in of)
