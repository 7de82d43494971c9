"""Forms in time on a device: errors and times beside kernels by hand and copies of as many bytes.

    python benchmarks/device_forms.py --save benchmarks/results/forms.json

At most four minutes. For each cell and shape: the error of its form in time against its steps on
the CPU (float32, 256 steps), times of a forward pass and of one with backward, by CUDA events
around the replay of a graph, medians of rounds in which all sides take turns. Beside it: the
recurrence alone by the kernels of the generated Triton module, by flash-linear-attention and by
mlstm_kernels where they are installed (``pip install fla-core mlstm_kernels``), a copy of as many
bytes as a pass reads and writes at least. ``device_forms_right.py`` compares all element types.
Kernels are those that a call takes at its first use, which is before anything is timed.
``whole cell`` has the products with weights, ``recurrence`` has not: compare like with like.

Each record is written when it is there, a part that takes long loses its rounds, not the others.
Without a device a tiny part runs on the CPU and what was not run is said; its times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from device_forms_timing import PART_S, Call, Record, interleaved, replayed

import cellgen.torch
from cellgen.cells import SHIPPED
from cellgen.program.chunks import form_over_time
from cellgen.program.interpret import shape_sizes
from cellgen.torch.launched import launch_of

LIMIT_S = 225.0
ROUNDS = 9
CHECKED_STEPS = 256
CONFIGURATIONS = 3
"""Of a kernel by hand: the first of those that it has."""
MEMORIES = ("gla", "retnet", "mamba2", "mlstm", "gated_delta_net", "delta_net", "rwkv7", "rwkv6")
SCANS = ("min_gru", "rg_lru", "lru", "s5")


@dataclass(frozen=True)
class Shape:
    """Steps, rows, heads, units of a head."""

    T: int
    B: int
    N: int
    D: int


SHAPES = (
    Shape(2048, 8, 16, 64),
    Shape(2048, 8, 16, 128),
    Shape(8192, 8, 16, 64),
    Shape(65536, 1, 16, 64),
    Shape(2048, 64, 16, 64),
    Shape(2048, 1, 16, 128),
)
TINY = (Shape(40, 2, 2, 16),)
PEERS = {"fla": "fla-core", "mlstm_kernels": "mlstm_kernels"}
XL_CHUNK = "mlstm_kernels.torch.chunkwise.triton_xl_chunk"
HAND_WRITTEN = {
    "gla": ("fla.ops.gla", "chunk_gla", "qkvG"),
    "retnet": ("fla.ops.simple_gla", "chunk_simple_gla", "qkvg"),
    "mamba2": ("fla.ops.simple_gla", "chunk_simple_gla", "qkvg"),
    "gated_delta_net": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", "qkvgb"),
    "delta_net": ("fla.ops.delta_rule", "chunk_delta_rule", "qkvb"),
    "rwkv6": ("fla.ops.rwkv6", "chunk_rwkv6", "qkvGu"),
    "min_gru": ("fla.ops.hgrn", "chunk_hgrn", "xd"),
    "mlstm": (
        "mlstm_kernels.torch.chunkwise.triton_xl_chunk",
        "mlstm_chunkwise__xl_chunk",
        "heads",
    ),
}
"""Module, function, and what it is handed: see ``_streams``."""


def definition_named(name: str):
    return next(cell.definition for cell in SHIPPED if cell.definition.name == name)


def _lengths(name: str, shape: Shape) -> dict[str, int]:
    """Lengths of a cell's dimensions."""
    lengths = {"B": shape.B, "N": shape.N, "D": shape.D, "K": shape.D, "I": 64, "R": 16}
    lengths |= {"H": shape.N * shape.D, "P": shape.N * shape.D}
    return {str(dim): lengths[str(dim)] for dim in definition_named(name).dims}


