"""Spell the functions over time for CUDA: hoisted and deferred products, a loop over steps.

Input: ``SequenceSchedule``, the same as C's. Output: ``HostFunctionContext`` for ``cell.cu.j2``.
What only a GPU needs is decided here: the sums of a group lie side by side, over all steps where an
input reaches them, so that one product serves every step at once; adjoints that the deferred part
reads lie side by side, so that the products with them are one; the deferred part runs once, over
the rows of all steps.
Not supported: what ``kernels`` and ``products`` do not spell.
"""

from __future__ import annotations

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import c_member
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.targets.c_expressions import c_factor
from cellgen.targets.cuda.begun import begin_sums
from cellgen.targets.cuda.deferred import DeferredWriter
from cellgen.targets.cuda.host import HostFunction, row_width
from cellgen.targets.cuda.launches import indented, loop_over_steps
from cellgen.targets.cuda.plan import DeviceTimePlan
from cellgen.targets.cuda.products import (
    Neighbours,
)
from cellgen.targets.cuda.states import KeptOverTime, StateOverTime, last_state, state_over_time
from cellgen.targets.cuda.step import (
    HostFunctionContext,
)
from cellgen.targets.cuda.step_places import StepPlaces
from cellgen.targets.cuda.steps import StepsWriter


def sequence_functions(
    schedule: SequenceSchedule, signatures: tuple[Signature, ...]
) -> list[HostFunctionContext]:
    """Return the contexts of the two functions over time.

    Raises:
        DerivationError: with code ``cuda.loop`` or ``cuda.stage``, for what is not rendered.
    """
    forward, backward = signatures
    return [_forward(schedule, forward), _backward(schedule, backward)]


def device_plans(
    schedule: SequenceSchedule, signatures: tuple[Signature, ...]
) -> tuple[DeviceTimePlan, ...]:
    """The plans of the two functions over time.

    Raises:
        DerivationError: with code ``cuda.loop`` or ``cuda.stage``, for what is not rendered.
    """
    contexts = sequence_functions(schedule, signatures)
    return tuple(context.plan for context in contexts if context.plan is not None)


def _forward(schedule: SequenceSchedule, signature: Signature) -> HostFunctionContext:
    host = HostFunction.begin(schedule, signature)
    states = {link.next: state_over_time(host, link) for link in schedule.programs.links}
    first = host.once(schedule.prologue)
    part = StepsWriter(
        host,
        "forward",
        schedule.forward,
        StepPlaces(host, "forward", schedule.forward, states, None),
        Neighbours(),
    )
    ahead, body = part.lines()
    choice = part.choice()
    selected = [
        host.options.masked_select(link, part.made(link)) for link in schedule.programs.links
    ]
    body += ["if (guarded) {", *indented(selected), "}"] if selected else []
    loop = loop_over_steps(choice, "int64_t step = 0; step < nT; ++step", body)
    last = [last_state(host, link, states[link.next]) for link in schedule.programs.links]
    return host.context(first, [*ahead, *loop, *last, *host.options.end()], choice)


def _backward(schedule: SequenceSchedule, signature: Signature) -> HostFunctionContext:
    host = HostFunction.begin(schedule, signature)
    programs = schedule.programs
    states = {
        link.next: StateOverTime(
            f"args->{c_member(str(link.next.name))}",
            c_factor(row_width(link.next)),
            strides_of=host.options.strides_of.get(str(link.next.name)),
        )
        for link in programs.links
    }
    first = host.once(schedule.prologue)
    kept = KeptOverTime.plan(host)
    part, begun = begin_sums(schedule.reverse)
    places = StepPlaces(host, "reverse", part, states, kept)
    reverse = StepsWriter(host, "reverse", part, places, kept.neighbours(part), begun)
    ahead, body = reverse.lines()
    begin = [reverse.carry_line(link, "begin") for link in programs.links]
    choice = reverse.choice()
    selected = [reverse.masked_select(link) for link in programs.links]
    if kept.order:
        at = f"{kept.memory} + step * nB * {kept.stride}"
        selected.append(host.options.leave_out(at, kept.stride))
    body += ["if (guarded) {", *indented(selected), "}"] if selected else []
    cuts = [reverse.cut(link) for link in programs.links]
    body += ["if (cellgen_cuts(args->window, step)) {", *indented(cuts), "}"] if cuts else []
    loop = loop_over_steps(choice, "int64_t step = nT - 1; step >= 0; --step", body)
    end = [reverse.carry_line(link, "end") for link in programs.links]
    deferred = DeferredWriter(host, schedule.deferred, kept).lines()
    epilogue = host.once(schedule.epilogue)
    lines = [*begin, *ahead, *loop, *end, *deferred, *epilogue, *host.options.end()]
    return host.context(first, lines, choice)
