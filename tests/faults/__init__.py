"""Calls in a process where any request for memory can be made to fail: ``python -m tests.faults``.

Runs under ``LD_PRELOAD`` of ``faults.c``. Every scenario is a call of a kernel on arrays so large
that each needs a request of its own. It is run with its first request failing, its second, and so
on until it needs no more. What is not as it must be is printed; exit code 1 where anything is.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

import cellgen
from cellgen.runtime.call import engine, over_time
from cellgen.runtime.call import workspace as call_workspace
from cellgen.runtime.call.compiled import EXTENSION
from cellgen.runtime.host import memory, threads
from tests.drawing import draw_arrays
from tests.within import door_of

LEAST = 600
"""Bytes of a request that may fail, as faults.c has it; what is lost at each failure is as much."""
MANY = 2000
"""A scenario that needs more requests than this does not end."""
SMALL = {"T": 5, "B": 6, "I": 8, "H": 32, "K": 2, "D": 16}
LARGE = {"T": 40, "B": 16, "I": 8, "H": 64, "K": 2, "D": 32}
"""Results within and beyond what memory.py keeps for the next call."""

Arrays = dict[str, np.ndarray]
Call = Callable[[], object]


@dataclass
class Scenario:
    """A call, the arrays that it reads, and what is forgotten before each run, so that plans,
    workspace and teams are made anew; nothing of one that is ``in_c``."""

    name: str
    call: Call
    reads: Arrays
    kernel: cellgen.Kernel
    long: bool = False
    in_c: bool = False
    found: list[str] = field(default_factory=list)

    def forget(self) -> None:
        if self.in_c:
            return
        call_workspace.per_thread.memory = call_workspace.NOTHING
        memory.SHELF.forget()
        _, destroy = self.kernel.interface.team_symbols
        for team, library in threads.TEAMS.values():
            getattr(library.lib, destroy)(team)
        threads.TEAMS.clear()
        engine.LONG = 0 if self.long else 1 << 60


def flat(value: object) -> Iterator[np.ndarray]:
    """All arrays of a result, in order."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for name in value:
            yield from flat(value[name])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)


def bits(value: object) -> list[bytes]:
    return [array.tobytes() for array in flat(value)]


