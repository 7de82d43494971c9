"""PyTorch: any cell as a Python loop over a step that ``torch.compile`` has compiled."""

from __future__ import annotations

import torch

from cellgen.bench.peers import Prepared
from cellgen.bench.peers.torch_loop import prepared
from cellgen.bench.problem import Mode, Problem


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Compile the step for its shapes; whatever an earlier problem compiled is dropped."""
    torch.compiler.reset()
    return prepared(
        problem, mode, threads, lambda step: torch.compile(step, dynamic=False, fullgraph=True)
    )
