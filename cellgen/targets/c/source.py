"""Put the C of a cell together: its header and its body.

Input: ``PlannedCell``. Output: the texts of ``<cell>.h``, ``<cell>.c``, which a person reads,
and ``<cell>_plan.inc.h``, which it includes: what the driver and callers read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellgen.runtime.abi import (
    PRECISIONS,
    Interface,
    c_parameters,
    plan_parameters,
    size_parameters,
    struct_lines,
)
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.build.sources import PLAN
from cellgen.schedule.lower import TimePlan, lower
from cellgen.schedule.lower.strips import with_strips
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.targets.c.descriptor import DescriptorContext, descriptor
from cellgen.targets.c.sequence import SequenceContext, sequence_function
from cellgen.targets.c.step import FunctionContext, step_function
from cellgen.targets.head import Head
from cellgen.targets.target import Files, NotYet, PlannedCell
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class CTarget:
    """The C of the CPU's kernels."""

    name: str = "c"
    suffixes: tuple[str, ...] = (".h", ".c", PLAN)

    def render(self, cell: PlannedCell) -> Files | NotYet:
        """Spell a cell in C; there is no cell that C cannot have."""
        head, interface, spelled = cell.head, cell.interface, cell.in_c
        signatures = spelled.signatures
        steps = [
            step_function(f, signatures[f.name], interface) for f in spelled.schedule.functions
        ]
        plans = time_plans(spelled.sequence, spelled.over_time)
        over_time = spelled.over_time
        sequences = [
            sequence_function(p, s, over_time[0]) for p, s in zip(plans, over_time, strict=True)
        ]
        header = HeaderContext(
            head, _structs(interface), interface.has_team, interface.descriptor_symbol
        )
        strips = any(item.strip for sequence in sequences for item in sequence.equations)
        body = BodyContext(head, steps, sequences, strips)
        plan = PlanContext(head, sequences, descriptor(interface))
        return {
            ".h": fill("c/cell.h.j2", header),
            ".c": fill("c/cell.c.j2", body),
            PLAN: fill("c/plan.inc.h.j2", plan),
        }

    def explain(self, cell: PlannedCell) -> list[str]:
        """The plan itself, which C spells as it is."""
        plans = time_plans(cell.sequence, cell.over_time)
        return [line for plan in plans for line in str(plan).splitlines()]

    def plans(self, cell: PlannedCell) -> list[str]:
        """Time plans with fused loops; those of other cells are what C spells."""
        shared = lower(cell.sequence, cell.over_time) if cell.sequence else ()
        own = map(with_strips, shared)
        return [f"in C\n{new}" for old, new in zip(shared, own, strict=True) if new is not old]


def time_plans(
    sequence: SequenceSchedule | None, over_time: Sequence[Signature]
) -> tuple[TimePlan, ...]:
    """The plans of the functions over time that C spells."""
    return tuple(map(with_strips, lower(sequence, over_time))) if sequence else ()


@dataclass(frozen=True)
class StructContext:
    """One argument struct and its prototypes, in one precision."""

    members: list[tuple[str, str]]
    struct: str
    call: str
    workspace_size: str
    plan: str
    packed_size: str
    pack: str
    parameters: str
    size_parameters: str
    text: str


@dataclass(frozen=True)
class HeaderContext:
    """Of ``cell.h.j2``."""

    head: Head
    structs: list[StructContext]
    has_team: bool
    descriptor: str


@dataclass(frozen=True)
class BodyContext:
    """Of ``cell.c.j2``."""

    head: Head
    functions: list[FunctionContext]
    sequences: list[SequenceContext]
    has_strips: bool


@dataclass(frozen=True)
class PlanContext:
    """Of ``plan.inc.h.j2``."""

    head: Head
    sequences: list[SequenceContext]
    descriptor: DescriptorContext


def _structs(interface: Interface) -> list[StructContext]:
    structs = []
    for suffix, c_type in PRECISIONS:
        for function in interface.functions:
            names = interface.symbols(function, suffix)
            structs.append(
                StructContext(
                    members=list(struct_lines(function, c_type)),
                    struct=names.struct,
                    call=names.call,
                    workspace_size=names.workspace_size if function.workspace else "",
                    plan=f"{names.plan}({plan_parameters(function)})" if function.team else "",
                    packed_size=names.packed_size if function.team else "",
                    pack=names.pack if function.team else "",
                    parameters=c_parameters(function),
                    size_parameters=size_parameters(function),
                    text=function.text,
                )
            )
    return structs
