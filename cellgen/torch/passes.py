"""Run the passes of a generated Triton module on tensors: launches, products and sums in order.

Input: the module's ``PLAN`` and kernels, tensors by name. Output: tensors by name. Sizes of blocks
and how many segments the steps are cut into follow from the call, and from what is chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cellgen.torch.chunks.rows import LEFT_OUT
from cellgen.torch.cleared import ClearedLaunches
from cellgen.torch.cuts import Cut, configurations, cut, size_of
from cellgen.torch.memories import MemoryLaunches

Operation: TypeAlias = Mapping[str, Any]  # a row of PLAN: strings, numbers, tuples, dicts
Arrays: TypeAlias = MutableMapping[str, Tensor]

CPU = torch.device("cpu")
STEP_BEFORE = "step.before"
"""The array that says which steps are left out or begin anew."""
NO_MEMORY = -1
"""In place of the number of a memory: an array of the whole plan."""


@dataclass
class PlanRun:
    """One sequence through a module's passes.

    ``arrays`` holds inputs (T, B, ...), states (B, ...) and weights by name, contiguous, of one
    type; then what the passes form. ``segments`` of the steps run beside each other, ``ahead`` are
    the steps that are loaded ahead; 0 chooses. ``chosen`` are blocks of memories.
    ``call`` are the sizes by which the configuration is chosen, where these are not the run's.
    ``before`` is the table of steps that are left out or begin anew (``rows.steps_before``), if
    there are any; what inputs are at those that are left out shows in nothing. ``resets``: that
    some may begin anew.
    """

    module: ModuleType
    sizes: dict[str, int]
    arrays: Arrays
    segments: int = 0
    ahead: int = 0
    trains: bool = True
    chosen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    call: Mapping[str, int] = field(default_factory=dict)
    before: Tensor | None = None
    resets: bool = True
    plan: Operation = field(init=False)
    memories: dict[int, MemoryLaunches] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = self.module.PLAN
        self.arguments = frozenset(self.arrays)
        self.like = next(iter(self.arrays.values()))
        is_double = self.like.dtype == torch.float64
        self.sums = torch.float64 if is_double else torch.float32
        self.spread_out = {n for n in self.arguments if len(self.axes(n)) > self.arrays[n].dim()}
        for name in self.arguments:
            self.arrays[name] = self._argument(name)
        nothing = torch.empty(1, dtype=torch.int32, device=self.like.device)
        self.arrays[STEP_BEFORE] = nothing if self.before is None else self.before

    def axes(self, name: str) -> Sequence[str]:
        """The axes of an array of the plan, by name."""
        plan = self.plan["arrays"].get(name)
        axes: Sequence[str] = plan["shape"] if plan is not None else ()
        return axes

    def _argument(self, name: str) -> Tensor:
        """An argument as kernels take it: of every step, 0 at those that are left out."""
        array = self.arrays[name]
        if name in self.spread_out:
            array = array.expand(self.sizes["T"], *array.shape)
        if self.before is not None and "T" in self.axes(name):
            table = self.before.reshape(*self.before.shape, *(1,) * (array.dim() - 2))
            array = torch.where(table != LEFT_OUT, array, 0)
        return array.contiguous()

    def forward(self) -> dict[str, Tensor]:
        """Outputs over time, and last states, by name."""
        self.operations(self.plan["forward"])
        names, dtype = (*self.plan["outputs"], *self.plan["last"]), self.like.dtype
        return {name: self.arrays[name].to(dtype) for name in names}

    def backward(self, upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by argument, of ``d_h``, ``d_h_last``, ...; those that are left out are 0.

        What this pass forms is new each time: gradients that it returned stay what they are.
        """
        formed = self.arrays
        self.arrays = dict(formed)
        try:
            for name in (*self.plan["outputs"], *self.plan["last"]):
                above = upstream.get(f"d_{name}")
                place = self._new(f"d_{name}").zero_() if above is None else above.clone()
                self.arrays[f"d_{name}"] = place.to(self._dtype(f"d_{name}")).contiguous()
            self.operations(self.plan["backward"])
            return {name: self._gradient(name) for name in self.plan["gradients"]}
        finally:
            self.arrays = formed

    def _gradient(self, name: str) -> Tensor:
        array = self.arrays[f"d_{name}"]
        return array.sum(0, dtype=self.sums) if name in self.spread_out else array

    # --- what the backward pass reads of the forward one ---

    def kept(self) -> dict[tuple[int, str], Tensor]:
        """What the forward pass formed that the backward one reads, by memory and name.

        Arguments are not among it. Arrays that are of no memory are under -1.
        """
        read = {name for one in self.plan["backward"] for name in _named_by(one)}
        read |= {
            buffer["of"]
            for layer in self.memories
            for buffer in self.plan["memories"][layer]["buffers"].values()
            if buffer["role"] in ("stream", "first")
        }
        kept = {
            (NO_MEMORY, n): a
            for n, a in self.arrays.items()
            if n in read - self.arguments - {STEP_BEFORE}
        }
        for layer, memory in self.memories.items():
            kept |= {(layer, name): array for name, array in memory.kept().items()}
        return kept

    def resume(self, kept: Mapping[tuple[int, str], Tensor]) -> None:
        """Go on to the backward pass from what another run kept; its arguments are there."""
        self.arrays.update({name: a for (layer, name), a in kept.items() if layer == NO_MEMORY})
        for layer in range(len(self.plan.get("memories", ()))):
            self.memories[layer] = run = self.memory_of(layer)
            run.arrays |= {name: a for (of, name), a in kept.items() if of == layer}

    def operations(self, operations: Sequence[Operation]) -> None:
        """Run some operations of the plan, in order."""
        for operation in operations:
            _OPERATIONS[operation["op"]](self, operation)

    # --- arrays ---

    def at(self, name: str) -> Tensor:
        """An array, made where there is none."""
        if name not in self.arrays:
            self.arrays[name] = self._new(name)
        return self.arrays[name]

    def _new(self, name: str) -> Tensor:
        dtype = self._dtype(name)
        make = torch.zeros if dtype == torch.int32 else torch.empty  # segments have told nothing
        return make(self._shape(name), dtype=dtype, device=self.like.device)

    def _dtype(self, name: str) -> torch.dtype:
        own: str = self.plan["arrays"][name]["dtype"]
        return {"int32": torch.int32, "sums": self.sums}.get(own, self.like.dtype)

    # --- operations ---

    def launch(self, launch: Operation) -> None:
        """Launch a kernel; that of whole segments first, where steps are cut."""
        self.each(launch, self._launch)

    def each(self, launch: Operation, call: Callable[..., object]) -> None:
        """Call something with each kernel of a launch, its arrays, sizes, flags, and its cut."""
        cut = self.cut_of(launch)
        rows = 1 if launch["is_flat"] else self.sizes["B"]
        self.sizes |= {"segments": cut.grid[2], "shares": cut.grid[2] * rows, "blocks": cut.grid[0]}
        for name in launch["arrays"].values():
            if name.endswith(".shares"):
                self.arrays.pop(name, None)
        if launch["whole"]:
            self.arrays.pop(launch["whole_arrays"]["ends_ptr"], None)
        if cut.once:
            for pointer in ("starts_ptr", "told_ptr"):
                self.arrays.pop(launch["once_arrays"][pointer], None)
            call(*(launch[f"once{of}"] for of in ("", "_arrays", "_dims", "_flags")), cut)
            return
        if launch["whole"] and cut.grid[2] > 1:
            call(launch["whole"], launch["whole_arrays"], launch["whole_dims"], (), cut)
        call(launch["kernel"], launch["arrays"], launch["dims"], launch["flags"], cut)

    def cut_of(self, launch: Operation) -> Cut:
        """How a launch is cut by what is chosen for its kernel, else by the first configuration."""
        settings = self.chosen.get(launch["kernel"]) or next(configurations(self.plan))
        gaps = self.before is not None
        return cut(launch, self.sizes, self.call, settings, gaps, self.segments, self.ahead)

    def configuration(self) -> tuple[object, ...]:
        """What is compiled for the sizes of the run, beside these: a row for each launch."""
        resets = ["with resets"] if self.resets else []
        rows: list[object] = ["with gaps", *resets] if self.before is not None else []
        for one in (*self.plan["forward"], *self.plan["backward"]):
            if one["op"] == "launch":
                cut = self.cut_of(one)
                is_split = "once" if cut.once else bool(one["whole"]) and cut.grid[2] > 1
                rows.append((one["kernel"], cut.lanes, cut.ahead, cut.warps, is_split))
        for plan in self.plan.get("memories", ()):
            kind = (self.like.dtype, CPU)
            memory = MemoryLaunches(self.module, plan, self.sizes, *kind, chosen=self.chosen)
            rows.append((memory.which(self.trains), sorted(memory.blocks.items())))
        return tuple(map(str, rows))

    def _launch(self, kernel: str, *of: Any) -> None:
        tensors, constants, grid = self.call_of(kernel, *of)
        getattr(self.module, kernel)[grid](*tensors, **constants)

    def call_of(
        self,
        kernel: str,
        arrays: Mapping[str, str],
        dims: Mapping[str, str],
        flags: tuple[str, ...],
        cut: Cut,
    ) -> tuple[list[object], dict[str, object], tuple[int, int, int]]:
        """What a kernel is handed, and its programs."""
        choices: dict[str, object] = {"SPLIT": cut.grid[2] > 1, "SAVE": self.trains}
        constants: dict[str, object] = {name: self.sizes[dim] for name, dim in dims.items()}
        constants |= {flag: choices[flag] for flag in flags}
        constants |= {"AHEAD": cut.ahead, "UNITS": cut.lanes, "num_warps": cut.warps}
        constants |= {"DOUBLE": self.sums == torch.float64, "GAPS": self.before is not None}
        tensors = [self.at(name) for name in arrays.values()]
        return [*tensors, cut.steps, cut.length], constants, cut.grid

    def memory(self, one: Operation) -> None:
        """A matrix memory over all steps: forward, then back with what that pass kept."""
        layer = one["layer"]
        buffers = self.plan["memories"][layer]["buffers"]
        if not one["is_back"]:
            self.memories[layer] = run = self.memory_of(layer)
            for name, buffer in buffers.items():
                if buffer["role"] in ("read", "last"):
                    self._lend(run, name)
            formed = run.forward(self.trains)
            for name, array in formed.items():
                if buffers[name]["role"] in ("read", "last") and name not in self.arrays:
                    self.arrays[name] = array.view(self._shape(name)).to(self._dtype(name))
            return
        run = self.memories[layer]
        for name, buffer in buffers.items():
            if buffer["role"] in ("upstream", "upstream_last") and name in self.arrays:
                run.arrays[name] = run.laid(name, self.arrays[name])
        for name, array in run.backward().items():
            of = buffers[name]["of"]
            total = array.reshape(self._shape(f"d_{of}")).to(self._dtype(f"d_{of}"))
            self.arrays[f"d_{of}"] = self.arrays[f"d_{of}"] + total if of in one["adds"] else total

    def memory_of(self, layer: int) -> MemoryLaunches:
        """The launches of a memory, with what they take."""
        plan, chosen = self.plan["memories"][layer], self.chosen
        kind = (self.like.dtype, self.like.device)
        call = None
        if self.call:
            call = MemoryLaunches(self.module, plan, self.call, *kind, chosen=chosen)
        gaps, resets = self.before is not None, self.resets
        kind_of = ClearedLaunches if gaps and resets else MemoryLaunches
        run = kind_of(self.module, plan, self.sizes, *kind, gaps, resets, chosen, {}, call)
        run.arrays[STEP_BEFORE] = self.arrays[STEP_BEFORE]
        for name, buffer in plan["buffers"].items():
            if buffer["role"] in ("stream", "first"):
                run.arrays[name] = run.laid(name, self.arrays[buffer["of"]])
        return run

    def _lend(self, run: MemoryLaunches, name: str) -> None:
        """Let a memory form a result where the plan has it, if both are of one type.

        A result that were a view of another tensor could not be changed in place by a caller.
        """
        own, theirs = self._new(name), run.new(name)
        if own.dtype == theirs.dtype:
            self.arrays[name], run.arrays[name] = own, own.view(theirs.shape)

    def _shape(self, name: str) -> list[int]:
        return [size_of(axis, self.sizes) for axis in self.plan["arrays"][name]["shape"]]


