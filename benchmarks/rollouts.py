"""Rollouts by cells: ``nn.LSTMCell``, ``GRUCell``, ``RNNCell`` beside cellgen's, step by step.

    python -m benchmarks.rollouts --rounds 20
    python -m benchmarks.rollouts --rows 1 --cells GRUCell

A cell is called once a step, as a loop of a user's own does it, with its last states: without
gradients (f), and with gradients of parameters and inputs (f+b). Both contestants take turns, mine
first in every second round; a figure is the median over rounds of cellgen's time of the processor
by torch's in the same round, so that what else a machine does counts little. Prints a table in
Markdown: the ratio, below 1 where cellgen is faster, and microseconds a step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import cellgen.torch

CELLS = ("LSTMCell", "GRUCell", "RNNCell")


def rollout(cell: torch.nn.Module, steps: Tensor) -> Tensor:
    """Call a cell once a step, from states of zero; return its last output."""
    state, output = None, steps[0]
    for x in steps:
        state = cell(x, state)
        output = state[0] if isinstance(state, tuple) else state
    return output


def forward(cell: torch.nn.Module, steps: Tensor) -> None:
    """A rollout without a graph."""
    with torch.no_grad():
        rollout(cell, steps)


def training(cell: torch.nn.Module, steps: Tensor) -> None:
    """A rollout and its gradients."""
    cell.zero_grad(set_to_none=True)
    given = steps.detach().requires_grad_()
    rollout(cell, given).sum().backward()


def took(run: Callable[[torch.nn.Module, Tensor], None], cell: torch.nn.Module, x: Tensor) -> float:
    """Microseconds of the processor a step takes."""
    start = time.process_time()
    run(cell, x)
    return (time.process_time() - start) / len(x) * 1e6


def measure(kind: str, x: Tensor, units: int, rounds: int) -> list[tuple[float, float, float]]:
    """Ratio, torch's and cellgen's microseconds, of both kinds of rollouts."""
    peer = getattr(torch.nn, kind)(x.shape[2], units)
    mine = getattr(cellgen.torch, kind)(x.shape[2], units)
    mine.load_state_dict(peer.state_dict())
    found = []
    for run in (forward, training):
        pairs = []
        for turn in range(rounds + 1):
            order = (peer, mine) if turn % 2 else (mine, peer)
            times = {cell: took(run, cell, x) for cell in order}
            if turn:  # the first one compiles
                pairs.append((times[peer], times[mine]))
        ratio = statistics.median(own / other for other, own in pairs)
        found.append((ratio, *(min(times) for times in zip(*pairs, strict=True))))
    return found


def main() -> None:
    """Print one row for each cell."""
    parser = argparse.ArgumentParser(description="Rollouts by cells, step by step.")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--inputs", type=int, default=64)
    parser.add_argument("--units", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.steps, options.rows, options.inputs)
    print("| | f: ratio | nn, us a step | cellgen | f+b: ratio | nn, us a step | cellgen |")
    print("|---|---|---|---|---|---|---|")
    for kind in options.cells.split(","):
        figures = measure(kind, x, options.units, options.rounds)
        cells = " | ".join(f"{r:.2f} | {nn:.1f} | {own:.1f}" for r, nn, own in figures)
        print(f"| {kind} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
