"""Explain how a cell runs over time: what runs when, what is kept, and the reason for each choice.

Input: a cell, and for figures a shape and its compiled kernel. Output: ``Explanation``, sections of
rows (what, why), which prints. Everything is read from the values that are compiled: the class of
the recurrence, the schedule of the time loop, the plan that the C chooses; nothing is decided here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np
from sympy import Add, Expr, Mul

from cellgen.errors import DerivationError, UsageError
from cellgen.language.cell import Cell, definition_of
from cellgen.language.ops import Form
from cellgen.language.value import B, Value, format_axis
from cellgen.pipeline import recurrence, sequence_of
from cellgen.program.recurrence import Recurrence
from cellgen.program.ssa import Program
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call.arguments import DTYPES
from cellgen.runtime.host.plans import Constants, SequencePlan, choose
from cellgen.runtime.kernel import Kernel
from cellgen.schedule.groups import Group, GroupedStage, Term
from cellgen.schedule.over_time import (
    NOT_OVER_TIME,
    Part,
    SequenceSchedule,
    waits_for_no_state,
)
from cellgen.schedule.stage import BufferKind, Loop, Product, Routine, View, describe

WIDTH = 98


@dataclass(frozen=True)
class ChoiceRow:
    """One choice and its reason."""

    what: str
    why: str = ""


@dataclass(frozen=True)
class Section:
    """The rows on one subject."""

    title: str
    rows: tuple[ChoiceRow, ...]

    def __str__(self) -> str:
        lines = [self.title]
        for row in self.rows:
            lines += textwrap.wrap(row.what, WIDTH, initial_indent="  ", subsequent_indent="      ")
            lines += textwrap.wrap(
                row.why, WIDTH, initial_indent="    - ", subsequent_indent="      "
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class ExplainedShape:
    """What figures are for: the lengths of a kernel's dimensions, threads, a precision."""

    sizes: Mapping[str, int]
    threads: int
    dtype: str = "float32"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        return f"{sizes}; {_count(self.threads, 'thread')}; {self.dtype}"


@dataclass(frozen=True)
class Explanation:
    """The plan of a cell over time; ``plans`` are what depends on the shape, where one is given."""

    cell: str
    recurrence: Recurrence
    sections: tuple[Section, ...]
    plans: Mapping[str, SequencePlan]

    def __str__(self) -> str:
        head = f"{self.cell} over time"
        return "\n\n".join([head, *(str(section) for section in self.sections)])

    def as_dict(self) -> dict[str, object]:
        """Return what ``json.dumps`` takes."""
        return {
            "cell": self.cell,
            "class": self.recurrence.kind.value,
            "levels": self.recurrence.levels,
            "sections": {
                section.title: [{"what": row.what, "why": row.why} for row in section.rows]
                for section in self.sections
            },
            "plans": {
                name: {key: getattr(plan, key) for key in plan.__dataclass_fields__ if key != "by"}
                for name, plan in self.plans.items()
            },
        }


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
    found, name = recurrence(cell), definition_of(cell).name
    try:
        schedule = sequence_of(cell)
    except DerivationError as error:
        if error.code != NOT_OVER_TIME:
            raise
        if shape is not None:
            raise UsageError(f"{Exception.__str__(error)}; leave out --shape") from None
        rows = (ChoiceRow("functions of one step only", Exception.__str__(error)),)
        return Explanation(name, found, (_class_section(found), Section("plan", rows)), {})
    sections = [_class_section(found), *_parts(schedule, found), _kept(schedule), _work(schedule)]
    plans: dict[str, SequencePlan] = {}
    if shape is not None and kernel is not None:
        functions = [f for f in kernel.interface.functions if f.team]
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
        sections.append(_figures(schedule, functions, kernel, shape))
        parts = {"sequence_forward": schedule.forward, "sequence_backward": schedule.reverse}
        sections += [
            _chosen(name, plan, shape, parts[name], schedule) for name, plan in plans.items()
        ]
    return Explanation(name, found, tuple(sections), plans)


def shape_of(function: Signature, text: str, threads: int, dtype: str) -> ExplainedShape:
    """Read ``T,B,I,H``, the lengths of a function's dimensions in their order.

    Raises:
        UsageError: too few or too many, or something that is no length.
    """
    words = [word.strip() for word in text.split(",")]
    names = ",".join(function.dims)
    if len(words) != len(function.dims) or not all(word.isdigit() for word in words):
        example = ",".join({"T": "100", "B": "32"}.get(dim, "128") for dim in function.dims)
        raise UsageError(f"--shape {text!r}: expected {names}, for example {example}")
    return ExplainedShape(dict(zip(function.dims, map(int, words), strict=True)), threads, dtype)


