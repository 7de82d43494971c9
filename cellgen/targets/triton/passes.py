"""Order what a cell does over a whole sequence: the pass forward, and the pass back.

Input: ``RowWork``. Output: ``Passes``: kernels, the arrays that there are, and operations one
behind the other, each on whole arrays: launches, products, sums, memories. A runtime goes through
them; nothing is left to decide but sizes of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cellgen.errors import DerivationError
from cellgen.language.value import Role, Value, format_axis
from cellgen.program.chunks.layers import LinearScan, MaxPlusScan, Memory
from cellgen.program.ssa import Program, Statement
from cellgen.targets.target import NotYet
from cellgen.targets.triton.memory import MemoryKernels, memory_kernels
from cellgen.targets.triton.plan import (
    STEP_BEFORE,
    BufferRole,
    LayerPlan,
    RowBlock,
    RowConfigurations,
)
from cellgen.targets.triton.rows import (
    NOT_SPELLED,
    RowKernel,
    RowWork,
    Stage,
    is_by_row,
    unit_axes,
)
from cellgen.targets.triton.scan import RowSpelling
from cellgen.targets.triton.scan_text import RowKernelSource, width_text

BLOCKS = ((4, 1, 16), (2, 1, 16), (1, 1, 16), (1, 4, 16), (2, 4, 8))
"""Units of a lane, warps, steps ahead. The first ran on an H200 (lab note 19); the others are
guesses, which a call times."""
ONCE = ((2, 1, 16), (1, 1, 32), (1, 1, 16))
"""The same of scans whose segments are read once: steps ahead are all those of a segment."""
CONFIGURATIONS = RowConfigurations(
    tuple(RowBlock(*one) for one in BLOCKS),
    (1024, 4096, 0),
    tuple(RowBlock(*one) for one in ONCE),
)


@dataclass(frozen=True)
class ArrayPlan:
    """An array: its axes by name. ``dtype``: ``"streams"``, the caller's, ``"sums"``, or a name."""

    shape: tuple[str, ...]
    dtype: str = "streams"


@dataclass(frozen=True)
class RowLaunch:
    """A kernel over ``units`` of every row; ``is_flat``: steps and rows are one, in any order.

    ``streams`` counts the arrays that it reads at each step. ``whole`` is the kernel that says
    first what segments of steps do, with its arrays; ``once`` one that does both, and reads each
    segment once, ``once_formed`` the numbers that it may form of each step before it has a state.
    """

    kernel: str
    arrays: Mapping[str, str]
    units: str
    dims: Mapping[str, str]
    flags: tuple[str, ...]
    streams: int
    is_flat: bool
    whole: str = ""
    whole_arrays: Mapping[str, str] = field(default_factory=dict)
    whole_dims: Mapping[str, str] = field(default_factory=dict)
    once: str = ""
    once_arrays: Mapping[str, str] = field(default_factory=dict)
    once_dims: Mapping[str, str] = field(default_factory=dict)
    once_flags: tuple[str, ...] = ()
    once_formed: int = 0
    op: str = "launch"


@dataclass(frozen=True)
class RowProduct:
    """``into = left right``, by form ``nn``, ``nt`` or ``tn``, added to it where ``adds``.

    Axes behind the first of a weight are one; so are steps and rows.
    """

    into: str
    left: str
    right: str
    form: str
    adds: bool = False
    op: str = "product"


@dataclass(frozen=True)
class SumOver:
    """``into`` is ``of``, summed over what ``axes`` it has beside, and over shares in front."""

    into: str
    of: str
    axes: tuple[str, ...]
    keeps: tuple[bool, ...]
    shares: bool = False
    adds: bool = False
    op: str = "sum"


@dataclass(frozen=True)
class RowSpread:
    """``into`` is ``of`` along every axis that it has more."""

    into: str
    of: str
    adds: bool = False
    op: str = "spread"


