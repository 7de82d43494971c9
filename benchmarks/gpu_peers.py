"""Functions of ``cellgen.torch.peers`` beside the peers' own references on a CPU.

    python -m benchmarks.gpu_peers FLA MAMBA

FLA is the folder of an installed ``fla`` (fla-core), MAMBA the file
``selective_scan_interface.py`` of mamba_ssm; einops must be there. A line a function: processor
seconds of one thread, forward alone and with all gradients, the least of the rounds, in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from cellgen.torch.peers import fla
from cellgen.torch.peers.mamba_ssm import selective_scan_fn
from tests.golden.gpu.make import Peer, heads_second

HEADS, UNITS, CHANNELS, STATES = 8, 64, 1024, 16
Way = Callable[..., object]


def tensors(steps: int) -> dict[str, Tensor]:
    """Streams of one row."""
    key = (1, steps, HEADS, UNITS)
    drawn = {name: torch.randn(key) for name in "qkv"} | {"g_key": -torch.rand(key)}
    drawn |= {"g": -torch.rand(key[:3]), "beta": torch.rand(key[:3]), "bonus": torch.randn(key[2:])}
    drawn["k"] = drawn["a"] = torch.nn.functional.normalize(drawn["k"], dim=-1)
    drawn["a"], drawn["b"] = -drawn["a"], 0.5 * drawn["a"]
    drawn |= {name: torch.randn(1, CHANNELS, steps) for name in ("u", "z")}
    drawn |= {"delta": torch.rand(1, CHANNELS, steps), "A": -torch.rand(CHANNELS, STATES)}
    return drawn | {name: torch.randn(1, STATES, steps) for name in "BC"}


def ways(peer: Peer, mamba: Peer) -> dict[str, tuple[str, Mapping[str, Way]]]:
    """Functions by what they are called, with the names of their arguments."""
    gated, simple = "ops/gated_delta_rule/naive.py", "ops/simple_gla/naive.py"
    in_chunks = peer.reference(gated, "naive_chunk_gated_delta_rule")
    gla = peer.reference("ops/gla/naive.py", "naive_recurrent_gla")
    delta = peer.reference("ops/delta_rule/naive.py", "delta_rule_recurrence")
    rwkv6 = peer.reference("ops/rwkv6/recurrent_naive.py", "naive_recurrent_rwkv6")
    rwkv7 = peer.reference("ops/generalized_delta_rule/dplr/naive.py", "dplr_recurrence")
    scan = mamba.reference("selective_scan_interface.py", "selective_scan_ref")
    return {
        "chunk_gla": ("q k v g_key", {"own": fla.chunk_gla, "steps": gla}),
        "chunk_simple_gla": (
            "q k v g",
            {
                "own": fla.chunk_simple_gla,
                "steps": peer.reference(simple, "naive_recurrent_simple_gla"),
                "chunks": peer.reference(simple, "naive_chunk_simple_gla"),
            },
        ),
        "chunk_delta_rule": (
            "q k v beta",
            {"own": fla.chunk_delta_rule, "steps": heads_second(delta)},
        ),
        "chunk_gated_delta_rule": (
            "q k v g beta",
            {
                "own": fla.chunk_gated_delta_rule,
                "steps": lambda q, k, v, g, beta: peer.reference(
                    gated, "naive_recurrent_gated_delta_rule"
                )(q, k, v, beta, g),
                "chunks": in_chunks,
            },
        ),
        "chunk_rwkv6": (
            "q k v g_key bonus",
            {"own": fla.chunk_rwkv6, "steps": heads_second(rwkv6)},
        ),
        "chunk_rwkv7": (
            "q k v a b g_key",
            {
                "own": lambda q, k, v, a, b, w: fla.chunk_rwkv7(q, w, k, v, a, b, UNITS**-0.5),
                "steps": heads_second(rwkv7),
            },
        ),
        "selective_scan_fn": ("u delta A B C", {"own": selective_scan_fn, "steps": scan}),
    }


def seconds(way: Way, arguments: list[Tensor], trains: bool) -> tuple[float, Tensor]:
    """Processor seconds of a call, with gradients where it trains, and the output."""
    leaves = [a.clone().requires_grad_(trains) for a in arguments]
    start = time.process_time()
    with torch.set_grad_enabled(trains):
        outcome = way(*leaves)
        output = outcome[0] if isinstance(outcome, tuple) else outcome
        assert isinstance(output, Tensor)
        if trains:
            output.square().mean().backward()
    return time.process_time() - start, output.detach()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("fla", type=Path)
    parser.add_argument("mamba", type=Path)
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    drawn = tensors(asked.steps)
    for name, (names, functions) in ways(Peer(asked.fla), Peer(asked.mamba.parent)).items():
        arguments = [drawn[n] for n in names.split()]
        cells, own = [], seconds(functions["own"], arguments, False)[1]
        apart = max(
            float((seconds(way, arguments, False)[1] - own).abs().max() / own.abs().max())
            for way in functions.values()
        )
        for trains in (False, True):
            least = dict.fromkeys(functions, float("inf"))
            for _ in range(asked.rounds):
                for kind, way in functions.items():
                    least[kind] = min(least[kind], seconds(way, arguments, trains)[0])
            cells += [f"{least[k]:.3f}" if k in least else "" for k in ("own", "steps", "chunks")]
        print(f"| `{name}` | {' | '.join(cells)} | {apart:.0e} |", flush=True)


if __name__ == "__main__":
    main()
