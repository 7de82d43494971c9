"""What kernels of memories lose in 16 bits, in Triton's interpreter, in parts of what has to be.

    python benchmarks/rounding_of_memories.py mlstm --keys 64 --heads 2 --steps 150 --draws 2

A line a draw: of each result what has to be lost, as a first call on a device reckons it
(``cellgen.torch.first_use``), and how many times that the kernels lose, the most first. ``--wide``
names arrays of the plan that are held in float32 (``--wide saved`` all that lie between kernels),
which tells where a result is lost; ``--list`` prints those there are. Nothing here needs a device.
"""

from __future__ import annotations

import argparse
import copy
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

import cellgen.torch
from cellgen.proof.interpreted import bfloat16_as_on_devices
from cellgen.torch import choice, first_use, launched
from cellgen.torch.launched import FormLaunch

CPU, HELD, SAVED = torch.device("cpu"), ("saved", "scratch"), "saved"
OPEN, SHUT = (2.0, False), (-2.0, True)
"""What is added to biases, and whether inputs and states are of one sign: keys nearly equal."""


class LaunchFoundError(Exception):
    """The launch of a call, in the place of its results."""


def launch_of(name: str, dtype: torch.dtype, sizes: Mapping[str, int]) -> FormLaunch:
    """The launch of a cell, before anything is chosen or compared."""
    cell, found = cellgen.torch.function(name, form="auto"), list[FormLaunch]()

    def caught(launch: FormLaunch, theta: object) -> FormLaunch:
        found.append(launch)
        raise LaunchFoundError

    known = dict.fromkeys(cell.layout.dims, sizes["K"]) | dict(sizes)
    theta = {i.name: torch.rand(cell.layout.shape(i.name, known)) for i in cell.layout.theta}
    theta = {item: tensor.to(dtype).requires_grad_() for item, tensor in theta.items()}
    with (
        mock.patch.object(launched, "DEVICES", {"cpu"}),
        mock.patch.object(choice, "configured", caught),
        suppress(LaunchFoundError),
    ):
        cell(**theta)
    return found[0]


def held_between(launch: FormLaunch) -> list[str]:
    """Arrays of 16 bits that lie between the kernels of memories."""
    buffers = [
        one for memory in launch.module.PLAN["memories"] for one in memory["buffers"].items()
    ]
    return [n for n, one in buffers if one["role"] in HELD and one["dtype"] == "streams"]


def widened(launch: FormLaunch, names: Sequence[str]) -> FormLaunch:
    """The same with some arrays in float32."""
    plan = copy.deepcopy(launch.module.PLAN)
    for name in held_between(launch) if [*names] == [SAVED] else names:
        buffers = [m["buffers"][name] for m in plan["memories"] if name in m["buffers"]]
        arrays = [plan["arrays"][name]] if name in plan["arrays"] else []
        if not buffers and not arrays:
            raise SystemExit(f"{launch.cell}: --wide names {name!r}, which --list does not")
        for one in buffers:
            one["dtype"] = "float32"
        for one in arrays:
            one["dtype"] = "sums"
    module = types.SimpleNamespace(**{**vars(launch.module), "PLAN": plan})
    return replace(launch, module=module)  # type: ignore[arg-type]


Losses = dict[str, tuple[float, float]]


def losses(
    launch: FormLaunch, dtype: torch.dtype, draw: int, shift: float, is_positive: bool
) -> Losses:
    """Of each result what has to be lost, and what kernels lose, by its largest number."""
    generator = torch.Generator().manual_seed(draw)
    theta = []
    for item in launch.arguments:
        shape = launch.shape_of(item, launch.sizes)
        is_decay = item.name in launch.decays
        drawn = (
            first_use._decays(shape, generator)
            if is_decay
            else first_use.draw_values(item, shape, generator, shift, is_positive)
        )
        theta.append(drawn)
    true, near, above, handed = first_use.true_and_near(launch, theta, dtype, generator)
    with np.errstate(all="ignore"), bfloat16_as_on_devices():
        formed = first_use._by_kernels(launch, handed, above, CPU, dtype)
    return {
        name: (first_use.apart(near[name], true[name]), first_use.apart(formed[name], true[name]))
        for name in true
        if bool(true[name].any())
    }


def lines(launch: FormLaunch, dtype: torch.dtype, draws: Sequence[int]) -> Iterator[str]:
    """A line a draw, gates wide open and nearly shut in turn."""
    for draw in draws:
        found = losses(launch, dtype, draw, *(SHUT if draw % 2 else OPEN))
        rates = {name: lost / max(least, 1e-12) for name, (least, lost) in found.items()}
        ordered = sorted(rates, key=lambda name: -rates[name])
        said = ", ".join(f"{n} {rates[n]:.2f} of {found[n][0]:.1e}" for n in ordered)
        yield f"draw {draw} ({'shut' if draw % 2 else 'open'}): {said}"


def main() -> None:
    """Print the losses of one cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cell", nargs="?", default="mlstm")
    for name, number in (("keys", 16), ("heads", 1), ("steps", 150), ("rows", 2), ("inputs", 64)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--wide", nargs="*", default=())
    parser.add_argument("--list", action="store_true", help="arrays that --wide may name")
    parser.add_argument("--quick", action="store_true", help="a few steps of one draw")
    how = parser.parse_args()
    if how.quick:
        how.keys, how.steps, how.rows, how.inputs, how.draws = 16, 5, 1, 4, 1
    sizes = {"T": how.steps, "B": how.rows, "N": how.heads, "I": how.inputs}
    sizes |= {"K": how.keys, "D": how.keys}
    dtype = getattr(torch, how.dtype)
    launch = launch_of(how.cell, dtype, sizes)
    if how.list:
        print("\n".join([*held_between(launch), *launch.module.PLAN["arrays"]]))
        return
    wide = widened(launch, how.wide) if how.wide else launch
    for line in lines(wide, dtype, range(how.draws)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