class Faults:
    """The library that this process runs under."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self.begin, self.end = library.faults_begin, library.faults_end
        self.begin.argtypes = [ctypes.c_long, ctypes.c_long]
        self.live = library.faults_live
        self.end.restype = self.live.restype = ctypes.c_long


def run(faults: Faults, scenario: Scenario, number: int, onwards: bool) -> tuple[object, int]:
    """Run with a request failing; return a result or what it raised, and how many it made."""
    scenario.forget()
    found: object
    faults.begin(number, onwards)
    try:
        found = scenario.call()
    except BaseException as error:
        found = error.with_traceback(None)
        found.__cause__ = found.__context__ = None
    return found, faults.end()


def failure(
    faults: Faults, scenario: Scenario, number: int, onwards: bool
) -> tuple[object, int, int]:
    """Run three times; return the last result, how many requests it made, the bytes it lost."""
    live = 0
    for _ in range(3):
        found, requests = run(faults, scenario, number, onwards)
        if isinstance(found, BaseException):
            kept: object = found
        else:
            kept = bits(found)
        del found
        scenario.forget()
        gc.collect()
        lost, live = faults.live() - live, faults.live()
    return kept, requests, lost


def prove(faults: Faults, scenario: Scenario) -> Iterator[str]:
    """Yield what is not right, for every request that may fail, alone or with all that follow."""
    before = bits(scenario.reads)
    scenario.forget()
    expected = bits(scenario.call())
    for onwards in (False, True):
        for number in range(1, MANY):
            what = f"{scenario.name}: request {number}{' and later' if onwards else ''} fails: "
            found, requests, lost = failure(faults, scenario, number, onwards)
            if isinstance(found, BaseException) and not isinstance(found, MemoryError):
                yield f"{what}{type(found).__name__}: {found}"
            if isinstance(found, list) and found != expected:
                yield what + "the call goes on and gives other bits"
            if lost >= LEAST:
                yield f"{what}{lost} bytes are lost"
            if bits(scenario.reads) != before:
                yield what + "an argument has been changed"
                return
            if bits(scenario.call()) != expected:
                yield what + "the next call gives other bits"
            if requests < number:
                break
        print(f"{scenario.name}: {number - 1} requests", flush=True)


def scenarios(kernel: cellgen.Kernel, sizes: dict[str, int]) -> Iterator[Scenario]:
    """Every way to run functions of a cell: steps, sequences, options, truncation, bound calls."""
    arrays = draw_arrays(kernel.sequence_forward.function, sizes, scale=0.3)
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    steps, rows = sizes["T"], sizes["B"]
    rng = np.random.default_rng(1)
    mask = rng.random((steps, rows)) < 0.7
    lengths = rng.integers(0, steps + 1, rows)
    made = forward(**arrays, save=True)
    kept = {item.name for item in backward.function.arguments}
    taken = {n: a for n, a in {**arrays, **made._asdict()}.items() if n in kept}
    outputs = [item.name for item in forward.function.results if item.over_time]
    upstream = {f"d_{n}": np.ones_like(getattr(made, n)) for n in outputs if f"d_{n}" in kept}
    taken |= upstream
    timed = [name for name in arrays if item_is_over_time(forward, name)]
    first = {name: arrays[name].swapaxes(0, 1).copy() for name in timed}
    step = {n: a[0] if item_is_over_time(forward, n) else a for n, a in arrays.items()}
    weights = {i.name: arrays[i.name] for i in forward.function.arguments if i.is_weight}
    others = {n: a for n, a in arrays.items() if n not in weights}
    packed, bound = kernel.pack(**weights), forward.bind(**arrays)
    single = {name: array.astype(np.float32) for name, array in arrays.items()}
    one_row = np.where(np.arange(rows) == 0, steps, 0)
    cut = {"parallel": "segments", "segments": 10, "sweeps": 1, "lengths": one_row}

    def back(**options: object) -> Call:
        saved = forward(**arrays, **steps_of(options), save=True)
        own = {n: getattr(saved, n) for n in outputs if n in kept}
        return lambda: backward(**{**taken, **own}, saved=saved.saved, **options)

    calls: dict[str, Call] = {
        "step": lambda: kernel.forward(**step),
        "forward": lambda: forward(**arrays),
        "forward with saving": lambda: forward(**arrays, save=True)[:-1],
        "forward of rows with lengths": lambda: forward(**arrays, lengths=lengths),
        "forward with a mask": lambda: forward(**arrays, mask=mask, reverse=True),
        "forward, batch first": lambda: forward(**{**arrays, **first}, batch_first=True),
        "forward, final states": lambda: forward(**arrays, last_only=True),
        "forward on two threads": lambda: forward(**arrays, threads=2),
        "forward in segments": lambda: forward(**arrays, **cut, save=True)[:-1],
        "forward in segments, near": lambda: forward(**single, **cut, tolerance=1e-6),
        "backward": back(),
        "backward with a mask": back(mask=mask),
        "backward on two threads": back(threads=2),
        "backward, three steps": back(bp_lim=3),
        "backward, three steps, with a mask": back(bp_lim=3, mask=mask),
        "backward, three steps, of chunks": back(bp_lim=3, window=4, lengths=lengths),
        "pack": lambda: forward(**others, packed=kernel.pack(**weights)),
        "packed": lambda: forward(**others, packed=packed),
        "bind": lambda: forward.bind(**arrays)(),
        "bound": lambda: bound(),
    }
    for name, call in calls.items():
        reads = {**taken, **arrays, **first, "mask": mask, "lengths": lengths}
        yield Scenario(f"{kernel.name}, {name}", call, reads, kernel)
    yield Scenario(f"{kernel.name}, a long call", calls["forward"], arrays, kernel, long=True)
    yield from made_in_c(kernel, arrays)
    yield from stacked(kernel, sizes)


def made_in_c(kernel: cellgen.Kernel, arrays: Arrays) -> Iterator[Scenario]:
    """A call that C makes, with results and their named tuple for which there may be no memory."""
    forward = kernel.sequence_forward

    def call() -> object:
        return forward(**arrays, threads=1)

    EXTENSION.module = EXTENSION.require()
    call()
    assert door_of(forward).make is not None
    yield Scenario(f"{kernel.name}, a call that C makes", call, arrays, kernel, in_c=True)
    EXTENSION.module, door_of(forward).make = None, None


def item_is_over_time(function: over_time.TimeFunction, name: str) -> bool:
    return next(i.over_time for i in function.function.arguments if i.name == name)


def steps_of(options: Mapping[str, object]) -> dict[str, object]:
    return {name: options[name] for name in ("mask", "lengths") if name in options}


def stacked(kernel: cellgen.Kernel, sizes: dict[str, int]) -> Iterator[Scenario]:
    """Two layers of two directions."""
    wide = draw_arrays(kernel.sequence_forward.function, {**sizes, "I": 2 * sizes["H"]}, scale=0.3)
    arrays = draw_arrays(kernel.sequence_forward.function, sizes, scale=0.3)
    names = [i.name for i in kernel.sequence_forward.function.arguments if i.is_weight]
    weights = [[{name: of[name] for name in names} for _ in range(2)] for of in (arrays, wide)]
    layers = cellgen.Layers(kernel, weights, threads=1)
    run = layers.forward(arrays["x"], save=True)
    ones = np.ones_like(run.output)
    reads = {**arrays, **{f"wide {n}": a for n, a in wide.items()}, "ones": ones}

    def forward() -> object:
        made = layers.forward(arrays["x"])
        return made.output, made.last

    def backward(**options: int) -> object:
        found = layers.backward(run, ones, **options)
        return found.d_input, found.d_weights

    yield Scenario(f"{kernel.name}, layers forward", forward, reads, kernel)
    yield Scenario(f"{kernel.name}, layers backward", backward, reads, kernel)
    yield Scenario(
        f"{kernel.name}, layers backward, two steps", lambda: backward(bp_lim=2), reads, kernel
    )


def main(name: str, size: str, *words: str) -> int:
    """Prove a cell on ``small`` or ``large`` arrays, in scenarios that have a word; all if none."""
    faults, mistakes = Faults(), 0
    gc.collect(), gc.freeze()  # what is imported needs no look after each call
    for scenario in scenarios(cellgen.load(name), {"small": SMALL, "large": LARGE}[size]):
        if words and not any(scenario.name.endswith(f", {word}") for word in words):
            continue
        for said in prove(faults, scenario):
            mistakes += 1
            print(said, flush=True)
    return 1 if mistakes else 0