# --- what does not depend on the shape -----------------------------------------------------------


def _class_section(found: Recurrence) -> Section:
    head, *states = str(found).splitlines()
    return Section("recurrence", (ChoiceRow(head), *(ChoiceRow(line.strip()) for line in states)))


def _parts(schedule: SequenceSchedule, found: Recurrence) -> list[Section]:
    hoisted = {str(statement.target) for statement in found.hoisted}
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
        slots = _count(len(stage.slots), "slot")
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
    return f": {format_axis(_row_values(values))} values a step and row" if values else ""


def _row_values(values: Sequence[Value]) -> Expr:
    return Add(*(Mul(*value.shape[1:]) for value in values))


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


def multiply_adds(program: Program) -> Expr:
    """Multiply-adds of a program's products over one step, with the rows of the batch."""
    total: Expr = Add()
    for statement in program.statements:
        product = statement.traits.product
        if product is None:
            continue
        a, b = statement.expression.operands[-2:]
        by_head, units = product.by_head, b.shape[-1:]
        if product.form is Form.TN:
            total += Mul(*a.shape, *(units if by_head else b.shape[1:]))
        else:  # a product from heads contracts heads and units
            total += Mul(*statement.target.shape, *(a.shape[-1:] if by_head else a.shape[1:]))
    return total


# --- what does -----------------------------------------------------------------------------------


def _figures(
    schedule: SequenceSchedule,
    functions: Sequence[Signature],
    kernel: Kernel,
    shape: ExplainedShape,
) -> Section:
    programs, size = schedule.programs, np.dtype(shape.dtype).itemsize
    steps = shape.sizes["T"]
    rows = []
    for name, parts in (
        ("forward", (programs.forward,)),
        ("backward", (programs.reverse, programs.deferred)),
    ):
        flops = sum(2 * steps * _number(multiply_adds(part), shape) for part in parts)
        rows.append(
            ChoiceRow(f"{name}: {_amount(flops, ('flop', 'kflop', 'Mflop', 'Gflop'), 1000)}")
        )
    saved = _number(_row_values(programs.saved), shape) * size
    total = saved * steps * shape.sizes["B"]
    rows.append(ChoiceRow(f"saved: {_bytes(saved)} a step and row, {_bytes(total)} in all"))
    suffix = DTYPES[np.dtype(shape.dtype)][0]
    library = kernel.library()
    for function in functions:
        names = kernel.interface.symbols(function, suffix)
        dims = [shape.sizes[dim] for dim in function.dims]
        workspace = getattr(library.lib, names.workspace_size)(*dims, library.ffi.NULL)
        arrays = [a for a in (*function.struct_members, *function.results) if not a.is_scalar]
        elements = sum(prod(axis_length(x, dict(shape.sizes)) for x in a.shape) for a in arrays)
        rows.append(
            ChoiceRow(
                f"{function.name}: {_bytes(elements * size)} of arguments and results, each once; "
                f"{_bytes(workspace)} of workspace"
            )
        )
    return Section(f"figures at {shape}", tuple(rows))


def _number(expression: Expr, shape: ExplainedShape) -> int:
    sizes = {symbol: shape.sizes[str(symbol)] for symbol in expression.free_symbols}
    return int(expression.xreplace(sizes))


def _chosen(
    name: str, plan: SequencePlan, shape: ExplainedShape, part: Part, schedule: SequenceSchedule
) -> Section:
    is_free = waits_for_no_state(part, schedule.programs)
    rows = [_threads_row(plan, shape, part, is_free=is_free)]
    if name == "sequence_forward":
        rows.append(_hoist_row(plan, shape, part, is_free=is_free))
    rows.append(_pack_row(plan, shape))
    if name == "sequence_backward":
        rows += [_bands_row(plan, shape), _chunk_row(plan, shape)]
    return Section(f"plan of {name}", tuple(rows))


def _bands_row(plan: SequencePlan, shape: ExplainedShape) -> ChoiceRow:
    rows = _count(shape.sizes["B"], "row")
    if plan.bands == 1:
        why = f"too few rows or steps, or too many weights, to sum parts of {rows} apart"
        return ChoiceRow("bands = 1", why)
    return ChoiceRow(
        f"bands = {plan.bands}: {rows} in {plan.bands} bands, each summed apart",
        "a thread that has a whole band keeps its adjoints in its caches and meets no other; by "
        "shape and precision alone, since the order of additions depends on it",
    )


