"""Plan loops and functions of a step as launches.

Input: a ``Loop`` or a ``PlannedFunction``, where operands lie, the workspace. Output:
``DeviceLoop``, or the stages of a function in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sympy import Expr, Integer

from cellgen.errors import DerivationError
from cellgen.language.value import T, Value
from cellgen.schedule.device.places import (
    AddMemory,
    DevicePlace,
    DeviceWorkspace,
    Element,
    Extent,
    Places,
    placed,
    row_stride,
)
from cellgen.schedule.device.stages import (
    DeviceLoop,
    DeviceRoutine,
    LaunchedOver,
    LoopKernel,
    OnceStage,
    WholeProduct,
)
from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.schedule import (
    Buffer,
    BufferKind,
    Line,
    Loop,
    PlannedFunction,
    Product,
    Routine,
    Store,
    views,
)


def plan_loop(
    name: str,
    loop: Loop,
    places: Places,
    add_memory: AddMemory,
    *,
    all_steps: bool = False,
    leaves_out: bool = False,
    group: str = "",
) -> DeviceLoop:
    """Plan the kernels of a loop, of one step or of all.

    Raises:
        DerivationError: with code ``cuda.loop``, for an index space of more than two axes.
    """
    if len(loop.space) > 2:
        raise DerivationError(
            f"{name}: a loop over {len(loop.space)} axes is not rendered for CUDA yet",
            code="cuda.loop",
        )
    kernels: list[LoopKernel] = []
    touched: dict[Buffer, DevicePlace] = {}
    steps = (T,) if all_steps else ()
    for part in _kernels_of_nest(loop) if loop.is_nest else _kernels(loop):
        for load in part.loads(loop):
            touched[load.view.buffer] = places(load.view.buffer)
        chunks: list[str] = []
        for line in (*part.written, *part.summed):
            assert line.view is not None
            if part.over_rows and line in part.summed:
                extent = _of_chunks(part, loop, steps)
                own = f"{name}{suffix(part)}_{line.statement.target.name}_chunks"
                chunks.append(add_memory(own, Element.REAL, extent))
            touched[line.view.buffer] = places(line.view.buffer)
        kernels.append(replace(part, chunks=tuple(chunks)))
    return DeviceLoop(name, loop, tuple(kernels), touched, all_steps, leaves_out, group)


def _of_chunks(part: LoopKernel, loop: Loop, steps: tuple[Expr, ...]) -> Extent:
    """What sums over rows need for the shares of chunks of rows."""
    rows = (*steps, loop.space[0] if len(loop.space) == 2 else Integer(1))
    if part.walk is None:
        units = loop.space[-1] if loop.space else Integer(1)
        return Extent((units,), chunks_of=rows)
    return Extent(entries_of(part.walk.strides, loop.axes), chunks_of=rows, entries=True)


def entries_of(strides: Sequence[Expr], axes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The axes along which a sum of a nest has entries."""
    return tuple(axis for axis, stride in zip(axes, strides, strict=True) if stride != 0)


_SUFFIXES = {
    None: "",
    Store.ADD_UNITS: "",
    Store.ADD_ROWS: "_over_rows",
    Store.ADD_ALL: "_over_all",
}


def suffix(kernel: LoopKernel) -> str:
    """What a kernel's name has behind that of its loop."""
    return f"_sums{kernel.number}" if kernel.walk else _SUFFIXES[kernel.sums]


def _kernels(loop: Loop) -> list[LoopKernel]:
    """Split a loop by what becomes of its values."""
    writes = [line for line in loop.lines if line.store is Store.WRITE]
    unit_sums = [line for line in loop.lines if line.store is Store.ADD_UNITS]
    kernels = []
    if unit_sums:
        lines = _with_needed(loop, [*writes, *unit_sums])
        kernels.append(LoopKernel(LaunchedOver.EACH_ROW, lines, Store.ADD_UNITS))
    elif writes:
        kernels.append(LoopKernel(LaunchedOver.ELEMENTS, _with_needed(loop, writes)))
    for store in (Store.ADD_ROWS, Store.ADD_ALL):
        chosen = [line for line in loop.lines if line.store is store]
        if chosen:
            kernels.append(LoopKernel(LaunchedOver.EACH_CHUNK, _with_needed(loop, chosen), store))
    return kernels


