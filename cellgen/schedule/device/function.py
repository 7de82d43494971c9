"""One function over time while it is planned: its workspace, packed weights, options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cellgen.language.names import Names
from cellgen.language.value import Value
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import LOCALS
from cellgen.schedule.device.loops import operands_of, plan_function
from cellgen.schedule.device.over_time import OverTimeLayout, lay_out
from cellgen.schedule.device.places import (
    DevicePlace,
    DeviceWorkspace,
    row_stride,
)
from cellgen.schedule.device.stacked import WeightPanels
from cellgen.schedule.device.stages import OnceStage, SumOfProducts
from cellgen.schedule.groups import Group
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction


@dataclass
class FunctionPlanner:
    """One function while it is planned; ``own``: what the prologue forms, and totals."""

    schedule: SequenceSchedule
    signature: Signature
    memory: DeviceWorkspace
    packing: WeightPanels
    own: Mapping[Value, DevicePlace]
    options: OverTimeLayout
    names: set[str] = field(default_factory=set)
    """Workspace arrays and strides that the loop over steps and what surrounds it name."""
    sums: list[SumOfProducts] = field(default_factory=list)

    @staticmethod
    def begin(schedule: SequenceSchedule, signature: Signature) -> FunctionPlanner:
        """Begin a function: its workspace, and what runs once a sequence."""
        programs = schedule.programs
        values = [v for program in programs.all for v in program.values]
        memory = DeviceWorkspace(Names([*LOCALS, *(str(v.name) for v in values)]))
        own, is_backward = {}, signature.name != "sequence_forward"
        for value in (*programs.fixed, *(programs.totals if is_backward else ())):
            buffer = Buffer(value, BufferKind.RESULT)
            own[value] = memory.place(f"{value.name}_once", buffer, is_stored=True)
        links = programs.links
        if is_backward:
            read = {*programs.reverse.arguments, *programs.deferred.arguments}
            links = tuple(link for link in links if link.previous in read)
        options = lay_out(programs, signature, memory, links, is_backward=is_backward)
        return FunctionPlanner(schedule, signature, memory, WeightPanels(memory.add), own, options)

    @property
    def cell(self) -> str:
        """Name of the cell."""
        return self.schedule.programs.definition.name

    def count_products(self, group: Group, *, begun: bool = False) -> None:
        """Note how many products each slot of a group adds up."""
        for number, slot in enumerate(group.slots):
            reached = [term for term in group.terms if number in {w.slot for w in term.weights}]
            self.sums.append(SumOfProducts(slot.view.buffer.value, len(reached), begun))

    def once(self, function: PlannedFunction | None) -> tuple[OnceStage, ...]:
        """What runs once a sequence, on weights alone."""
        if function is None:
            return ()
        operands, places = operands_of(function.stages), {}
        for buffer in function.buffers:
            if buffer.value in self.own:
                places[buffer] = self.own[buffer.value]
            elif buffer.kind is BufferKind.WORKSPACE:
                name, is_stored = f"{function.name}_{buffer.name}", buffer in operands
                places[buffer] = self.memory.place(name, buffer, is_stored=is_stored)
            else:
                places[buffer] = DevicePlace.of_caller(buffer.name, row_stride(buffer))
        stem = f"{self.cell}_{self.signature.name}_{function.name}"
        return plan_function(function, stem, places, self.memory)
