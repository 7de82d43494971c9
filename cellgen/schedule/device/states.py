"""Where states lie over time, and what the deferred part reads of the loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from cellgen.language.value import B, T, Value
from cellgen.program.over_time import StateLink
from cellgen.schedule.device.function import FunctionPlanner
from cellgen.schedule.device.places import (
    ZERO,
    DevicePlace,
    Element,
    Extent,
    IfGiven,
    Moment,
    RowsOfArray,
    row_width,
)
from cellgen.schedule.device.stacked import Neighbours
from cellgen.schedule.over_time import Part
from cellgen.schedule.schedule import View


def state_of_caller(host: FunctionPlanner, link: StateLink) -> RowsOfArray:
    """Rows of a state in the caller's array of it over time."""
    name = str(link.next.name)
    strides = host.options.strides_of(name)
    return RowsOfArray(name, row_width(link.next), of_caller=True, strides=strides)


def state_over_time(host: FunctionPlanner, link: StateLink) -> RowsOfArray:
    """Rows of a state in the forward loop; one that is no output has two places by turns."""
    if link.next in host.schedule.programs.outputs:
        return state_of_caller(host, link)
    return pair_of(host, link.next, Element.STORE)


def pair_of(host: FunctionPlanner, value: Value, element: Element) -> RowsOfArray:
    """Rows of a value in the workspace, of two steps by turns."""
    width = row_width(value)
    pair = host.memory.add(f"{value.name}_pair", element, Extent((Integer(2), B, width)))
    return RowsOfArray(pair, width, by_turns=True)


def saved_or(
    host: FunctionPlanner, value: Value, state: RowsOfArray, step: Moment
) -> RowsOfArray | IfGiven:
    """A state that is no output lies where it is saved, if it is."""
    own = replace(state, at=step)
    if not state.by_turns or value not in host.schedule.programs.saved:
        return own
    saved = RowsOfArray(str(value.name), state.stride, of_caller=True, at=step)
    return IfGiven(saved, own)


@dataclass(frozen=True)
class KeptOverTime:
    """What the deferred part reads of the loop, side by side in one array over time."""

    order: tuple[Value, ...]
    memory: str
    stride: Expr

    @staticmethod
    def plan(host: FunctionPlanner) -> KeptOverTime:
        """Give what is kept one array over time."""
        order = host.schedule.programs.kept
        if not order:
            return KeptOverTime((), "", ZERO)
        total = sum((row_width(v) for v in order[1:]), start=row_width(order[0]))
        memory = host.memory.add("adjoints", Element.STORE, Extent((T, B, total)))
        return KeptOverTime(order, memory, total)

    def place(self, value: Value, step: Moment | None = None) -> DevicePlace:
        """Where a value that is kept lies, at a step or from the first one on."""
        before = self.order[: self.order.index(value)]
        start = sum((row_width(v) for v in before), start=ZERO)
        return DevicePlace.in_memory(self.memory, self.stride, Element.STORE, step, start)

    def neighbours(self, part: Part) -> Neighbours:
        """The views that lie side by side, in order."""
        buffers = {buffer.value: buffer for buffer in part.storage}
        views = []
        for value in self.order:
            if value in buffers:
                shape = buffers[value].shape
                views.append(View(buffers[value], tuple(Integer(0) for _ in shape), shape))
        return Neighbours(views)