@dataclass(frozen=True)
class MemoryPass:
    """A memory over all steps, forward or back, by the plan of its layer.

    ``adds``: streams that have a gradient already.
    """

    layer: int
    is_back: bool
    adds: tuple[str, ...] = ()
    op: str = "memory"


Operation: TypeAlias = RowLaunch | RowProduct | SumOver | RowSpread | MemoryPass


@dataclass(frozen=True)
class Passes:
    """What a module says of a cell: ``outputs``, ``last`` and ``gradients`` are names.

    ``rows`` are configurations of kernels over rows and units; memories have their own.
    """

    outputs: tuple[str, ...]
    last: tuple[str, ...]
    gradients: tuple[str, ...]
    arrays: Mapping[str, ArrayPlan]
    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    memories: tuple[LayerPlan, ...] = ()
    rows: RowConfigurations = CONFIGURATIONS


class Ordering:
    """Orders the operations of both passes, and spells their kernels."""

    def __init__(self, work: RowWork) -> None:
        self.work = work
        self.definition = work.programs.definition
        self.stages = work.stages()
        self.arrays: dict[str, ArrayPlan] = {}
        self.kernels: dict[str, RowKernelSource] = {}
        self.memories = {
            memory.state: _spelled(work, memory)
            for memory in work.memories
            if memory.beside is None or memory.value_axis is not None
        }
        self.spellings = {
            kernel.name: RowSpelling(kernel, *_linear(work, kernel))
            for stage in self.stages
            for kernel in stage.kernels
        }
        self.summed: set[Value] = set()
        """Values that have a gradient."""

    def passes(self) -> Passes:
        """Both passes."""
        self.arrays[STEP_BEFORE] = ArrayPlan(("T", "B"), "int32")
        for value in self.definition.declared:
            self._declare(value, str(value))
        forward = [one for stage in self.stages for one in self._forward(stage)]
        outputs = self.work.programs.outputs
        self.summed = set(outputs)
        for value in outputs:
            self._declare(value, f"d_{value}")
        backward = [one for stage in reversed(self.stages) for one in self._backward(stage)]
        last = [f"{self.definition.next_state(state)}_last" for state in self.definition.states]
        gradients = [str(v) for v in self.definition.declared if f"d_{v}" in self.arrays]
        return Passes(
            tuple(map(str, outputs)),
            tuple(last),
            tuple(gradients),
            self.arrays,
            tuple(forward),
            tuple(backward),
            tuple(one.plan for one in self.memories.values()),
        )

    # --- forward ---

    def _forward(self, stage: Stage) -> Iterable[Operation]:
        for memory in stage.memories:
            for readout in memory.readouts:
                self._declare(readout.value, str(readout.value))
            self.arrays[f"{memory.next}_last"] = ArrayPlan(_axes(memory.state))
            self.arrays[f"d_{memory.next}_last"] = ArrayPlan(_axes(memory.state))
            if memory.state in self.memories:
                yield MemoryPass(list(self.memories).index(memory.state), is_back=False)
        for statement in stage.operators:
            self._declare(statement.target, str(statement.target))
            if self._is_number_of_head(statement.target):
                self.arrays[str(statement.target)] = ArrayPlan(_shape(statement.target), "sums")
            yield self._operator(statement)
        for kernel in stage.kernels:
            yield self._launch(kernel)

    def _operator(self, statement: Statement) -> Operation:
        target, operands = str(statement.target), statement.operands
        if statement.traits.is_matmul and is_by_row(operands[0]) and not is_by_row(operands[1]):
            return RowProduct(target, str(operands[0]), str(operands[1]), "nn")
        if statement.traits.is_sum and is_by_row(statement.target):
            return _sum_into(statement.target, target, str(operands[0]), unit_axes(operands[0]))
        raise DerivationError(
            f"{self.definition.name}: `{statement}` is not spelled in Triton: products of rows "
            f"with weights and sums over units are",
            code=NOT_SPELLED,
        )

    def _is_number_of_head(self, value: Value) -> bool:
        """Whether a value is one number of each head: gates and decays of all that a head holds.

        Such a sum is kept as it is formed: it is little beside keys and values, what it is rounded
        by shows in a whole memory, and a maximum of two may take the other one.
        """
        axes = tuple(format_axis(axis) for axis in unit_axes(value) if axis != 1)
        return any(axes == tuple(one.plan.sizes["N"]) for one in self.memories.values())

    def _launch(self, kernel: RowKernel) -> RowLaunch:
        spelling = self.spellings[kernel.name]
        saved = {v for v in kernel.following if not self._is_read(v, kernel)}
        for value in (*kernel.following, *kernel.roots):
            self._declare(value, str(value))
        for value in kernel.following:
            if value in saved or self._is_largest(kernel):
                self.arrays[str(value)] = ArrayPlan(_shape(value), "sums")
            self.arrays[f"{value}_last"] = ArrayPlan(_axes(value))
        every = (spelling.forward(saved), spelling.whole(), spelling.forward_once(saved))
        return self._launched(kernel, *every, "")

    def _launched(
        self,
        kernel: RowKernel,
        spelled: RowKernelSource,
        whole: RowKernelSource | None,
        once: RowKernelSource | None,
        back: str,
    ) -> RowLaunch:
        """``back`` is in the names of arrays of segments: ``"back_"``, or nothing."""
        self.kernels |= {one.name: one for one in (spelled, whole, once) if one is not None}
        if whole is not None:
            count, of = len(kernel.states), f"{kernel.name}.{back}"
            shape = ("B", *map(format_axis, kernel.axes))
            for name, size in (("ends", count if back else count * (count + 1)), ("starts", count)):
                self.arrays[f"{of}{name}"] = ArrayPlan(("segments", str(size), *shape), "sums")
            self.arrays[f"{of}told"] = ArrayPlan(("1 + segments*B*blocks",), "int32")
        return RowLaunch(
            spelled.name,
            spelled.arrays,
            width_text(kernel.axes),
            spelled.dims,
            spelled.flags,
            spelled.streams,
            not kernel.states,
            whole.name if whole else "",
            whole.arrays if whole else {},
            whole.dims if whole else {},
            once.name if once else "",
            once.arrays if once else {},
            once.dims if once else {},
            once.flags if once else (),
            once.formed if once else 0,
        )

    def _is_read(self, value: Value, by: RowKernel) -> bool:
        """Whether a new state is read by more than the backward pass of its kernel."""
        if value in self.work.programs.outputs:
            return True
        for stage in self.stages:
            if any(value in statement.operands for statement in stage.operators):
                return True
            if any(value in kernel.step.arguments for kernel in stage.kernels if kernel is not by):
                return True
        return any(value in memory.streams for memory in self.work.memories)

    def _is_largest(self, kernel: RowKernel) -> bool:
        """Whether a state of a kernel is a maximum, the exponent of what others of it hold."""
        layers = (one for one in self.work.form.layers if isinstance(one, MaxPlusScan))
        return any(state in layer.states for layer in layers for state in kernel.states)

    # --- back ---

    def _backward(self, stage: Stage) -> Iterable[Operation]:
        for kernel in reversed(stage.kernels):
            yield from self._launch_back(kernel)
        for statement in reversed(stage.operators):
            if statement.target in self.summed:
                yield from self._operator_back(statement)
        for memory in reversed(stage.memories):
            self._reach(memory.state)
            if memory.state in self.memories:
                taken = self.work.taken(memory)
                adds = tuple(str(stream) for stream in taken if self._reach(stream))
                yield MemoryPass(list(self.memories).index(memory.state), True, adds)

    def _launch_back(self, kernel: RowKernel) -> Iterable[Operation]:
        spelling = self.spellings[kernel.name]
        reached = self.summed.intersection((*kernel.following, *kernel.roots))
        if not kernel.step.arguments or not (reached or kernel.states):
            return
        spelled = spelling.backward(reached, self.summed)
        for value in kernel.following:
            self.arrays[f"d_{value}_last"] = ArrayPlan(_axes(value))
        once = spelling.backward_once(reached, self.summed)
        yield self._launched(kernel, spelled, spelling.whole_back(reached), once, "back_")
        axes = tuple(map(format_axis, kernel.axes))
        for value in kernel.step.arguments:
            if value in kernel.states:
                self._reach(value)
                continue
            name = str(value)
            if not is_by_row(value):
                array = f"{kernel.name}.d_{name}.shares"
                self.arrays[array] = ArrayPlan(("shares", *axes), "sums")
                adds = self._reach(value)
                yield _sum_into(value, f"d_{name}", array, kernel.axes, shares=True, adds=adds)
            elif unit_axes(value) != kernel.axes:
                array = f"{kernel.name}.d_{name}.wide"
                self.arrays[array] = ArrayPlan(("T", "B", *axes), self._dtype(f"d_{name}"))
                adds = self._reach(value)
                yield _sum_into(value, f"d_{name}", array, kernel.axes, adds=adds)
            else:
                self._reach(value)

    def _operator_back(self, statement: Statement) -> Iterable[Operation]:
        above, operands = f"d_{statement.target}", statement.operands
        if statement.traits.is_sum:
            yield RowSpread(f"d_{operands[0]}", above, self._reach(operands[0]))
            return
        left, right = operands
        yield RowProduct(f"d_{left}", above, str(right), "nt", self._reach(left))
        yield RowProduct(f"d_{right}", str(left), above, "tn", self._reach(right))

    def _reach(self, value: Value) -> bool:
        """Note that a value has a gradient; tells whether it had one."""
        had = value in self.summed
        self.summed.add(value)
        self._declare(value, f"d_{value}")
        return had

    def _declare(self, value: Value, name: str) -> None:
        self.arrays[name] = ArrayPlan(_shape(value), self._dtype(name))

    def _dtype(self, name: str) -> str:
        """What memories take in float32 is formed so."""
        buffers = [one.plan.buffers.get(name) for one in self.memories.values()]
        wide = any(b is not None and b.dtype == "float32" and b.role in BY_STEP for b in buffers)
        return "sums" if wide else "streams"


