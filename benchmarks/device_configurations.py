"""Time each kernel of memories with blocks, warps and stages of a grid: what lists may say first.

    python benchmarks/device_configurations.py --cells mlstm,delta_net --save blocks.jsonl

For each cell, kernel and setting: milliseconds of one launch at the sizes of a call, by CUDA
events, the least of some launches. ``--compile-only`` launches each once, several processes at a
time, and says nothing: the cache of Triton has them then, and times can be taken while nothing
else runs. A line of JSON for each. It needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import torch
from device_forms import Record, Shape, _lengths, arguments
from device_forms_timing import elapsed

import cellgen
from cellgen.torch.memories import MemoryLaunches
from cellgen.torch.passes import PlanRun

CELLS = ("mlstm", "gated_delta_net", "delta_net", "retnet", "gla", "rwkv7")
LENGTHS, VALUES, KEYS, WARPS = (32, 64), (32, 64), (32, 64), (4, 8)
STAGES = {"scan": (1, 2, 3), "back": (1, 2)}
"""Steps of a chunk, values and keys of a block, warps; stages of kernels that go over chunks."""
ROUNDS = 12


def settings(kernel: str) -> Iterator[dict[str, int]]:
    """The grid of a kernel, without steps of a chunk."""
    kind = kernel.rpartition("_")[2]
    keys = KEYS if kind == "gradients" else (0,)
    for values, of_keys, warps, stages in product(VALUES, keys, WARPS, STAGES.get(kind, (1,))):
        blocks = {"BV": values} | ({"BK": of_keys} if of_keys else {})
        yield {**blocks, "warps": warps, "stages": stages}


def records(name: str, shape: Shape, only: str, rounds: int) -> Iterator[Record]:
    """All kernels of a cell's first memory, in bfloat16; one launch each where rounds are 0."""
    module = cellgen.load(name, "triton").module
    sizes = _lengths(name, shape) | {"T": shape.T, "B": shape.B}
    for length in LENGTHS:
        given = dict(arguments(name, shape, "cuda", torch.bfloat16))
        run = PlanRun(module, dict(sizes), given, chosen={"": {"BT": length}})
        try:
            memory = _formed(run)
        except Exception as error:
            yield {"cell": name, "BT": length, "failed": f"{type(error).__name__}: {error!s:.120}"}
            continue
        rows = {r["kernel"]: r for n in ("training", "backward") for r in memory.plan[n]}
        for kernel, row in rows.items():
            if only and not kernel.endswith(only):
                continue
            for of in settings(kernel):
                about: Record = {"cell": name, **vars(shape), "kernel": kernel, "BT": length, **of}
                yield about | _launched(memory, row, {**of, "BT": length}, rounds)


def _formed(run: PlanRun) -> MemoryLaunches:
    run.forward()
    for output in (*run.plan["outputs"], *run.plan["last"]):
        run.at(f"d_{output}").fill_(1)
    run.operations(run.plan["backward"])
    return run.memories[0]


def _launched(
    memory: MemoryLaunches, row: dict[str, object], blocks: dict[str, int], rounds: int
) -> Record:
    kernel = str(row["kernel"])
    before, memory.blocks[kernel] = memory.blocks[kernel], blocks
    for name, buffer in memory.plan["buffers"].items():
        if buffer["role"] == "gradient" and buffer["shares"]:
            memory.arrays.pop(name, None)
    try:
        memory.launch([row])
        took = [elapsed(lambda: memory.launch([row]), "cuda") for _ in range(rounds)]
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error!s:.120}"}
    finally:
        memory.blocks[kernel] = before
    return {"ms": round(min(took), 5)} if took else {}


def compile_all(names: list[str], units: str, jobs: int) -> None:
    """Every kernel of every cell in a process of its own."""
    kinds = ("prepare", "scan", "outputs", "back", "gradients")
    base = [sys.executable, __file__, "--rounds", "0", "--units", units]

    def one(name: str, kind: str) -> None:
        command = [*base, "--cells", name, "--kernel", kind]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda pair: one(*pair), product(names, kinds)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", default=",".join(CELLS), help="comma-separated")
    parser.add_argument("--units", default="64", help="of a head, comma-separated")
    parser.add_argument("--kernel", default="", help="those whose name ends so")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each; 0: none is timed")
    parser.add_argument("--compile-only", action="store_true", help="no times")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile at once")
    parser.add_argument("--save", type=Path, help="lines of JSON are added to this file")
    options = parser.parse_args()
    names = options.cells.split(",")
    if options.compile_only:
        compile_all(names, options.units, options.jobs)
        return 0
    for name, units in product(names, map(int, options.units.split(","))):
        for record in records(name, Shape(2048, 8, 16, units), options.kernel, options.rounds):
            line = json.dumps(record)
            print(line, flush=True)
            if options.save is not None:
                with options.save.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
