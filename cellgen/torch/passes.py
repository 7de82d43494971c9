"""Run the passes of a generated Triton module on tensors: launches, products and sums in order.

Input: the module's ``PLAN`` and kernels, tensors by name. Output: tensors by name. Sizes of blocks
and how many segments the steps are cut into follow from the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

import torch
import triton.language as tl
from torch import Tensor

Operation: TypeAlias = Mapping[str, Any]  # a row of PLAN: strings, numbers, tuples, dicts
Arrays: TypeAlias = MutableMapping[str, Tensor]

PROGRAMS = 1024
"""Programs of one warp that a device should have at hand; with fewer, steps are cut."""
LEAST_STEPS = 64
"""Steps of a segment at least."""
FLAT_ROWS = 32
"""Rows that one program of pointwise work goes through."""
HELD_AHEAD = 32
"""Numbers of each unit that a program has on the way to it."""


WARP = 32
WIDEST = 4
"""Units of a program: so many for each lane of a warp at most."""
TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True)
class Cut:
    """How a launch is cut: steps of a program, programs, units of each."""

    steps: int
    length: int
    grid: tuple[int, int, int]
    lanes: int


@dataclass
class PlanRun:
    """One sequence through a module's passes.

    ``arrays`` holds inputs (T, B, ...), states (B, ...) and weights by name, contiguous, of one
    type; then what the passes form. ``segments`` of the steps run beside each other, ``ahead`` are
    the steps that are loaded ahead; 0 chooses.
    """

    module: ModuleType
    sizes: dict[str, int]
    arrays: Arrays
    segments: int = 0
    ahead: int = 0
    trains: bool = True
    plan: Operation = field(init=False)

    def __post_init__(self) -> None:
        self.plan = self.module.PLAN
        self.like = next(iter(self.arrays.values()))
        is_double = self.like.dtype == torch.float64
        self.sums = torch.float64 if is_double else torch.float32

    def forward(self) -> dict[str, Tensor]:
        """Outputs over time, and last states, by name."""
        self._run(self.plan["forward"])
        return {name: self.arrays[name] for name in (*self.plan["outputs"], *self.plan["last"])}

    def backward(self, upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by argument, of ``d_h``, ``d_h_last``, ...; those that are left out are 0."""
        for name in (*self.plan["outputs"], *self.plan["last"]):
            above = upstream.get(f"d_{name}")
            place = self._new(f"d_{name}").zero_() if above is None else above.clone()
            self.arrays[f"d_{name}"] = place.contiguous()
        self._run(self.plan["backward"])
        return {name: self.arrays[f"d_{name}"] for name in self.plan["gradients"]}

    def _run(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            _OPERATIONS[operation["op"]](self, operation)

    # --- arrays ---

    def at(self, name: str) -> Tensor:
        """An array, made where there is none."""
        if name not in self.arrays:
            self.arrays[name] = self._new(name)
        return self.arrays[name]

    def _new(self, name: str) -> Tensor:
        planned = self.plan["arrays"][name]
        shape = [size_of(axis, self.sizes) for axis in planned["shape"]]
        dtype = self.sums if planned["dtype"] == "sums" else self.like.dtype
        return torch.empty(shape, dtype=dtype, device=self.like.device)

    # --- operations ---

    def launch(self, launch: Operation) -> None:
        """Launch a kernel; that of whole segments first, where steps are cut."""
        units = size_of(launch["units"], self.sizes)
        lanes = WARP * max(1, min(WIDEST, units // WARP))
        steps, rows = self.sizes["T"], self.sizes["B"]
        segments = 1
        if launch["is_flat"]:
            steps, rows = steps * rows, 1
            segments = -(-steps // FLAT_ROWS)
        elif launch["whole"]:
            segments = self._segments(-(-units // lanes) * rows, steps)
        length = -(-steps // max(1, segments))
        cut = Cut(steps, length, (-(-units // lanes), rows, -(-steps // length)), lanes)
        self.sizes |= {"segments": cut.grid[2], "shares": cut.grid[2] * rows}
        for name in launch["arrays"].values():
            if name.endswith("_shares"):
                self.arrays.pop(name, None)
        if launch["whole"]:
            self.arrays.pop(launch["whole_arrays"]["ends_ptr"], None)
            if cut.grid[2] > 1:
                self._launch(launch["whole"], launch["whole_arrays"], launch["whole_dims"], (), cut)
        self._launch(launch["kernel"], launch["arrays"], launch["dims"], launch["flags"], cut)

    def _segments(self, programs: int, steps: int) -> int:
        if self.segments:
            return min(self.segments, steps)
        return max(1, min(PROGRAMS // programs, steps // LEAST_STEPS))

    def _launch(
        self,
        kernel: str,
        arrays: Mapping[str, str],
        dims: tuple[str, ...],
        flags: tuple[str, ...],
        cut: Cut,
    ) -> None:
        choices: dict[str, object] = {"SPLIT": cut.grid[2] > 1, "SAVE": self.trains}
        constants: dict[str, object] = {dim: self.sizes[dim] for dim in dims}
        constants |= {flag: choices[flag] for flag in flags}
        constants["AHEAD"] = self.ahead or max(1, HELD_AHEAD * WARP // (cut.lanes * WIDEST))
        constants |= {"UNITS": cut.lanes, "ACC": TYPES[self.sums]}
        tensors = [self.at(name) for name in arrays.values()]
        run = getattr(self.module, kernel)[cut.grid]
        run(*tensors, cut.steps, cut.length, **constants, num_warps=1)

    def product(self, one: Operation) -> None:
        """A product of all rows with a weight, or its adjoint."""
        left, right, into = self.at(one["left"]), self.at(one["right"]), self.at(one["into"])
        rows = self.sizes["T"] * self.sizes["B"]
        if one["form"] == "nn":
            a, b = left.reshape(rows, -1), right.reshape(right.shape[0], -1)
        elif one["form"] == "nt":
            a, b = left.reshape(rows, -1), right.reshape(right.shape[0], -1).t()
        else:
            a, b = left.reshape(rows, -1).t(), right.reshape(rows, -1)
        flat = into.view(a.shape[0], b.shape[1])
        if one["adds"]:
            flat.addmm_(a, b)
        else:
            torch.mm(a, b, out=flat)

    def sum(self, one: Operation) -> None:
        """Add up shares, and axes that the result lacks."""
        into, of = self.at(one["into"]), self.at(one["of"])
        axes = [size_of(axis, self.sizes) for axis in one["axes"]]
        front = (-1,) if one["shares"] else (self.sizes["T"], self.sizes["B"])
        shaped = of.reshape(*front, *axes)
        over = [len(front) + n for n, keeps in enumerate(one["keeps"]) if not keeps]
        over += [0] if one["shares"] else []
        total = shaped.sum(over, dtype=self.sums) if over else shaped
        total = total.reshape(into.shape).to(into.dtype)
        if one["adds"]:
            into.add_(total)
        else:
            into.copy_(total)

    def spread(self, one: Operation) -> None:
        """Hand a gradient to all that was added up."""
        into, of = self.at(one["into"]), self.at(one["of"])
        if one["adds"]:
            into.add_(of)
        else:
            into.copy_(of.expand(into.shape))


def size_of(text: str, sizes: Mapping[str, int]) -> int:
    """A length, by sizes of dimensions.

    >>> size_of("2*H + I", {"H": 3, "I": 4})
    10
    """
    total = 0
    for term in text.replace("(", "").replace(")", "").split("+"):
        product = 1
        for factor in term.split("*"):
            name = factor.strip()
            product *= int(name) if name.isdigit() else sizes[name]
        total += product
    return total


_OPERATIONS: Mapping[str, Callable[[PlanRun, Operation], None]] = {
    "launch": PlanRun.launch,
    "product": PlanRun.product,
    "sum": PlanRun.sum,
    "spread": PlanRun.spread,
}
