"""Say where states lie over time, and what the deferred part reads of the loop.

Passes: a plan without states -> the same with them, forward or backward.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer

from cellgen.language.value import B, T, Value
from cellgen.program.over_time import StateLink
from cellgen.schedule.device.form import workspace_of
from cellgen.schedule.device.loops import operands_of
from cellgen.schedule.device.places import (
    DeviceWorkspace,
    Element,
    Extent,
    IfGiven,
    Moment,
    RowsOfArray,
    row_width,
)
from cellgen.schedule.device.plan import DeviceState, DeviceTimePlan, KeptOverTime
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.plan import State


def with_states(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Say where a forward step leaves each state; one that is no output has two places by turns."""
    if plan.is_backward:
        return plan
    memory, states = workspace_of(function, plan), []
    for link, state in zip(function.programs.links, plan.time.states, strict=True):
        rows = rows_over_time(plan, link)
        if not state.output:
            rows = _pair(memory, link.next, Element.STORE)
        now, last = (_saved_or(state, replace(rows, at=at)) for at in (Moment.NOW, Moment.LAST))
        states.append(DeviceState(link, now, last))
    return replace(plan, memory=tuple(memory.arrays), states=tuple(states))


def with_adjoints(function: FunctionOverTime, plan: DeviceTimePlan) -> DeviceTimePlan:
    """Say where gradients between steps lie, and side by side what the deferred part reads.

    What no product reads is only added up over rows: it is kept as sums are, since a term may be
    beyond the largest number of an array's type.
    """
    if not plan.is_backward:
        return plan
    memory = workspace_of(function, plan)
    work = (stage for part in plan.time.parts for stage in part.work)
    operands = {buffer.value for buffer in operands_of(tuple(work))}
    read = [value in operands for value in function.programs.kept]
    both = tuple(zip(function.programs.kept, read, strict=True))
    kept = _kept(memory, "adjoints", Element.STORE, tuple(v for v, is_read in both if is_read))
    terms = _kept(memory, "terms", Element.REAL, tuple(v for v, is_read in both if not is_read))
    states = tuple(
        DeviceState(link, carries=_pair(memory, link.passed, Element.REAL))
        for link in function.programs.links
    )
    return replace(plan, memory=tuple(memory.arrays), states=states, kept=kept, terms=terms)


def _kept(
    memory: DeviceWorkspace, name: str, element: Element, order: tuple[Value, ...]
) -> KeptOverTime:
    """Reserve an array over time for values side by side, if there are such."""
    if not order:
        return KeptOverTime(element)
    total = sum((row_width(v) for v in order[1:]), start=row_width(order[0]))
    return KeptOverTime(element, order, memory.add(name, element, Extent((T, B, total))), total)


def rows_over_time(plan: DeviceTimePlan, link: StateLink) -> RowsOfArray:
    """Rows of a state in the caller's array of it over time."""
    name = str(link.next.name)
    strides = plan.options.strides_of(name)
    return RowsOfArray(name, row_width(link.next), of_caller=True, strides=strides)


def _pair(memory: DeviceWorkspace, value: Value, element: Element) -> RowsOfArray:
    """Rows of a value in the workspace, of two steps by turns."""
    width = row_width(value)
    pair = memory.add(f"{value.name}_pair", element, Extent((Integer(2), B, width)))
    return RowsOfArray(pair, width, by_turns=True)


def _saved_or(state: State, rows: RowsOfArray) -> RowsOfArray | IfGiven:
    """A state that is no output lies where it is saved, if it is."""
    if not rows.by_turns or not state.saved:
        return rows
    return IfGiven(RowsOfArray(state.name, rows.stride, of_caller=True, at=rows.at), rows)
