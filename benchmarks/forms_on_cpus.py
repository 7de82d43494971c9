"""Chunks beside steps on a CPU, in PyTorch: processor time of one thread, in turn, as ratios.

    CELLGEN_NUM_THREADS=1 python -m benchmarks.forms_on_cpus --steps 2048 --rows 1

A line a cell, type and direction: seconds of both, the ratios of all rounds, and how far the
outputs are apart by the largest number. The first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import cellgen.torch
from cellgen.torch.functional import CellFunction

CELLS = ("gla", "gated_delta_net")
HEADS, UNITS, CHUNK = 16, 64, 64


def drawn(cell: CellFunction, steps: int, rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors of a call: heads of so many keys and values."""
    sizes = dict.fromkeys(cell.layout.dims, UNITS) | {"T": steps, "B": rows, "N": HEADS}
    generator = torch.Generator().manual_seed(0)
    made = {}
    for item in cell.layout.theta:
        shape = cell.layout.shape(item.name, sizes)
        scale = 0.1 if len(shape) > 1 else 1.0
        made[item.name] = (torch.randn(shape, generator=generator) * scale).to(dtype)
    return made


def timed(cell: CellFunction, tensors: dict[str, Tensor], trains: bool) -> tuple[float, Tensor]:
    """Processor seconds of a call, with its backward pass, and the output."""
    own = {name: t.clone().requires_grad_(trains) for name, t in tensors.items()}
    start = time.process_time()
    with torch.set_grad_enabled(trains):
        output = cell(**own, outputs=("h",)).h
        if trains:
            output.float().square().mean().backward()
    return time.process_time() - start, output.detach().float()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in CELLS:
        ways = [cellgen.torch.function(name, form=form, chunk=CHUNK) for form in ("step", "chunk")]
        for dtype in (torch.float32, torch.bfloat16):
            tensors = drawn(ways[0], given.steps, given.rows, dtype)
            for trains in (False, True):
                rounds = [
                    [timed(way, tensors, trains) for way in ways] for _ in range(given.rounds + 1)
                ][1:]
                ratios = sorted(chunk[0] / step[0] for step, chunk in rounds)
                step, chunk = (min(one[n][0] for one in rounds) for n in (0, 1))
                outputs = [one[1] for one in rounds[0]]
                apart = (outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()
                print(
                    f"{name:16s} {str(dtype)[6:]:9s} {'training' if trains else 'forward':9s} "
                    f"steps {step:.2f} s, chunks {chunk:.2f} s, chunks by steps "
                    f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}; apart {float(apart):.0e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
