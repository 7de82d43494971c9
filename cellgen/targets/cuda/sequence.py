"""Spell the functions over time: what runs once, a loop over steps, what runs over all of them.

Input: ``DeviceTimePlan``. Output: ``HostFunctionContext`` for ``cell.cu.j2``.
"""

from __future__ import annotations

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import c_member, final_of, gradient_of
from cellgen.schedule.device.places import Moment, row_width
from cellgen.schedule.device.plan import DeviceState, DeviceTimePlan
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.held import spell_held
from cellgen.targets.cuda.launches import indented, loop_over_steps, ns_apart, staying
from cellgen.targets.cuda.options import OptionLines
from cellgen.targets.cuda.persist import spell_persistent
from cellgen.targets.cuda.places import pointer_of, rows_at, stride_of
from cellgen.targets.cuda.products import spell_ahead, spell_packed
from cellgen.targets.cuda.step import (
    HostFunctionContext,
    memory_of,
    required_arrays,
    spell_stages,
)
from cellgen.targets.cuda.tiers import spell_tier


def sequence_function(
    plan: DeviceTimePlan, signature: Signature, words: DeviceDialect
) -> HostFunctionContext:
    """Spell one function over time."""
    options, memory = OptionLines(plan.options), memory_of(plan.memory, words)
    parts = [
        spell_stages(stages, words, options.valid_rows)
        for stages in (plan.prologue, plan.steps, plan.deferred, plan.epilogue)
    ]
    prologue, steps, deferred, epilogue = (part.launches for part in parts)
    tier = spell_tier(plan, signature, memory, words)
    held = spell_held(plan, signature, memory, words)
    persistent = spell_persistent(plan, signature, memory, words, ns_apart(tier))
    body = [*steps, *_guarded(plan, options)]
    strides = options.strides()
    return HostFunctionContext(
        name=plan.function,
        text=signature.text,
        dims=[c_dim(dim) for dim in signature.dims],
        required=required_arrays(signature),
        kernels=[kernel for part in parts for kernel in part.kernels],
        memory=memory,
        lines=[
            *prologue,
            *map(spell_packed, plan.packed),
            *(_taken_in(state) for state in plan.states if plan.is_backward),
            *(line for stage in plan.ahead for line in spell_ahead(stage)),
            *staying(
                persistent,
                loop_over_steps(tier or held, plan.is_backward, body, words),
                words,
            ),
            *(_handed_out(state, options) for state in plan.states),
            *deferred,
            *epilogue,
            *options.end(),
        ],
        tiers=[tier] if tier else [],
        held=held,
        persistent=persistent,
        over_time=True,
        arrays=len(plan.options.arrays),
        moves=options.moves(),
        placed=options.begin(),
        strides=[(name, strides[name]) for name in plan.strides],
        spared=[]
        if plan.is_backward
        else [array.name for array in plan.options.arrays if array.is_result],
    )


def _guarded(plan: DeviceTimePlan, options: OptionLines) -> list[str]:
    """What follows a step: where it is masked, and where a window of steps begins."""
    if not plan.is_backward:
        selected = [
            options.masked_select(state.link, pointer_of(state.left))
            for state in plan.states
            if state.left is not None
        ]
        return _where("guarded", selected)
    selected = [_selected(state, options) for state in plan.states]
    for kept in (plan.kept, plan.terms):
        if kept.order:
            by = c_factor(kept.stride)
            selected.append(options.leave_out(f"{kept.memory} + step * nB * {by}", by))
    cuts = [_cut(state) for state in plan.states]
    return [
        *_where("guarded", selected),
        *_where("cellgen_cuts(args->options.window, step)", cuts),
    ]


def _where(condition: str, lines: list[str]) -> list[str]:
    return [f"if ({condition}) {{", *indented(lines), "}"] if lines else []


def _carried(state: DeviceState, at: Moment | None) -> str:
    """The gradient that reaches a step from the one after it, or is handed to the one before."""
    return rows_at(state.carried(at))


def _selected(state: DeviceState, options: OptionLines) -> str:
    """Put the gradient for the step before right where this one is masked."""
    passed, carry = _carried(state, Moment.NOW), _carried(state, Moment.AFTER)
    return options.masked_select_gradient(state.link, passed, carry)


def _cut(state: DeviceState) -> str:
    """Let no gradient go on to the step before."""
    width = row_width(state.link.passed)
    rows = f"cg_rows({_carried(state, Moment.NOW)}, {c_factor(width)})"
    return f"cg_clear(&run, nB, {c_axis(width)}, {rows});"


def _taken_in(state: DeviceState) -> str:
    """Take the gradient of the last state in."""
    width = c_axis(row_width(state.link.passed))
    target = f"cg_rows({_carried(state, Moment.END)}, {width})"
    source = f"cg_in(args->{c_member(gradient_of(final_of(str(state.link.next.name))))}, {width})"
    return f"cg_copy(&run, nB, {width}, {target}, {source});"


def _handed_out(state: DeviceState, options: OptionLines) -> str:
    """Copy what the loop leaves: the last state, or the gradient of the initial one.

    Of an empty sequence the last state is the initial one.
    """
    link = state.link
    if state.last is None:
        width = c_axis(row_width(link.passed))
        target = f"cg_rows(args->{c_member(str(link.passed.name))}, {width})"
        return f"cg_copy(&run, nB, {width}, {target}, cg_in({_carried(state, None)}, {width}));"
    width, initial = c_axis(row_width(link.next)), c_member(str(link.previous.name))
    copy = options.options.copy_of(link.previous)
    source = f"guarded ? {copy} : nT > 0 ? {pointer_of(state.last)} : args->{initial}"
    by = width
    if state.over_time:
        by = f"!guarded && nT > 0 ? {stride_of(state.last)} : {width}"
    target = f"cg_rows(args->{c_member(final_of(str(link.next.name)))}, {width})"
    return f"cg_copy(&run, nB, {width}, {target}, cg_in({source}, {by}));"
