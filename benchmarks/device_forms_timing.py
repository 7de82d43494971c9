"""Times of calls that take turns on a device: by CUDA events around the replay of a graph."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch

Record = dict[str, object]
Call = Callable[[], object]
PART_S = 3.0
"""Seconds of all sides of one part."""
FEWEST = 2
"""Rounds at least, where a part takes longer."""


def replayed(call: Call) -> Call:
    """A call as a graph, whose replay costs the host nothing; as it is where it has none."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    except Exception as error:
        print(json.dumps({"no graph": f"{type(error).__name__}: {str(error)[:200]}"}), flush=True)
        return call
    return graph.replay


def elapsed(call: Call, device: str) -> float:
    """Milliseconds of one call."""
    if device == "cpu":
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def interleaved(calls: dict[str, Call], device: str, rounds: int) -> Iterator[Record]:
    """Times of calls that take turns; what fails or takes the part's time is said."""
    alive, times = dict(calls), {name: [] for name in calls}
    until = time.monotonic() + PART_S
    for number in range(rounds + 1):  # the first round compiles and warms
        for name, call in list(alive.items()):
            if time.monotonic() > until and len(times[name]) >= FEWEST:
                continue
            try:
                took = elapsed(call, device)
            except Exception as error:
                yield {"who": name, "failed": f"{type(error).__name__}: {str(error)[:160]}"}
                del alive[name]
                continue
            if number or took > 1e3 * PART_S:
                times[name].append(took)
    for name in alive:
        if times[name]:
            took = statistics.median(times[name])
            yield {"who": name, "ms": took, "rounds": len(times[name])}