def _chunk_row(plan: SequencePlan, shape: ExplainedShape) -> ChoiceRow:
    reason = "as many whole steps as keep their adjoints in cache"
    if plan.bands > 1:
        reason = "of a band: " + reason
    elif plan.chunk_rows > max(plan.by.chunk_rows, shape.sizes["B"]):
        if plan.weight_bytes > plan.by.weights_in_cache:
            reason += "; no fewer, since every chunk reads and writes the gradients of all weights"
        else:
            reason += "; no fewer, since threads meet after each, and few weights are little work"
    return ChoiceRow(f"chunk_rows = {plan.chunk_rows}", reason)


def _threads_row(
    plan: SequencePlan, shape: ExplainedShape, part: Part, *, is_free: bool
) -> ChoiceRow:
    rows, weights = shape.sizes["B"], _bytes(plan.weight_bytes)
    if plan.threads == 1:
        return ChoiceRow("threads = 1", "nothing is shared")
    what = f"threads = {plan.threads}, by_units = {plan.by_units}: "
    if plan.by_units and is_free:
        return ChoiceRow(
            what + "threads share the units of all steps and never meet",
            "no product waits for a state",
        )
    if plan.by_units:
        if rows < plan.by.rows_per_thread * plan.threads:
            why = (
                f"{_count(rows, 'row')} for {plan.threads} threads is fewer than "
                f"{plan.by.rows_per_thread} for each"
            )
        elif plan.weight_bytes > plan.by.weights_in_cache:
            why = (
                f"{weights} of weights do not fit a core's cache "
                f"({_bytes(plan.by.weights_in_cache)}); so each thread reads a share of them alone"
            )
        else:
            why = f"one step of {_count(rows, 'row')} is too little to pack {weights} for"
        return ChoiceRow(what + "threads share the units of a step and meet after each stage", why)
    why = f"{_count(rows, 'row')} are enough, and {weights} of weights fit a core's cache"
    if plan.weight_bytes > plan.by.weights_in_cache:
        why = f"{_count(rows, 'row')} are enough to hide that {weights} of weights come from afar"
    if not part.can_split_units:
        why = "a sum over units, or a head, needs whole rows"
    return ChoiceRow(what + "threads share the rows of all steps and never meet", why)


def _hoist_row(
    plan: SequencePlan, shape: ExplainedShape, forward: Part, *, is_free: bool
) -> ChoiceRow:
    rows = shape.sizes["B"]
    if plan.hoist:
        steps = plan.window_rows // max(rows, 1)
        return ChoiceRow(
            f"hoist = True: products of inputs ahead, for windows of {_count(steps, 'step')}",
            "no product waits for a state: the loop over time is pointwise"
            if is_free
            else "inputs, states and a panel of the weights of both exceed a core's cache"
            if rows > plan.by.hoist_rows
            else f"a tile of {_count(rows, 'row')} is bound by reading weights, one of "
            f"{plan.window_rows} is not",
        )
    why = f"{_count(rows, 'row')} fill a tile by themselves"
    if not is_free:
        why += f" (more than {plan.by.hoist_rows})"
    if shape.sizes["T"] <= 1:
        why = "there is one step only"
    elif rows <= plan.by.hoist_rows:
        why = "threads share rows, and each would form all of it"
    if not any(isinstance(stage, Group) for stage in forward.stages):
        why = "there is no product"
    return ChoiceRow("hoist = False: products of inputs inside the time loop", why)


def _pack_row(plan: SequencePlan, shape: ExplainedShape) -> ChoiceRow:
    weights = _bytes(plan.weight_bytes)
    if plan.unpacked:
        return ChoiceRow(
            "unpacked = True", f"one step: {weights} are read where they lie, not packed"
        )
    steps = _count(shape.sizes["T"], "step")
    return ChoiceRow("unpacked = False", f"{weights} are packed once a call, for {steps}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    return _amount(number, ("bytes", "KiB", "MiB", "GiB"), 1024)


def _amount(number: int, units: Sequence[str], base: int) -> str:
    value, place = float(number), 0
    while value >= base and place < len(units) - 1:
        value, place = value / base, place + 1
    return f"{value:.0f} {units[0]}" if place == 0 else f"{value:.3g} {units[place]}"
