"""Spell the functions of a single step for CUDA.

Input: planned functions and their signatures. Output: ``HostFunctionContext`` for
``cell.cu.j2``: the products and the loops of the plan, one launch after the other on the caller's
stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cellgen.errors import DerivationError
from cellgen.language.names import Names
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import LOCALS, c_member
from cellgen.schedule import Buffer, BufferKind, PlannedFunction, Product, Routine
from cellgen.schedule.schedule import describe
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.kernels import KernelContext, Spelled, spell_loop
from cellgen.targets.cuda.memory import DeviceWorkspace, MemoryContext
from cellgen.targets.cuda.places import DevicePlace, Places, address
from cellgen.targets.cuda.plan import DeviceTimePlan
from cellgen.targets.cuda.products import whole_product
from cellgen.targets.cuda.tiers import TierContext


@dataclass(frozen=True)
class HostFunctionContext:
    """One host function: its kernels, the workspace it carves, the lines that launch.

    ``arrays`` counts those over time, ``moves`` tells which have to be moved, ``placed`` are the
    lines that do it, ``strides`` those that the lines read; ``spared`` names results that a call
    may do without.
    """

    name: str
    text: str
    dims: list[str]
    required: list[str]
    kernels: list[KernelContext]
    memory: list[MemoryContext]
    lines: list[str]
    tiers: list[TierContext]
    plan: DeviceTimePlan | None = None
    over_time: bool = False
    arrays: int = 0
    moves: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    strides: list[tuple[str, str]] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)


def step_function(
    function: PlannedFunction, signature: Signature, cell: str
) -> HostFunctionContext:
    """Spell one planned function of a step."""
    memory = DeviceWorkspace(Names([*LOCALS, *(str(v.name) for v in function.program.values)]))
    operands = operands_of(function)
    places: dict[Buffer, DevicePlace] = {}
    for buffer in function.buffers:
        places[buffer] = _place(buffer, buffer in operands, memory)
    spelled = spell_function(function, f"{cell}_step_{function.name}", places, memory)
    return HostFunctionContext(
        name=signature.name,
        text=signature.text,
        dims=[c_dim(dim) for dim in signature.dims],
        required=required_arrays(signature),
        kernels=spelled.kernels,
        memory=memory.arrays,
        lines=spelled.launches,
        tiers=[],
    )


def spell_function(
    function: PlannedFunction,
    stem: str,
    places: Mapping[Buffer, DevicePlace],
    memory: DeviceWorkspace,
) -> Spelled:
    """Spell the stages of a planned function, one launch after the other."""
    kernels: list[KernelContext] = []
    lines: list[str] = []
    for index, stage in enumerate(function.stages, start=1):
        if isinstance(stage, Product):
            lines.append(f"/* {describe(stage.statement)} */")
            lines += whole_product(stage, places.__getitem__)
            continue
        if isinstance(stage, Routine):
            rows = c_axis(stage.rows) if stage.rows != 1 else "(int64_t)1"
            lines += spell_routine(stage, rows, places.__getitem__)
            continue
        spelled = spell_loop(f"{stem}_{index}", stage, places.__getitem__, memory.add)
        kernels += spelled.kernels
        lines += spelled.launches
    return Spelled(kernels, lines)


def spell_routine(stage: Routine, rows: str, places: Places) -> list[str]:
    """Spell what is neither a product nor a loop: a routine of ``cellgen_cuda.cuh`` over rows."""
    read = [(view, places(view.buffer)) for view in stage.operands]
    y = places(stage.target.buffer)
    arguments = [
        *(rows, *(f"(int64_t)({c_axis(n)})" for n in (stage.heads, stage.units, stage.after))),
        *(f"cg_in({address(v, at)}, {at.stride if stage.by_row else '0'})" for v, at in read),
        f"cg_rows({address(stage.target, y)}, {y.stride})",
    ]
    return [
        f"/* {describe(stage.statement)} */",
        f"cg_{stage.row.name}(&run, {', '.join(arguments)});",
    ]


def not_rendered(cell: str, stage: object) -> DerivationError:
    """The error for a stage that has no spelling in CUDA."""
    return DerivationError(
        f"{cell}: `{str(stage).strip()}` is not rendered for CUDA yet", code="cuda.stage"
    )


def operands_of(function: PlannedFunction) -> set[Buffer]:
    """Buffers that products read: they hold ``store``."""
    products = [stage for stage in function.stages if isinstance(stage, Product)]
    return {view.buffer for product in products for view in (product.a, product.b)}


def required_arrays(signature: Signature) -> list[str]:
    """Names of the pointers that may not be NULL."""
    return [
        a.name
        for a in (*signature.struct_members, *signature.results)
        if not a.is_scalar
        and (a in signature.results or not a.optional)
        and not (a.saved and a in signature.results)
    ]


def element_count(buffer: Buffer) -> str:
    """C text: elements of a buffer."""
    return " * ".join(c_factor(axis) for axis in buffer.shape) or "1"


def row_stride(buffer: Buffer) -> str:
    """C text: elements from row to row of a buffer."""
    return c_factor(buffer.shape[-1]) if buffer.shape else "1"


def _place(buffer: Buffer, is_operand: bool, memory: DeviceWorkspace) -> DevicePlace:
    """Arrays of the caller hold ``store``; so do operands of products, sums are ``real``."""
    if buffer.kind is BufferKind.WORKSPACE:
        element = "store" if is_operand else "real"
        name = memory.add(buffer.name, element, element_count(buffer))
        return DevicePlace(name, row_stride(buffer), element)
    is_optional = buffer.kind is BufferKind.OPTIONAL
    return DevicePlace(
        f"args->{c_member(buffer.name)}", row_stride(buffer), "store", optional=is_optional
    )
