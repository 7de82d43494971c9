"""One host function while it is spelled: its workspace, packed weights, kernels, options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sympy import Expr

from cellgen.language.names import Names
from cellgen.language.value import Value
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import LOCALS, c_member
from cellgen.schedule import Buffer, BufferKind, Loop, PlannedFunction, Product
from cellgen.schedule.groups import Group, GroupedStage, Term, Weight
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.schedule.schedule import flat
from cellgen.targets.cuda.kernels import KernelContext
from cellgen.targets.cuda.memory import DeviceWorkspace
from cellgen.targets.cuda.options import OverTime
from cellgen.targets.cuda.places import DevicePlace
from cellgen.targets.cuda.plan import DeviceTimePlan
from cellgen.targets.cuda.products import (
    WeightPanels,
)
from cellgen.targets.cuda.step import (
    HostFunctionContext,
    element_count,
    operands_of,
    required_arrays,
    row_stride,
    spell_function,
)
from cellgen.targets.cuda.tiers import (
    TierChoice,
)


@dataclass
class HostFunction:
    """One host function while it is spelled."""

    schedule: SequenceSchedule
    signature: Signature
    memory: DeviceWorkspace
    packing: WeightPanels
    kernels: list[KernelContext]
    own: dict[Value, DevicePlace]
    """What the prologue computes, and the totals that the epilogue reads."""
    options: OverTime
    ahead: list[str] = field(default_factory=list)
    """Products that serve every step at once, in words."""
    uses: set[str] = field(default_factory=set)
    """Workspace arrays and strides that the lines around the steps and in them name."""

    @staticmethod
    def begin(schedule: SequenceSchedule, signature: Signature) -> HostFunction:
        """Begin a host function: its workspace, and what runs once a sequence."""
        programs = schedule.programs
        values = [v for program in programs.all for v in program.values]
        memory = DeviceWorkspace(Names([*LOCALS, *(str(v.name) for v in values)]))
        own = {}
        totals = programs.totals if signature.name != "sequence_forward" else ()
        for value in (*programs.fixed, *totals):
            buffer = Buffer(value, BufferKind.RESULT)
            name = memory.add(f"{value.name}_once", "store", element_count(buffer))
            own[value] = DevicePlace.in_memory(name, row_stride(buffer), "store")
        links = programs.links
        if signature.name != "sequence_forward":
            read = {*programs.reverse.arguments, *programs.deferred.arguments}
            links = tuple(link for link in links if link.previous in read)
        options = OverTime(programs, signature, memory, links)
        return HostFunction(schedule, signature, memory, WeightPanels(memory.add), [], own, options)

    def once(self, function: PlannedFunction | None) -> list[str]:
        """Host lines for what runs once a sequence, on weights alone."""
        if function is None:
            return []
        operands = operands_of(function)
        places = {}
        for buffer in function.buffers:
            stride = row_stride(buffer)
            if buffer.value in self.own:
                places[buffer] = self.own[buffer.value]
            elif buffer.kind is BufferKind.WORKSPACE:
                element = "store" if buffer in operands else "real"
                name = self.memory.add(
                    f"{function.name}_{buffer.name}", element, element_count(buffer)
                )
                places[buffer] = DevicePlace.in_memory(name, stride, element)
            else:
                places[buffer] = DevicePlace(f"args->{c_member(buffer.name)}", stride, "store")
        stem = f"{self.cell}_{self.signature.name}_{function.name}"
        spelled = spell_function(function, stem, places, self.memory)
        self.kernels += spelled.kernels
        return spelled.launches

    @property
    def cell(self) -> str:
        """Name of the cell."""
        return self.schedule.programs.definition.name

    def context(
        self, first: Iterable[str], lines: Iterable[str], choice: TierChoice
    ) -> HostFunctionContext:
        """The finished function: what runs first, then ``lines``."""
        placed = self.options.begin()
        spelled = [*first, *self.packing.lines, *lines]
        moves = self.options.moves()
        plan = DeviceTimePlan(
            self.cell,
            self.signature.name,
            tuple(self.memory.arrays),
            tuple(item for item in self.options.strides().items() if item[0] in self.uses),
            tuple(name for name in self.options.places if name in self.options.whole),
            tuple(self.ahead),
            choice,
        )
        return HostFunctionContext(
            name=self.signature.name,
            text=self.signature.text,
            dims=[c_dim(dim) for dim in self.signature.dims],
            required=required_arrays(self.signature),
            kernels=self.kernels,
            memory=list(plan.memory),
            lines=spelled,
            tiers=[choice.kernel] if choice.kernel else [],
            plan=plan,
            over_time=True,
            arrays=len(self.options.places),
            moves=moves,
            placed=placed,
            strides=list(plan.strides),
            spared=[] if self.options.is_backward else [a.name for a in self.options.made],
        )


def row_width(value: Value) -> Expr:
    """Elements of a row: the units of all heads."""
    return flat(value.shape)[-1]


def named_loops(stem: str, loops: Sequence[Loop]) -> list[tuple[str, Loop]]:
    """Names for the loops of a group: the group's own where there is one."""
    many = len(loops) > 1
    return [(f"{stem}_{n}" if many else stem, loop) for n, loop in enumerate(loops, start=1)]


def operands_of_stages(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """Buffers that products read: they hold ``store``."""
    found = set()
    for stage in stages:
        if isinstance(stage, Group):
            found |= {term.operand.buffer for term in stage.terms}
        elif isinstance(stage, Product):
            found |= {stage.a.buffer, stage.b.buffer}
    return found


def nullable(argument: str, place: DevicePlace) -> DevicePlace:
    """An array that may be left out."""
    pointer = f"({argument} ? {place.pointer} : nullptr)"
    return DevicePlace(pointer, place.stride, place.element, optional=True, uses=place.uses)


def term_comment(term: Term, weights: Sequence[Weight]) -> str:
    """A product in words."""
    listed = ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in weights)
    return f"{term.operand} @ [{listed}]"