def _product(run: PlanRun, one: Operation) -> None:
    """A product of all rows with a weight, or its adjoint."""
    left, right, into = run.at(one["left"]), run.at(one["right"]), run.at(one["into"])
    rows = run.sizes["T"] * run.sizes["B"]
    if one["form"] == "nn":
        a, b = left.reshape(rows, -1), right.reshape(right.shape[0], -1)
    elif one["form"] == "nt":
        a, b = left.reshape(rows, -1), right.reshape(right.shape[0], -1).t()
    else:
        a, b = left.reshape(rows, -1).t(), right.reshape(rows, -1)
    _multiply(into.view(a.shape[0], b.shape[1]), a, b, one["adds"], run.sums)


def _sum(run: PlanRun, one: Operation) -> None:
    """Add up shares, and axes that the result lacks."""
    into, of = run.at(one["into"]), run.at(one["of"])
    axes = [size_of(axis, run.sizes) for axis in one["axes"]]
    front = (-1,) if one["shares"] else (run.sizes["T"], run.sizes["B"])
    shaped = of.reshape(*front, *axes)
    over = [len(front) + n for n, keeps in enumerate(one["keeps"]) if not keeps]
    over += [0] if one["shares"] else []
    total = shaped.sum(over, dtype=run.sums) if over else shaped
    total = total.reshape(into.shape).to(into.dtype)
    if one["adds"]:
        into.add_(total)
    else:
        into.copy_(total)