def arguments(name: str, shape: Shape, device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Arguments of a cell, weights scaled by their rows."""
    definition, numbers = definition_named(name), np.random.default_rng(1)
    sizes = _lengths(name, shape)
    found: dict[str, torch.Tensor] = {}
    for value in definition.declared:
        axes = shape_sizes(value, sizes)
        over = (shape.T,) if value.role.name == "INPUT" else ()
        scale = 0.5 / np.sqrt(axes[0]) if value.role.is_parameter and len(axes) > 1 else 0.5
        drawn = torch.tensor(numbers.uniform(0.1, 0.9, (*over, *axes)) * scale)
        found[str(value)] = drawn.to(device, dtype)
    return found


def differentiable(call: Callable[[], object], leaves: list[torch.Tensor]) -> tuple[Call, Call]:
    """A forward pass, and one with gradients of all that is given."""

    def forward() -> object:
        with torch.no_grad():
            return call()

    def both() -> object:
        output = _first(call())
        return torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)

    return forward, both


def _first(results: object) -> torch.Tensor:
    if isinstance(results, torch.Tensor):
        return results
    assert isinstance(results, tuple)
    return next(value for value in results if isinstance(value, torch.Tensor))


def own(name: str, shape: Shape, form: str, device: str, dtype: torch.dtype) -> tuple[Call, Call]:
    """A whole cell in a form."""
    function = cellgen.torch.function(name, form=form)
    given = {n: t.requires_grad_() for n, t in arguments(name, shape, device, dtype).items()}
    return differentiable(lambda: function(**given), list(given.values()))


def _streams(kind: str, shape: Shape, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """What hand-written kernels take: q, k, v; gates as logarithms by key (G) or head (g)."""
    make = torch.Generator(device=device).manual_seed(1)
    T, B, N, D = shape.T, shape.B, shape.N, shape.D

    def normal(*axes: int) -> torch.Tensor:
        return torch.randn(*axes, generator=make, device=device)

    if kind == "xd":
        return [normal(B, T, N * D).to(dtype), -normal(B, T, N * D).abs()]
    if kind == "heads":
        wide = [normal(B, N, T, D).to(dtype) / D**0.5 for _ in "qkv"]
        return [*wide, normal(B, N, T), normal(B, N, T) + 3]
    made = {n: torch.nn.functional.normalize(normal(B, T, N, D), dim=-1).to(dtype) for n in "qkv"}
    made["G"] = -normal(B, T, N, D).abs() / 16
    made["g"] = -normal(B, T, N).abs() / 16
    made["b"] = torch.sigmoid(normal(B, T, N)).to(dtype)
    made["u"] = normal(N, D).to(dtype)
    return [made[letter] for letter in kind]


def by_hand(name: str, shape: Shape, device: str, dtype: torch.dtype) -> tuple[Call, Call] | str:
    """The recurrence alone by hand, or why there is none."""
    if name not in HAND_WRITTEN:
        return "no kernel by hand is known for it"
    module, function, kind = HAND_WRITTEN[name]
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: pip install {PEERS[package]}"
    if device == "cpu":
        return f"{package} needs a CUDA device"
    few_configurations()
    call = getattr(importlib.import_module(module), function)
    leaves = [stream.requires_grad_() for stream in _streams(kind, shape, device, dtype)]
    return differentiable(lambda: call(*leaves), leaves)


@functools.cache
def few_configurations() -> None:
    """Let kernels by hand try three configurations each, not some dozens: that takes minutes."""
    tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    begin = tuner.__init__

    def begin_with_few(self, fn, arg_names, configs, *rest, **named):
        begin(self, fn, arg_names, list(configs)[:CONFIGURATIONS], *rest, **named)

    tuner.__init__ = begin_with_few


@functools.cache
def chosen(
    name: str, shape: Shape, device: str, dtype: torch.dtype, trains: bool
) -> Mapping[str, Mapping[str, int]]:
    """What a call of a cell takes, which is timed where it is not known."""
    cell = cellgen.torch.function(name, form=form_of(name))
    given = arguments(name, shape, device, dtype)
    theta = [given[item].requires_grad_(trains) for item in cell.names]
    with mock.patch.dict(os.environ, CELLGEN_PROVE="0"):
        sizes = cell.layout.sizes(theta)
        launch = launch_of(cell.known, sizes, theta, lambda *_: {}, frozenset(cell.names))
    return launch.chosen.blocks if launch is not None else {}


def by_triton(name: str, shape: Shape, device: str, dtype: torch.dtype) -> tuple[Call, Call]:
    """A whole cell by the kernels of its generated Triton module."""
    from cellgen.torch.passes import PlanRun

    module = cellgen.load(name, "triton").module
    given = arguments(name, shape, device, dtype)
    lengths = _lengths(name, shape) | {"T": shape.T, "B": shape.B}

    def forward(trains: bool = False) -> PlanRun:
        blocks = chosen(name, shape, device, dtype, trains)
        run = PlanRun(module, dict(lengths), dict(given), trains=trains, chosen=blocks)
        run.forward()
        return run

    def both() -> object:
        run = forward(trains=True)
        above = {f"d_{n}": run.arrays[n] for n in run.plan["outputs"]}
        return run.backward(above)

    return forward, both


def recurrence_by_triton(
    name: str, shape: Shape, device: str, dtype: torch.dtype
) -> tuple[Call, Call]:
    """The memories, or the scans, of a cell by its kernels, without products with weights."""
    from cellgen.torch.passes import PlanRun

    module = cellgen.load(name, "triton").module
    sizes = _lengths(name, shape) | {"T": shape.T, "B": shape.B}
    arrays = dict(arguments(name, shape, device, dtype))
    kind = "memory" if module.PLAN.get("memories") else "launch"
    runs: dict[bool, PlanRun] = {}

    def run_of(trains: bool) -> PlanRun:
        if trains not in runs:
            how = {"trains": trains, "chosen": chosen(name, shape, device, dtype, trains)}
            runs[trains] = run = PlanRun(module, dict(sizes), dict(arrays), **how)
            run.forward()
            if trains:
                for output in run.plan["outputs"]:
                    run.at(f"d_{output}").fill_(1)
                for last in run.plan["last"]:
                    run.at(f"d_{last}").zero_()
                run.operations(run.plan["backward"])
        return runs[trains]

    def call(trains: bool) -> None:
        run = run_of(trains)
        for which in ("forward", "backward") if trains else ("forward",):
            run.operations([one for one in run.plan[which] if one["op"] == kind])

    return lambda: call(False), lambda: call(True)


def copy_of(name: str, shape: Shape, device: str, dtype: torch.dtype) -> Call:
    """A copy of as many bytes as q, k, v and outputs have, or two streams and outputs of a scan."""
    arrays = 4 if name in MEMORIES else 3
    many = arrays * shape.T * shape.B * shape.N * shape.D // 2
    half = torch.empty(many, device=device, dtype=dtype)
    to = torch.empty_like(half)
    return lambda: to.copy_(half)


def form_of(name: str) -> str:
    return "chunk" if form_over_time(definition_named(name)).memories else "scan"


def error_of(name: str, shape: Shape, device: str) -> Record:
    """The form in time against steps: float32, few steps, outputs and every gradient."""
    small = Shape(min(shape.T, CHECKED_STEPS), min(shape.B, 2), min(shape.N, 2), shape.D)
    found: list[list[torch.Tensor]] = []
    for form, place in (("step", "cpu"), (form_of(name), device)):
        given = arguments(name, small, place, torch.float32)
        leaves = [t.requires_grad_() for t in given.values()]
        output = _first(cellgen.torch.function(name, form=form)(**given))
        back = torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)
        found.append([t.detach().cpu() for t in (output, *back) if t is not None])
    errors = [float((a - b).norm() / b.norm()) for b, a in zip(*found, strict=True) if b.norm() > 0]
    return {"error": max(errors), "compared": len(errors)}


def part(
    name: str, shape: Shape, device: str, rounds: int, steps: bool, errors: bool = True
) -> Iterator[Record]:
    """Everything about one cell and shape."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    about: Record = {"cell": name, "T": shape.T, "B": shape.B, "N": shape.N, "D": shape.D}
    about["dtype"] = str(dtype).removeprefix("torch.")
    if errors:
        yield about | error_of(name, shape, device)
    calls: dict[str, Call] = {"copy of as many bytes": copy_of(name, shape, device, dtype)}
    for form in (form_of(name), "step") if steps else (form_of(name),):
        forward, both = own(name, shape, form, device, dtype)
        calls |= {f"whole cell, {form}, forward": forward, f"whole cell, {form}, both": both}
    if device != "cpu":
        for what, made in (
            ("whole cell, Triton", by_triton),
            ("recurrence, Triton", recurrence_by_triton),
        ):
            forward, both = made(name, shape, device, dtype)
            calls |= {f"{what}, forward": forward, f"{what}, both": both}
    peer = by_hand(name, shape, device, dtype)
    if isinstance(peer, str):
        yield about | {"who": "by hand", "not run": peer}
    else:
        calls |= {"recurrence by hand, forward": peer[0], "recurrence by hand, both": peer[1]}
    if device == "cuda":
        calls = {name: replayed(call) for name, call in calls.items()}
    for record in interleaved(calls, device, rounds):
        yield about | record


def parts(options: argparse.Namespace, device: str) -> Iterator[tuple[str, Shape]]:
    if device == "cpu":
        yield from ((name, TINY[0]) for name in ("gla", "min_gru"))
        return
    names = options.cells.split(",") if options.cells else (*MEMORIES, *SCANS)
    for shape in SHAPES[: options.shapes]:
        yield from ((name, shape) for name in names)


def run(options: argparse.Namespace, device: str) -> list[Record]:
    """All parts that the time allows; each record is written when it is there."""
    start, records, save = time.monotonic(), list[Record](), options.save
    steps, errors = options.steps or device == "cpu", not options.times_only
    rounds = 1 if device == "cpu" else options.rounds

    def say(record: Record) -> None:
        records.append(record)
        print(json.dumps(record), flush=True)
        if save is not None:
            save.write_text(json.dumps(records, indent=1), encoding="utf-8")

    with ThreadPoolExecutor() as pool:  # kernels of steps on the CPU, which errors are against
        names = {n: 0 for n, _ in parts(options, device) if errors}
        list(pool.map(lambda name: cellgen.load(name).build(), names))
    say({"device": device_name(device), "torch": torch.__version__, "limit_s": options.limit})
    for name, shape in parts(options, device):
        about: Record = {"cell": name, **vars(shape)}
        if time.monotonic() - start > options.limit - PART_S:
            say(about | {"not run": "the time is over"})
            continue
        try:
            for record in part(name, shape, device, rounds, steps, errors):
                say(record)
        except Exception as error:
            say(about | {"failed": f"{type(error).__name__}: {str(error)[:200]}"})
        if device != "cpu":
            torch.cuda.empty_cache()
    if device == "cpu":
        say({"not run": "all shapes and peers on a device: PyTorch sees none here"})
    return records


def device_name(device: str) -> str:
    return "CPU, tiny shapes" if device == "cpu" else torch.cuda.get_device_name()


def table(records: list[Record]) -> str:
    """Times as Markdown: a row for each cell and shape, a column for each side."""
    timed = [record for record in records if "ms" in record]
    sides = sorted({str(record["who"]) for record in timed})
    lines = ["| cell | T, B, N, D | " + " | ".join(sides) + " |", "|---" * (len(sides) + 2) + "|"]
    keys = dict.fromkeys(tuple(r[k] for k in ("cell", "T", "B", "N", "D")) for r in timed)
    for key in keys:
        mine = {
            str(r["who"]): f"{r['ms']:.3g}"
            for r in timed
            if tuple(r[k] for k in ("cell", "T", "B", "N", "D")) == key
        }
        shape = ", ".join(map(str, key[1:]))
        lines.append(f"| {key[0]} | {shape} | " + " | ".join(mine.get(s, "") for s in sides) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", type=Path, help="where records are written as they come")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds")
    parser.add_argument("--cells", default="", help="comma-separated")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="so many, the first")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each time")
    parser.add_argument("--steps", action="store_true", help="steps too: nvcc takes minutes")
    parser.add_argument("--times-only", action="store_true", help="errors are known")
    parser.add_argument("--cpu", action="store_true", help="the tiny part, beside a device too")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    records = run(options, device)
    print(table(records))
    return int(any("failed" in record for record in records))


if __name__ == "__main__":
    raise SystemExit(main())