def _kernels_of_nest(loop: Loop) -> list[LoopKernel]:
    """Split a nest by what becomes of its values.

    A kernel for what it writes, and one for sums along the same axes.
    """
    writes = [line for line in loop.lines if line.store is Store.WRITE]
    kernels = [LoopKernel(LaunchedOver.ELEMENTS, _with_needed(loop, writes))] if writes else []
    sums = [line for line in loop.lines if line.store not in (Store.LOCAL, Store.WRITE)]
    alike = dict.fromkeys((line.store, line.walk) for line in sums)
    for number, (store, walk) in enumerate(alike, start=1):
        chosen = [line for line in sums if (line.store, line.walk) == (store, walk)]
        lines = _with_needed(loop, chosen)
        kernels.append(LoopKernel(LaunchedOver.ENTRIES, lines, store, walk, number))
    return kernels


def _with_needed(loop: Loop, chosen: Sequence[Line]) -> tuple[Line, ...]:
    """The chosen lines and those whose values they read, in order."""
    kept = set(map(id, chosen))
    needed: set[Value] = set()
    for line in reversed(loop.lines):
        is_value = line.store in (Store.LOCAL, Store.WRITE)
        if id(line) in kept or (is_value and line.statement.target in needed):
            kept.add(id(line))
            needed |= line.statement.expression.atoms(Value)
    return tuple(line for line in loop.lines if id(line) in kept)


def plan_routine(stage: Routine, rows: tuple[Expr, ...], places: Places) -> DeviceRoutine:
    """Plan a routine over so many rows."""
    return DeviceRoutine(stage, rows, placed((view.buffer for view in views(stage)), places))


def plan_function(
    function: PlannedFunction,
    stem: str,
    places: Mapping[Buffer, DevicePlace],
    memory: DeviceWorkspace,
) -> tuple[OnceStage, ...]:
    """Plan the stages of a function, one launch after the other."""
    stages: list[OnceStage] = []
    at = places.__getitem__
    for index, stage in enumerate(function.stages, start=1):
        if isinstance(stage, Product):
            touched = placed((view.buffer for view in views(stage)), at)
            stages.append(WholeProduct(stage, touched))
        elif isinstance(stage, Routine):
            stages.append(plan_routine(stage, (stage.rows,), at))
        else:
            stages.append(plan_loop(f"{stem}_{index}", stage, at, memory.add))
    return tuple(stages)


def place_in_step(buffer: Buffer, is_operand: bool, memory: DeviceWorkspace) -> DevicePlace:
    """Arrays of the caller hold ``STORE``; so do operands of products, sums are ``REAL``."""
    if buffer.kind is BufferKind.WORKSPACE:
        return memory.place(buffer.name, buffer, is_stored=is_operand)
    is_optional = buffer.kind is BufferKind.OPTIONAL
    return DevicePlace.of_caller(buffer.name, row_stride(buffer), optional=is_optional)


def operands_of(stages: Sequence[GroupedStage]) -> set[Buffer]:
    """Buffers that products read: they hold what the arrays' type holds."""
    operands = set[Buffer]()
    for stage in stages:
        if isinstance(stage, Group):
            operands |= {term.operand.buffer for term in stage.terms}
        elif isinstance(stage, Product):
            operands |= {stage.a.buffer, stage.b.buffer}
    return operands


def named_loops(stem: str, loops: Sequence[Loop]) -> list[tuple[str, Loop]]:
    """Names for the loops of a group: the group's own where there is one."""
    many = len(loops) > 1
    return [(f"{stem}_{n}" if many else stem, loop) for n, loop in enumerate(loops, start=1)]