BY_STEP = (BufferRole.STREAM, BufferRole.READ, BufferRole.GRADIENT, BufferRole.UPSTREAM)
"""Buffers that hold numbers of each step; those of first states have other names."""


def _spelled(work: RowWork, memory: Memory) -> MemoryKernels:
    spelled = memory_kernels(work.programs, memory)
    if isinstance(spelled, NotYet):
        raise DerivationError(f"{work.form.cell}: {spelled.reason}", code="triton.memory")
    return spelled


def _linear(work: RowWork, kernel: RowKernel) -> tuple[LinearScan | None, Program | None]:
    """The linear scan that a kernel's states are, with the program of its streams."""
    for layer in work.form.layers:
        if isinstance(layer, LinearScan) and layer.states == kernel.states:
            return layer, work.form.pre[layer.states]
    return None, None


def _axes(value: Value) -> tuple[str, ...]:
    return tuple(format_axis(axis) for axis in value.shape)


def _shape(value: Value) -> tuple[str, ...]:
    """Of a value over all steps: states have one row of numbers, weights none."""
    if is_by_row(value) and value.role is not Role.STATE:
        return ("T", *_axes(value))
    return _axes(value)


def _sum_into(
    value: Value,
    into: str,
    of: str,
    axes: tuple[object, ...],
    *,
    shares: bool = False,
    adds: bool = False,
) -> SumOver:
    kept = set(unit_axes(value))
    keeps = tuple(axis in kept for axis in axes)
    return SumOver(into, of, tuple(format_axis(a) for a in axes), keeps, shares, adds)
