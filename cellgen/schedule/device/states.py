"""Where states lie over time, and what the deferred part reads of the loop."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class StateOverTime:
    """Where a state lies after each step: over time, or in two places of the workspace by turns.

    ``strides`` name the strides of an array of the caller.
    """

    array: str
    width: Expr
    is_pair: bool = False
    strides: tuple[str, str] | None = None

    def after(self, step: Moment) -> RowsOfArray:
        """Its rows after a step."""
        return RowsOfArray(
            self.array,
            self.width,
            of_caller=not self.is_pair,
            at=step,
            by_turns=self.is_pair,
            strides=self.strides,
        )


def state_over_time(host: FunctionPlanner, link: StateLink) -> StateOverTime:
    """Where a state of the forward loop lies."""
    name, width = str(link.next.name), row_width(link.next)
    if link.next in host.schedule.programs.outputs:
        return StateOverTime(name, width, strides=host.options.strides_of(name))
    pair = host.memory.add(f"{name}_pair", Element.STORE, Extent((Integer(2), B, width)))
    return StateOverTime(pair, width, is_pair=True)


def saved_or(
    host: FunctionPlanner, value: Value, state: StateOverTime, step: Moment
) -> RowsOfArray | IfGiven:
    """A state that is no output lies where it is saved, if it is."""
    own = state.after(step)
    if not state.is_pair or value not in host.schedule.programs.saved:
        return own
    name = str(value.name)
    return IfGiven(name, StateOverTime(name, state.width).after(step), own)


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