def _spread(run: PlanRun, one: Operation) -> None:
    """Hand a gradient to all that was added up."""
    into, of = run.at(one["into"]), run.at(one["of"])
    if one["adds"]:
        into.add_(of)
    else:
        into.copy_(of.expand(into.shape))


def _multiply(into: Tensor, a: Tensor, b: Tensor, adds: bool, sums: torch.dtype) -> None:
    """Form a product, or add it; in the type of sums where one is what a memory takes in it."""
    if not a.dtype == b.dtype == into.dtype:
        exact = a.to(sums) @ b.to(sums)
        into.copy_(into + exact if adds else exact)
    elif adds:
        into.addmm_(a, b)
    else:
        torch.mm(a, b, out=into)


def _named_by(one: Operation) -> set[str]:
    """The arrays of an operation that is of no memory."""
    if one["op"] == "launch":
        arrays = ("arrays", "whole_arrays", "once_arrays")
        return {name for of in arrays for name in one[of].values()}
    return {one[place] for place in ("left", "right", "into", "of") if place in one}


_OPERATIONS: Mapping[str, Callable[[PlanRun, Operation], None]] = {
    "memory": PlanRun.memory,
    "launch": PlanRun.launch,
    "product": _product,
    "sum": _sum,
    "spread": _spread,
}
