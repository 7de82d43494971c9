"""Is the plan that a kernel chooses the fastest? Every call under the plans that may be faster.

    python -m benchmarks.plans lstm gru --shapes W1,W6 --threads 2

The other plans are those that `measure()` tries, and those that read weights where they lie. A call
is a forward pass with packed weights, as inference is, one that saves, or a backward pass. Plans
take turns within a round; a figure is the median over rounds of a plan's time by the chosen plan's,
with half the distance of the quartiles. Results do not depend on plans: the tests see to that.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

from cellgen.bench.device import describe
from cellgen.bench.peers.own import kernel_of
from cellgen.bench.plan import DEFAULT_CELLS, TIMED_SECONDS
from cellgen.bench.problem import problem_of
from cellgen.bench.report import interquartile_range
from cellgen.bench.shapes import BenchShape, parse_shapes
from cellgen.errors import CellgenError
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.host.tuning import UNFIT, candidates

ROUNDS = 11
HEAD = "| cell | shape | call | ms | another plan | by the chosen, median | least |"
Run = Callable[[], object]


@dataclass(frozen=True)
class Call:
    """A function at a shape, ready to run under a plan; ``chosen`` is its own."""

    name: str
    chosen: SequencePlan
    bind: Callable[[SequencePlan], Run]
    is_packed: bool = False
    """Whether its weights are packed already."""
    is_chunked: bool = False
    """Whether a part of it is deferred, and follows in chunks of steps."""


def calls_of(selector: str, shape: BenchShape, threads: int) -> Iterator[Call]:
    """Prepare the three calls of a cell, with the problem that `cellgen bench` times."""
    kernel = kernel_of(selector)
    problem = problem_of(kernel.interface, selector, shape)
    arrays: dict[str, Any] = dict(problem.draw())
    upstream = {name: arrays.pop(name) for name, _ in problem.upstream}
    forward: Any = kernel.sequence_forward
    backward: Any = kernel.sequence_backward
    weights = {a.name: arrays[a.name] for a in forward.function.arguments if a.is_weight}
    inference = {n: a for n, a in arrays.items() if n not in weights}
    chosen = partial(forward.plan, **problem.sizes, threads=threads)
    yield Call(
        "forward, packed",
        chosen(),
        partial(_bound, forward.bind, {**inference, "packed": kernel.pack(**weights)}, threads),
        is_packed=True,
    )
    saving = {**arrays, "save": True}
    yield Call("forward, saving", chosen(), partial(_bound, forward.bind, saving, threads))
    taken = {argument.name for argument in backward.function.arguments}
    done: Any = forward(**saving, threads=threads)
    kept = {name: getattr(done, name) for name, _ in problem.outputs if name in taken}
    given = {**arrays, **kept, **upstream, "saved": done.saved}
    plan = backward.plan(**problem.sizes, threads=threads)
    yield Call("backward", plan, partial(_bound, backward.bind, given, threads), is_chunked=True)


def _bound(
    bind: Callable[..., Run], given: dict[str, Any], threads: int, plan: SequencePlan
) -> Run:
    return bind(**given, threads=threads, plan=plan)


def others(call: Call, shape: BenchShape) -> list[SequencePlan]:
    """List plans beside the chosen one; some may be none that the function can follow."""
    own = call.chosen
    found = candidates(own, shape.T, shape.B, chunked=call.is_chunked)
    alike = [plan for plan in found if plan.chunk_rows == own.chunk_rows and not call.is_packed]
    unpacked = (replace(plan, hoist=False, unpacked=True) for plan in alike)
    return [plan for plan in dict.fromkeys((*found, *unpacked)) if plan != own]


def runnable(call: Call, shape: BenchShape) -> Iterator[tuple[SequencePlan, Run]]:
    """Bind the chosen plan and every other one that the function follows, that one first."""
    yield call.chosen, call.bind(call.chosen)
    for plan in others(call, shape):
        run = call.bind(plan)
        try:
            run()
        except CellgenError as error:
            if UNFIT not in str(error):
                raise
        else:
            yield plan, run


def times(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """Seconds of a call, by run and round; each round begins with another run."""
    for run in runs:
        run()
    began = time.perf_counter()
    runs[0]()
    count = max(1, int(TIMED_SECONDS / (time.perf_counter() - began)))
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds):
        for place in range(len(runs)):
            index = (turn + place) % len(runs)
            began = time.perf_counter()
            for _ in range(count):
                runs[index]()
            seconds[index].append((time.perf_counter() - began) / count)
    return seconds


def difference(plan: SequencePlan, chosen: SequencePlan) -> str:
    """What a plan says otherwise than the chosen one."""
    names = (field.name for field in fields(plan))
    pairs = ((name, getattr(plan, name), getattr(chosen, name)) for name in names)
    return ", ".join(f"{name} = {own}" for name, own, theirs in pairs if own != theirs)


def rows_of(cell: str, shape: BenchShape, call: Call, rounds: int) -> Iterator[str]:
    """Time a call under all plans: a line of the table for each one beside the chosen."""
    plans, runs = zip(*runnable(call, shape), strict=True)
    own, *found = times(runs, rounds)
    for plan, seconds in zip(plans[1:], found, strict=True):
        ratios = [theirs / ours for theirs, ours in zip(seconds, own, strict=True)]
        ratio, spread = statistics.median(ratios), interquartile_range(ratios)
        least = min(seconds) / min(own)
        yield (
            f"| `{cell}` | {shape.name} | {call.name} | {1e3 * statistics.median(own):.3g} "
            f"| {difference(plan, call.chosen)} | {ratio:.2f}±{spread:.2f} | {least:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cells", nargs="*", default=list(DEFAULT_CELLS), metavar="CELL")
    parser.add_argument("--shapes", action="append", default=[], metavar="W2|T,B,I,H")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    options = parser.parse_args()
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    try:
        for cell, shape in product(options.cells, parse_shapes(options.shapes)):
            for call in calls_of(cell, shape, options.threads):
                for line in rows_of(cell, shape, call, options.rounds):
                    print(line, file=sys.stderr, flush=True)
                    lines.append(line)
        device = describe([])
        machine = f"{device['processor']}, {str(device['date'])[:10]}, {options.threads} threads"
        print("\n".join([f"* {machine}, {options.rounds} rounds", "", *lines]))
    except CellgenError as error:
        sys.exit(f"plans: {error}")


if __name__ == "__main__":
    main()
