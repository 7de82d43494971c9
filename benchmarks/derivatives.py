"""What do derivatives cost? Each beside the passes of the cell itself, in one run.

    python -m benchmarks.derivatives gru lstm --shapes W2,20,32,64,64

A Jacobian-vector product is a forward pass of the tangent, beside one of the cell. A second
derivative is a forward pass of the tangent that saves and its backward pass, which forms the
derivatives of the gradients alone, beside both of the cell; `by inputs`: weights do not move, as in
a gradient penalty. Gradients row by row, and the sums of their squares, are a forward pass of the
cell and one backward pass. Calls take turns within a round; a figure is the least of all rounds,
since what else the machine does only adds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import cellgen
from cellgen import tangent
from cellgen.bench.device import describe
from cellgen.bench.problem import SEED
from cellgen.bench.shapes import BenchShape, parse_shapes
from cellgen.errors import CellgenError
from cellgen.language.value import Role
from cellgen.views.find import find_one

ROUNDS = 60
BARS = {"JVP": 3.1, "HVP": 3.1, "by inputs": 2.1, "per row": 1.7, "norms": 1.7}
HEAD = "| cell | shape | derivative | ms | of | ms | ratio | bar |"
Run = Callable[[], object]


def passes(kernel: Any, shape: BenchShape, threads: int, upstream: str) -> Iterator[Run]:
    """A forward pass, one that saves, and a backward pass, bound to random arguments."""
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    sizes = shape.sizes_of(forward.function.dims)
    rng = np.random.default_rng(SEED)
    timed, given = {item.name for item in forward.function.arguments if item.over_time}, {}
    for name, lengths in kernel.shapes(**sizes).items():
        scale = np.float32(1.0 if name in timed else shape.H**-0.5)
        given[name] = scale * rng.standard_normal(lengths, np.float32)
    run = forward(**given, save=True, threads=threads)
    read = {item.name for item in backward.function.arguments}
    outputs = {name: array for name, array in run._asdict().items() if name in read}
    above = rng.standard_normal(getattr(run, upstream.removeprefix("d_")).shape, np.float32)
    full = {**given, **outputs, "saved": run.saved, upstream: above, "threads": threads}
    if upstream.startswith("d_dot_"):
        names = [item.name for item in backward.function.results]
        full["gradients"] = tuple(n for n in names if not n.startswith("d_dot_"))
    yield partial(forward, **given, threads=threads)
    yield partial(forward, **given, threads=threads, save=True)
    yield partial(backward, **full)
    if upstream.startswith("d_dot_"):
        return
    for mode in (True, "norms"):
        out = backward(**full, per_row=mode)._asdict()
        yield partial(backward, **full, per_row=mode, out=out)


def calls_of(selector: str, shape: BenchShape, threads: int) -> dict[str, Run]:
    """Everything that is timed of one cell at one shape."""
    cell = find_one(selector)
    definition = cell.definition
    output = f"d_{definition.outputs[0].name}"
    moving = (*definition.learning(Role.INPUT), *definition.states)
    inputs = tangent(cell, by=[str(value.name) for value in moving])
    of = partial(passes, shape=shape, threads=threads)
    f, saving, b, rows, norms = of(cellgen.compile(cell), upstream=output)
    dot = output.replace("d_", "d_dot_", 1)
    jvp, jvp_saving, second = of(cellgen.compile(tangent(cell)), upstream=dot)
    _, some_saving, some = of(cellgen.compile(inputs), upstream=dot)
    return {
        "f": f,
        "f saving": saving,
        "b": b,
        "T.f": jvp,
        "T.f saving": jvp_saving,
        "T.b": second,
        "T'.f saving": some_saving,
        "T'.b": some,
        "rows": rows,
        "norms": norms,
    }


def least(calls: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of each call, the least of all rounds; calls take turns."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - begin)
    return found


def rows_of(name: str, shape: BenchShape, t: dict[str, float]) -> Iterator[str]:
    """A line of the table for each derivative."""
    both = t["f saving"] + t["b"]
    derivatives = (
        ("JVP", t["T.f"], "f", t["f"]),
        ("HVP", t["T.f saving"] + t["T.b"], "f + b", both),
        ("by inputs", t["T'.f saving"] + t["T'.b"], "f + b", both),
        ("per row", t["f saving"] + t["rows"], "f + b", both),
        ("norms", t["f saving"] + t["norms"], "f + b", both),
    )
    for what, seconds, of, base in derivatives:
        cells = (name, shape.text, what, f"{seconds * 1e3:.2f}", of, f"{base * 1e3:.2f}")
        yield f"| {' | '.join(cells)} | {seconds / base:.2f} | {BARS[what]} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cells", nargs="*", default=["gru"])
    parser.add_argument("--shapes", nargs="*", default=["20,32,64,64", "W2"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    try:
        shapes = parse_shapes(options.shapes)
        machine = describe([])
        print(f"{machine['processor']}, {', '.join(machine['instruction_set'])}, {machine['date']}")
        print(f"{HEAD}\n|{'---|' * HEAD.count(' | ')}---|")
        for name in options.cells:
            for shape in shapes:
                found = least(calls_of(name, shape, options.threads), options.rounds)
                print("\n".join(rows_of(name, shape, found)), flush=True)
    except CellgenError as error:
        print(f"benchmarks.derivatives: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
