"""What do checkpoints cost, and what do they spare? Forward and backward passes, time a step.

    python -m benchmarks.memory_over_time gru --shapes 1000,4,64,64 100000,4,64,64

Each shape without checkpoints, and with those that ``memory_limit`` chooses where it is a quarter
of what every step saves; the first output alone is wanted. Every call makes its results anew, as
in training; bound calls, which write to the same arrays each time, say what that costs.
Calls take turns within a round; a figure is the least processor time of all rounds on
one thread, beside the first shape without checkpoints, since what else the machine does only adds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import cellgen
from cellgen.bench.device import describe
from cellgen.bench.problem import SEED
from cellgen.bench.shapes import BenchShape, parse_shapes
from cellgen.errors import CellgenError
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call.checkpoints import step_bytes
from cellgen.runtime.options import NONE

HEAD = "| cell | shape | checkpoint every | MB for the backward pass | us a step | ratio |"


def passes(
    kernel: Any, given: dict[str, Any], above: dict[str, Any], wanted: tuple[str, ...], **how: int
) -> None:
    """A forward pass that saves and its backward pass."""
    run = kernel.sequence_forward(**given, save=True, threads=1, outputs=wanted, **how)
    read = {item.name for item in kernel.sequence_backward.function.arguments}
    outputs = {n: a for n, a in run._asdict().items() if n in read and a is not None}
    outputs = {} if run.saved.run.checkpoint else outputs
    kernel.sequence_backward(**given, **outputs, **above, saved=run.saved, threads=1)


def bound_passes(
    kernel: Any, given: dict[str, Any], above: dict[str, Any], wanted: tuple[str, ...], **how: int
) -> Callable[[], None]:
    """The same on arrays that stay."""
    shared: dict[str, Any] = {**given, "threads": 1}
    forward = kernel.sequence_forward.bind(**shared, save=True, outputs=wanted, **how)
    run = forward()
    read = {item.name for item in kernel.sequence_backward.function.arguments}
    outputs = {n: a for n, a in run._asdict().items() if n in read and a is not None}
    outputs = {} if run.saved.run.checkpoint else outputs
    backward = kernel.sequence_backward.bind(**shared, **outputs, **above, saved=run.saved)

    def both() -> None:
        forward()
        backward()

    return both


def calls_of(name: str, shape: BenchShape) -> dict[str, Callable[[], None]]:
    """The passes at one shape without and with checkpoints, by a line's first columns."""
    kernel = cellgen.load(name)
    function = kernel.sequence_forward.function
    sizes, rng = shape.sizes_of(function.dims), np.random.default_rng(SEED)
    given = {
        name: np.float32(0.1) * rng.standard_normal(lengths, np.float32)
        for name, lengths in kernel.shapes(**sizes).items()
    }
    shown = next(item for item in function.results if item.over_time)
    wanted = (shown.name,)
    lengths = tuple(axis_length(axis, sizes) for axis in shown.shape)
    above = {f"d_{shown.name}": rng.standard_normal(lengths, np.float32)}
    found = step_bytes(function, sizes, 4, NONE, wanted)
    limit = found.whole // 4
    run = kernel.sequence_forward(**given, save=True, outputs=wanted, memory_limit=limit)
    steps = run.saved.run.checkpoint
    of = partial(passes, kernel, given, above, wanted)
    text = f"{name} | {shape.text}"
    return {
        f"{text} | none | {found.whole / 1e6:.1f}": of,
        f"{text} | {steps} | {found.total(steps) / 1e6:.1f}": partial(of, checkpoint=steps),
        f"{text} | none, bound | {found.whole / 1e6:.1f}": bound_passes(*of.args),
        f"{text} | {steps}, bound | {found.total(steps) / 1e6:.1f}": bound_passes(
            *of.args, checkpoint=steps
        ),
    }


def least(calls: dict[str, tuple[Callable[[], None], int]], rounds: int) -> dict[str, float]:
    """Seconds a step of each call of so many steps, the least of all rounds; calls take turns."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, (call, steps) in calls.items():
            times = max(1, 20_000 // steps)
            begin = time.process_time()
            for _ in range(times):
                call()
            found[name] = min(found[name], (time.process_time() - begin) / times / steps)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cells", nargs="*", default=["gru"])
    parser.add_argument("--shapes", nargs="*", default=["1000,4,64,64", "100000,4,64,64"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    try:
        machine = describe([])
        print(f"{machine['processor']}, {', '.join(machine['instruction_set'])}, {machine['date']}")
        print(f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}")
        for name in options.cells:
            calls = {
                text: (call, shape.T)
                for shape in parse_shapes(options.shapes)
                for text, call in calls_of(name, shape).items()
            }
            found = least(calls, options.rounds)
            first = next(iter(found.values()))
            for text, seconds in found.items():
                print(f"| {text} | {seconds * 1e6:.2f} | {seconds / first:.2f} |", flush=True)
    except CellgenError as error:
        print(f"benchmarks.memory_over_time: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
