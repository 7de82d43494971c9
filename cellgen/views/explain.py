"""Explain how a cell runs over time: what runs when, what is kept, and the reason for each choice.

Input: a cell, and for figures a shape and its compiled kernel. Output: ``Explanation``, sections of
rows (what, why), which prints. Everything is read from the values that are compiled: the class of
the recurrence, the schedule of the time loop, the plan that the C chooses; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from cellgen import accept
from cellgen.errors import DerivationError, UsageError
from cellgen.language.cell import Cell, definition_of
from cellgen.language.value import B, Value, format_axis
from cellgen.pipeline import recurrence, sequence_of
from cellgen.program.chunks import Refusal, equation_of, form_over_time, kind_of
from cellgen.program.recurrence import Recurrence
from cellgen.program.ssa import Program
from cellgen.program.transforms.online import approximation_of
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.build.half import WAYS, half_products
from cellgen.runtime.call.arguments import DTYPES
from cellgen.runtime.host.plans import Constants, SequencePlan, choose
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.paths import include_folder
from cellgen.schedule.groups import Group, GroupedStage, Term
from cellgen.schedule.over_time import (
    NOT_OVER_TIME,
    SequenceSchedule,
)
from cellgen.schedule.schedule import BufferKind, Loop, Product, Routine, View, describe
from cellgen.views.explanation import ChoiceRow, ExplainedShape, Explanation, Section, count_of
from cellgen.views.figures import figures_of, multiply_adds, number_at, plan_section, row_values
from cellgen.views.memory import memory_over_time
from cellgen.views.on_device import on_device_section
from cellgen.views.segments import segments_section


def explain(
    cell: type[Cell],
    shape: ExplainedShape | None = None,
    kernel: Kernel | None = None,
    constants: Constants | None = None,
) -> Explanation:
    """Explain a cell; with a shape and its kernel, also the choices and figures for that shape.

    Raises:
        DerivationError: a fault of the compiler.
        UsageError: a shape for a cell that has the functions of a step only.
    """
    recurrence_class, name = recurrence(cell), definition_of(cell).name
    try:
        schedule = sequence_of(cell)
    except DerivationError as error:
        if error.code != NOT_OVER_TIME:
            raise
        if shape is not None:
            raise UsageError(f"{Exception.__str__(error)}; leave out --shape") from None
        rows = (ChoiceRow("functions of one step only", Exception.__str__(error)),)
        head = (_class_section(cell, recurrence_class), *_layers(cell), Section("plan", rows))
        return Explanation(name, recurrence_class, head, {})
    sizes = {} if shape is None else shape.sizes
    sections = [
        _class_section(cell, recurrence_class),
        *_layers(cell, sizes),
        *_parts(schedule, recurrence_class),
        _kept(schedule),
        _work(schedule),
    ]
    plans: dict[str, SequencePlan] = {}
    functions = [] if kernel is None else [f for f in kernel.interface.functions if f.team]
    sized = shape if functions else None
    sections.append(segments_section(definition_of(cell), recurrence_class, functions, sized))
    if shape is not None and kernel is not None:
        suffix = DTYPES[np.dtype(shape.dtype)][0]
        library = kernel.library()
        for function in functions:
            plans[function.name] = choose(
                library,
                kernel.interface,
                function,
                suffix,
                shape.sizes,
                shape.threads,
                constants,
            )
        sections.append(figures_of(schedule, functions, kernel, shape))
        again = number_at(multiply_adds(schedule.programs.forward), shape) * shape.sizes["T"]
        sections.append(memory_over_time(functions, shape, again))
        parts = {"sequence_forward": schedule.forward, "sequence_backward": schedule.reverse}
        sections += [
            plan_section(name, plan, shape, parts[name], schedule) for name, plan in plans.items()
        ]
        if shape.dtype == "float32":
            sections.append(_half_products())
    return Explanation(name, recurrence_class, tuple(sections), plans)


def _half_products() -> Section:
    half = half_products(compiler(), include_folder())
    row = ChoiceRow(f"with products='bf16': {WAYS[half.way]}", half.why)
    return Section("products in bfloat16 on this machine", (row,))


def shape_of(function: Signature, text: str, threads: int, dtype: str) -> ExplainedShape:
    """Read ``T,B,I,H``, the lengths of a function's dimensions in their order.

    Raises:
        UsageError: too few or too many, or something that is no length.
    """
    words = [accept.digits(word) for word in text.split(",")]
    lengths = [length for length in words if length is not None]
    names = ",".join(function.dims)
    if not len(words) == len(lengths) == len(function.dims):
        example = ",".join({"T": "100", "B": "32"}.get(dim, "128") for dim in function.dims)
        raise UsageError(f"--shape {accept.quoted(text)}: expected {names}, for example {example}")
    return ExplainedShape(dict(zip(function.dims, lengths, strict=True)), threads, dtype)


def _class_section(cell: type[Cell], recurrence_class: Recurrence) -> Section:
    head, *states = str(recurrence_class).splitlines()
    rows = [ChoiceRow(head), *(ChoiceRow(line.strip()) for line in states)]
    if approximation := approximation_of(cell):
        rows.insert(0, ChoiceRow(f"gradients that states hold are approximate: {approximation}"))
    return Section("recurrence", tuple(rows))


def _layers(cell: type[Cell], sizes: Mapping[str, int] | None = None) -> list[Section]:
    """The layers of the form over time, and what a device has; or the statement that forbids it."""
    form = form_over_time(definition_of(cell))
    rows = []
    for layer in form.layers:
        states, why = ", ".join(map(str, layer.states)), equation_of(layer, form)
        rows.append(ChoiceRow(f"{states}: {kind_of(layer)}", why))
    if any(isinstance(layer, Refusal) for layer in form.layers):
        return [Section("form over time: none, step by step", tuple(rows))]
    layers = Section("form over time: layers, each for all steps at once", tuple(rows))
    return [layers, on_device_section(cell, sizes or {})]


def _parts(schedule: SequenceSchedule, recurrence_class: Recurrence) -> list[Section]:
    hoisted = {str(statement.target) for statement in recurrence_class.hoisted}
    once = [
        ChoiceRow(f"`{describe(statement)}`", "weights alone: the same at every step")
        for function in (schedule.prologue, schedule.epilogue)
        if function is not None
        for statement in function.program.statements
    ]
    loop = "every step, forward"
    back = "every step, in reverse: what a gradient of the previous state waits for"
    late = "once, over the rows of many steps: what no state waits for"
    sections = [
        Section(loop, tuple(_stage(stage, hoisted) for stage in schedule.forward.stages)),
        Section(back, tuple(_stage(stage, set()) for stage in schedule.reverse.stages)),
        Section(late, tuple(_deferred(schedule))),
    ]
    return [*([Section("once a sequence", tuple(once))] if once else []), *sections]


def _stage(stage: GroupedStage, hoisted: set[str]) -> ChoiceRow:
    if isinstance(stage, Group):
        slots = count_of(len(stage.slots), "slot")
        targets = _targets(stage.loops)
        what = f"GEMM group, {slots} of {format_axis(stage.units)} units: " + "; ".join(
            _term(term) for term in stage.terms
        )
        if targets:
            what += f"; then {targets}"
        return ChoiceRow(what, _why_group(stage, hoisted))
    if isinstance(stage, Loop):
        return ChoiceRow(
            f"loop: {_targets([stage])}", "pointwise work and sums over what is in memory"
        )
    if isinstance(stage, Routine):
        return ChoiceRow(
            f"routine `{stage.statement}`", "for each row and head, beside units of heads"
        )
    return ChoiceRow(f"product `{stage.statement}`", "reads what no group holds")


def _term(term: Term) -> str:
    weights = ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in term.weights)
    return f"{term.operand} @ [{weights}]"


def _why_group(stage: Group, hoisted: set[str]) -> str:
    reasons = []
    if len(stage.slots) > 1 or len(stage.terms) > 1:
        reasons.append("products of one level in one pass over packed weights")
    if stage.loops:
        reasons.append("the equations of a unit run on its tile while that is in the first cache")
    inputs = [str(t.operand) for t in stage.terms if _is_input(t.operand)]
    if hoisted and inputs and len(stage.terms) > 1:
        reasons.append(
            f"the product of {', '.join(inputs)} waits for no state and may be formed ahead"
        )
    return "; ".join(reasons)


def _is_input(view: View) -> bool:
    return view.buffer.kind is BufferKind.ARGUMENT and view.buffer.value.role.value == "input"


def _targets(loops: Iterable[Loop]) -> str:
    names = [str(line.origin.target) for loop in loops for line in loop.lines]
    return ", ".join(dict.fromkeys(names))


def _deferred(schedule: SequenceSchedule) -> list[ChoiceRow]:
    """Rows of the deferred part; neighbours of one kind share a row."""
    rows, contexts = [], ", ".join(map(str, schedule.programs.contexts))
    for kind, run in groupby(schedule.deferred.stages, key=_kind):
        stages = list(run)
        if kind == "product":
            listed = ", ".join(str(s.target) for s in stages if isinstance(s, Product))
            rows.append(
                ChoiceRow(f"weight gradients {listed}", "the contracted axis is T * B rows")
            )
        else:
            rows += [_stage(stage, set()) for stage in stages]
    if contexts:
        rows.append(ChoiceRow(f"sums over steps {contexts}", "of what is the same at every step"))
    return rows


def _kind(stage: GroupedStage) -> str:
    return "product" if isinstance(stage, Product) else "other"


def _kept(schedule: SequenceSchedule) -> Section:
    programs = schedule.programs
    saved, outputs = programs.saved, programs.outputs
    own = set(programs.forward.values)
    again = [
        str(statement.target)
        for program in (programs.reverse, programs.deferred)
        for statement in program.statements
        if statement.target in own and statement.is_pointwise
    ]
    rows = [
        ChoiceRow(
            f"saved: {_listed(saved)}{_values(saved)}",
            "a minimum cut, by memory and operations, between what cannot be formed again "
            "(products, sums, states) and what the backward pass reads",
        ),
        ChoiceRow(f"read again: {_listed(outputs)}, outputs that the caller keeps"),
        ChoiceRow(
            f"formed again: {', '.join(dict.fromkeys(again)) or 'nothing'}",
            "pointwise, from what is kept: cheaper than memory" if again else "",
        ),
        ChoiceRow(
            f"kept by the reverse loop: {_listed(programs.kept)}{_values(programs.kept)}",
            "what the deferred part reads: for a chunk of steps, which it follows at once",
        ),
    ]
    return Section("kept for the backward pass", tuple(rows))


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(str(value) for value in values) or "nothing"


def _values(values: Sequence[Value]) -> str:
    return f": {format_axis(row_values(values))} values a step and row" if values else ""


def _work(schedule: SequenceSchedule) -> Section:
    programs = schedule.programs
    rows = tuple(
        ChoiceRow(f"{name}: {_multiplies(program)} multiply-adds a step and row")
        for name, program in (
            ("forward", programs.forward),
            ("in reverse", programs.reverse),
            ("deferred", programs.deferred),
        )
    )
    return Section("work in products", rows)


def _multiplies(program: Program) -> str:
    total = multiply_adds(program) / B
    return str(total.expand()) if total != 0 else "0"
