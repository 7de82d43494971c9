"""A training step inside torch's autograd: layers of torch, loops of its functions, and cellgen's.

    python -m benchmarks.frameworks --rounds 20 --threads 2
    python -m benchmarks.frameworks --shapes W1,W6 --cells GRU

Every contestant takes a turn in every round; figures are each one's fastest, in time of the
processor, so that what else a machine does counts little; a turn of one step is a hundred calls.
The smallest case, one step of one row with 8 units, is what a call costs. ``loop`` is the layer's
equations as a loop of torch's functions; ``compiled`` the same loop over a step that
``torch.compile`` made; ``scan``, with ``--scan``, torch's higher-order operator over that step,
which is compiled as a whole: that takes minutes. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

import cellgen.torch
from cellgen.bench.shapes import BenchShape, parse_shapes

SMALLEST = BenchShape(1, 1, 8, 8, "call")
Step = Callable[[Mapping[str, Tensor], Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(parameters, x of a step, h, c) to the next h and c."""


def gru(p: Mapping[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of ``torch.nn.GRU``."""
    r_x, z_x, n_x = (x @ p["weight_ih_l0"].T + p["bias_ih_l0"]).chunk(3, 1)
    r_h, z_h, n_h = (h @ p["weight_hh_l0"].T + p["bias_hh_l0"]).chunk(3, 1)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + r * n_h) + z * h, c


def lstm(p: Mapping[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of ``torch.nn.LSTM``."""
    gates = x @ p["weight_ih_l0"].T + p["bias_ih_l0"] + h @ p["weight_hh_l0"].T + p["bias_hh_l0"]
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


STEPS: Mapping[str, Step] = {"GRU": gru, "LSTM": lstm}


def contestants(
    kind: str, shape: BenchShape, loops: bool, scans: bool
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Layers with equal parameters, by name."""
    peer = getattr(torch.nn, kind)(shape.I, shape.H)
    mine = getattr(cellgen.torch, kind)(shape.I, shape.H)
    mine.load_state_dict(peer.state_dict())
    own = dict(peer.named_parameters())
    found = {f"nn.{kind}": lambda x: peer(x)[0], "cellgen": lambda x: mine(x)[0]}
    if loops:
        torch._dynamo.reset()
        compiled = torch.compile(STEPS[kind], dynamic=False)
        found["loop"] = lambda x: looped(STEPS[kind], own, x, shape.H)
        found["compiled"] = lambda x: looped(compiled, own, x, shape.H)
    if scans:
        found["scan"] = torch.compile(
            lambda x: scanned(STEPS[kind], own, x, shape.H), fullgraph=True, dynamic=False
        )
    return found


def scanned(step: Step, parameters: Mapping[str, Tensor], x: Tensor, units: int) -> Tensor:
    """Run a step by torch's scan, which wants to be compiled."""

    def one(state: tuple[Tensor, Tensor], now: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        h, c = step(parameters, now, *state)
        return (h, c.clone()), h.clone()

    h = x.new_zeros(x.shape[1], units)
    found: Tensor = scan(one, (h, h.clone()), x)[1]
    return found


def looped(step: Step, parameters: Mapping[str, Tensor], x: Tensor, units: int) -> Tensor:
    """Run a step over time."""
    h = c = x.new_zeros(x.shape[1], units)
    over_time = []
    for now in x:
        h, c = step(parameters, now, h, c)
        over_time.append(h)
    return torch.stack(over_time)


def measure(
    kind: str, shape: BenchShape, rounds: int, loops: bool, scans: bool
) -> dict[str, list[float]]:
    """The fastest of every contestant in milliseconds: forward without a graph, a step with one."""
    x = torch.randn(shape.T, shape.B, shape.I)
    u = torch.randn(shape.T, shape.B, shape.H)
    layers = contestants(kind, shape, loops, scans)
    repeats = 100 if shape.T == 1 else 1

    def forward(layer: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            layer(x)

    def step(layer: Callable[[Tensor], Tensor]) -> None:
        given = x.detach().requires_grad_()
        layer(given).backward(u)

    took: dict[str, list[list[float]]] = {name: [[], []] for name in layers}
    for turn in range(rounds + 1):
        for name, layer in layers.items():
            for place, run in enumerate((forward, step)):
                start = time.process_time()
                for _ in range(repeats):
                    run(layer)
                if turn:  # the first one compiles
                    took[name][place].append((time.process_time() - start) / repeats * 1e3)
    return {name: [min(times) for times in both] for name, both in took.items()}


def main() -> None:
    """Print one table for each cell."""
    parser = argparse.ArgumentParser(description="A training step inside torch's autograd.")
    parser.add_argument("--cells", default="GRU,LSTM")
    parser.add_argument("--shapes", default="W1,W2,W3,W4,W5,W6")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-loops", action="store_true", help="layers alone")
    parser.add_argument("--scan", action="store_true", help="torch's scan, too, compiled")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for kind in options.cells.split(","):
        names = [f"nn.{kind}", "cellgen"] + ([] if options.no_loops else ["loop", "compiled"])
        names += ["scan"] if options.scan else []
        print(f"\n| {kind}, ms | " + " | ".join(f"{n} f | f+b" for n in names) + " |")
        print("|---|" + "---|" * (2 * len(names)))
        for shape in (SMALLEST, *parse_shapes([options.shapes])):
            found = measure(kind, shape, options.rounds, not options.no_loops, options.scan)
            figures = [f"{time:.3g}" for name in names for time in found[name]]
            sizes = f"{shape.name} {shape.T}, {shape.B}, {shape.I}, {shape.H}"
            print(f"| {sizes} | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    main()
