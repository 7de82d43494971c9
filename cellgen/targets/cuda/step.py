"""Spell the functions of a single step, and what runs once a sequence.

Input: stages with their places, signatures. Output: ``HostFunctionContext`` for ``cell.cu.j2``: the
products and the loops of the plan, one launch after the other on the caller's stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import c_member
from cellgen.schedule.device.places import DeviceMemory, Matrix
from cellgen.schedule.device.plan import DeviceStepPlan
from cellgen.schedule.device.stages import (
    DeferredStage,
    DeviceLoop,
    DeviceProduct,
    DeviceRoutine,
    OnceStage,
    StepsShare,
    StepStage,
    WeightGradients,
)
from cellgen.schedule.schedule import describe
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.kernels import KernelContext, SpelledStages, spell_loop
from cellgen.targets.cuda.places import address, extent, launched, pointer, stride
from cellgen.targets.cuda.products import spell_product, weight_gradients, whole_product

if TYPE_CHECKING:
    from cellgen.targets.cuda.held import HeldContext
    from cellgen.targets.cuda.persist import PersistentContext
    from cellgen.targets.cuda.tiers import TierContext


@dataclass(frozen=True)
class ArrayContext:
    """One array of the workspace: its C name, element type and count."""

    name: str
    element: str
    count: str


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
    memory: list[ArrayContext]
    lines: list[str]
    tiers: list[TierContext]
    held: HeldContext | None = None
    persistent: PersistentContext | None = None
    over_time: bool = False
    arrays: int = 0
    moves: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    strides: list[tuple[str, str]] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)


def step_function(
    plan: DeviceStepPlan, signature: Signature, words: DeviceDialect
) -> HostFunctionContext:
    """Spell one function of a step."""
    spelled = spell_stages(plan.stages, words)
    return HostFunctionContext(
        name=signature.name,
        text=signature.text,
        dims=[c_dim(dim) for dim in signature.dims],
        required=required_arrays(signature),
        kernels=spelled.kernels,
        memory=memory_of(plan.memory, words),
        lines=spelled.launches,
        tiers=[],
    )


def spell_stages(
    stages: Sequence[OnceStage | StepStage | DeferredStage],
    words: DeviceDialect,
    validity: str = "",
) -> SpelledStages:
    """Spell stages one launch after the other; ``validity`` is the table of valid rows."""
    spelled = SpelledStages()
    for stage in stages:
        if isinstance(stage, DeviceLoop):
            loop = spell_loop(stage, words, validity)
            spelled.add(loop.kernels, loop.launches)
        elif isinstance(stage, DeviceRoutine):
            spelled.add([], spell_routine(stage))
        elif isinstance(stage, DeviceProduct):
            spelled.add([], spell_product(stage))
        elif isinstance(stage, WeightGradients):
            spelled.add([], weight_gradients(stage))
        elif isinstance(stage, StepsShare):
            spelled.add([], [_steps_share(stage, validity)])
        else:
            spelled.add([], whole_product(stage))
    return spelled


def spell_routine(stage: DeviceRoutine) -> list[str]:
    """Spell what is neither a product nor a loop: a routine of ``cellgen_cuda.cuh`` over rows."""
    routine, places = stage.routine, stage.places
    read = [Matrix(view, places[view.buffer]) for view in routine.operands]
    y = Matrix(routine.target, places[routine.target.buffer])
    arguments = [
        launched(stage.rows),
        *(f"(int64_t)({c_axis(n)})" for n in (routine.heads, routine.units, routine.after)),
        *(f"cg_in({address(m)}, {stride(m.place) if routine.by_row else '0'})" for m in read),
        f"cg_rows({address(y)}, {stride(y.place)})",
    ]
    return [
        f"/* {describe(routine.statement)} */",
        f"cg_{routine.row.name}(&run, {', '.join(arguments)});",
    ]


def _steps_share(stage: StepsShare, validity: str) -> str:
    """Add up the steps' shares in the gradient of what is constant over time."""
    by, member = c_factor(stage.buffer.shape[-1]), c_member(stage.buffer.name)
    return (
        f"cg_add_steps(&run, nB, {by}, nT, cg_in({pointer(stage.shares)}, {by}), "
        f"{validity}, cg_rows(args->{member}, {by}));"
    )


def memory_of(arrays: Iterable[DeviceMemory], words: DeviceDialect) -> list[ArrayContext]:
    """Spell the arrays of a workspace."""
    return [ArrayContext(a.name, words.elements[a.element], extent(a.extent)) for a in arrays]


def required_arrays(signature: Signature) -> list[str]:
    """Names of the pointers that may not be NULL."""
    return [
        a.name
        for a in (*signature.struct_members, *signature.results)
        if not a.is_scalar
        and (a in signature.results or not a.optional)
        and not (a.saved and a in signature.results)
    ]
