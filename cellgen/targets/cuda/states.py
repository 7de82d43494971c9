"""Where states lie over time, and what the deferred part reads of the loop."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from cellgen.language.value import Value
from cellgen.program.over_time import StateLink
from cellgen.runtime.names import c_member
from cellgen.schedule.over_time import Part
from cellgen.schedule.schedule import View
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.host import HostFunction, row_width
from cellgen.targets.cuda.places import DevicePlace
from cellgen.targets.cuda.products import (
    Neighbours,
)


@dataclass(frozen=True)
class StateOverTime:
    """Where a state lies after each step: over time, or in two places by turns.

    ``strides_of`` names the strides of an array of the caller.
    """

    base: str
    width: str
    is_pair: bool = False
    strides_of: tuple[str, str] | None = None

    @property
    def uses(self) -> frozenset[str]:
        """The workspace array or the strides that a place of it names."""
        return frozenset(self.strides_of or ((self.base,) if self.is_pair else ()))

    def after(self, step: str) -> DevicePlace:
        """Its place after a step, given as C text."""
        inner = f"({step})" if " " in step else step
        if self.strides_of is not None:
            between_steps, between_rows = self.strides_of
            steps = f"{inner} * {between_steps}"
            return DevicePlace(self.base, between_rows, "store", steps=steps, uses=self.uses)
        turn = " % 2" if self.is_pair else ""
        return DevicePlace(
            self.base, self.width, "store", rows=f"{inner}{turn} * nB", uses=self.uses
        )


def state_over_time(host: HostFunction, link: StateLink) -> StateOverTime:
    """Where a state of the forward loop lies."""
    name, width = str(link.next.name), c_factor(row_width(link.next))
    if link.next in host.schedule.programs.outputs:
        return StateOverTime(
            f"args->{c_member(name)}", width, strides_of=host.options.strides_of[name]
        )
    pair = host.memory.add(f"{name}_pair", "store", f"2 * nB * {width}")
    return StateOverTime(pair, width, is_pair=True)


def last_state(host: HostFunction, link: StateLink, state: StateOverTime) -> str:
    """Copy the state after the last step, or the initial one of an empty sequence."""
    name, width = str(link.next.name), c_axis(row_width(link.next))
    made = saved_or(host, link.next, state, "nT - 1")
    host.uses |= made.uses
    now = host.options.before[link.previous]
    source = (
        f"guarded ? {now} : nT > 0 ? {made.pointer} : args->{c_member(str(link.previous.name))}"
    )
    stride = width
    if state.strides_of is not None:
        stride = f"!guarded && nT > 0 ? {made.stride} : {width}"
    return (
        f"cg_copy(&run, nB, {width}, cg_rows(args->{c_member(f'{name}_last')}, {width}), "
        f"cg_in({source}, {stride}));"
    )


def saved_or(host: HostFunction, value: Value, state: StateOverTime, step: str) -> DevicePlace:
    """A state that is no output lies where it is saved, if it is."""
    own = state.after(step)
    if not state.is_pair or value not in host.schedule.programs.saved:
        return own
    argument = f"args->{c_member(str(value.name))}"
    saved = StateOverTime(argument, state.width).after(step)
    pointer = f"({argument} ? {saved.pointer} : {own.pointer})"
    return DevicePlace(pointer, state.width, "store", uses=own.uses)


@dataclass(frozen=True)
class KeptOverTime:
    """What the deferred part reads of the loop, side by side in one array over time."""

    order: tuple[Value, ...]
    memory: str
    stride: str

    @staticmethod
    def plan(host: HostFunction) -> KeptOverTime:
        """Give what is kept one array over time."""
        order = host.schedule.programs.kept
        if not order:
            return KeptOverTime((), "", "")
        total = sum((row_width(v) for v in order[1:]), start=row_width(order[0]))
        memory = host.memory.add("adjoints", "store", f"nT * nB * {c_factor(total)}")
        return KeptOverTime(order, memory, c_factor(total))

    def place(self, value: Value, step: str = "") -> DevicePlace:
        """Where a value that is kept lies, at a step or from the first one on."""
        before = self.order[: self.order.index(value)]
        start = sum((row_width(v) for v in before), start=Integer(0))
        column = c_axis(start) if start != 0 else ""
        return DevicePlace.in_memory(self.memory, self.stride, "store", rows=step, column=column)

    def neighbours(self, part: Part) -> Neighbours:
        """The views that lie side by side, in order."""
        buffers = {buffer.value: buffer for buffer in part.storage}
        views = []
        for value in self.order:
            if value in buffers:
                shape = buffers[value].shape
                views.append(View(buffers[value], tuple(Integer(0) for _ in shape), shape))
        return Neighbours(views)
