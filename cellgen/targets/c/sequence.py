"""Spell the functions over time of a cell in C: equations, each once, and tables.

Input: ``TimePlan``. Output: contexts for ``sequence.j2``. The loops over time are the driver's,
``generated/include/cellgen_driver.inc.h``, which reads the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cellgen.errors import DerivationError
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import c_member, c_name
from cellgen.schedule.lower.plan import (
    GroupPlan,
    OutersPlan,
    Series,
    TimePlan,
)
from cellgen.schedule.lower.sums import RowArray, RowSum, StepsTotal, Total
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction
from cellgen.targets.c.equations import EquationsContext, EquationsWriter
from cellgen.targets.c.part_tables import PartTables
from cellgen.targets.c.step import LoopContext, ProductContext, StepWriter, any_given
from cellgen.targets.c.tables import PlanTables, Table, member_names


@dataclass(frozen=True)
class OnceContext:
    """What one thread does once a sequence, on weights alone: arrays, then stages."""

    name: str
    prelude: list[str]
    stages: list[ProductContext | LoopContext]


@dataclass(frozen=True)
class SequenceContext:
    """One function over time: its equations and tables, and the entries of its own table."""

    stem: str
    text: str
    run: str
    parameters: str
    dims: list[str]
    equations: list[EquationsContext]
    once: list[OnceContext]
    tables: list[Table]
    extents: list[str]
    function: list[str]


DIMENSIONS, LENGTHS, MEMORY, USES, SLOTS = 64, 1024, 4096, 512, 128
"""Limits of the driver: `CELLGEN_DIMS_MAX` and its neighbours; slots of one tile."""


def _refuse_beyond_limits(plan: TimePlan, signature: Signature, tables: PlanTables) -> None:
    """Raise DerivationError where the driver's tables have no room for a function."""
    stages = [stage for part in plan.parts for stage in part.stages]
    groups = [stage for stage in stages if isinstance(stage, GroupPlan)]
    products = [stage for stage in stages if isinstance(stage, OutersPlan)]
    counts = (
        ("dimensions", len(signature.dims), DIMENSIONS),
        ("lengths", len(tables.length), LENGTHS),
        ("arrays of the workspace", len(plan.memory), MEMORY),
        ("arrays in one stage", max((len(s.uses) for s in stages), default=0), USES),
        ("weight gradients in one stage", max((len(s.outers) for s in products), default=0), USES),
        ("columns in one tile", max((len(s.group.slots) for s in groups), default=0), SLOTS),
    )
    for what, count, most in counts:
        if count > most:
            raise DerivationError(
                f"{plan.cell}.{plan.function}: {count} {what}, expected at most {most}; split the "
                f"cell into smaller ones",
                code="target.limit",
            )


def sequence_function(plan: TimePlan, signature: Signature, forward: Signature) -> SequenceContext:
    """Spell one function over time; ``forward`` is the forward pass of the same cell.

    Raises:
        DerivationError: more arrays, lengths or columns than the driver's tables have room for.
    """
    stem = f"{plan.cell}_{plan.function}"
    arguments = f"{stem}_args"
    once = [
        _once(plan, function, arguments) for function in (plan.prologue, plan.epilogue) if function
    ]
    equations = []
    for part in plan.parts:
        writer = EquationsWriter(part, signature.dims, arguments)
        equations += [text for text in map(writer.equations, part.stages) if text]
    tables = PlanTables(plan, signature, stem)
    function = _function(plan, signature, forward, tables)
    _refuse_beyond_limits(plan, signature, tables)
    return SequenceContext(
        stem=stem,
        text=plan.text,
        run="cg_run_backward" if plan.backward else "cg_run_forward",
        parameters=", ".join(f"int64_t {c_dim(dim)}" for dim in signature.dims),
        dims=[c_dim(dim) for dim in signature.dims],
        equations=equations,
        once=once,
        tables=tables.tables,
        extents=tables.length.lines,
        function=function,
    )


def _once(plan: TimePlan, function: PlannedFunction, arguments: str) -> OnceContext:
    """Spell what runs once a sequence: as a step, its arrays in the function's memory."""
    numbers = {item.name: number for number, item in enumerate(plan.memory)}
    places = {
        buffer: f"frame->memory[{numbers[of]}]" if in_memory else f"args->{c_member(of)}"
        for buffer, of, in_memory in plan.once_places
        if buffer in function.buffers
    }
    writer = _OnceWriter(function, places)
    wants = plan.late_wants if function is plan.epilogue else ()
    members = f"CELLGEN_NAME({arguments})"
    prelude = [f"const {members} *const args = (const {members} *)frame->args;", "(void)args;"]
    prelude += [
        f"const real {b.name} = (real)args->{c_member(b.name)};"
        for b in function.of_kind(BufferKind.SCALAR)
    ]
    stages = [writer.stage(stage) for stage in function.stages]
    if wants:
        stages = [
            replace(s, wanted=any_given(names)) for s, names in zip(stages, wants, strict=True)
        ]
    return OnceContext(function.name, prelude, stages)


class _OnceWriter(StepWriter):
    """Spells what runs once a sequence."""

    def __init__(self, function: PlannedFunction, places: dict[Buffer, str]) -> None:
        super().__init__(function)
        self.memory.update(places)


def _function(
    plan: TimePlan, signature: Signature, forward: Signature, tables: PlanTables
) -> list[str]:
    """The entries of the function's own table, in the order of ``cellgen_function``."""
    strided = [item for item in plan.series if item.strided]
    listed = _listed(plan, strided, tables)
    parts = tables.table("cg_part", "parts", map(PartTables(tables).part_row, plan.parts))
    zeros, packed_rows = tables.length(plan.zeros), tables.length(plan.product_rows)
    once = [
        f"CELLGEN_NAME({tables.stem}_{f.name})" if f else "0"
        for f in (plan.prologue, plan.epilogue)
    ]
    counts = (plan.series, plan.states, plan.memory, plan.kept, plan.constants)
    sums = (plan.totals, plan.sums, plan.steps_totals)
    sizes = (len(signature.dims), len(tables.length), int(plan.backward), len(plan.parts))
    return [
        f"{', '.join(map(str, sizes))}, /* dims, extents, is_backward, parts */",
        f"CELLGEN_NAME({tables.stem}_extents), {', '.join(once)}, /* extent, prologue, epilogue */",
        f"{parts}, /* part */",
        f"{zeros}, {2 * len(strided)}, {int(plan.reads_before)}, {packed_rows}, "
        f"/* zeros, flag_strides, reads_before, product_rows */",
        f"{len(tables.member)}, /* members */",
        ", ".join(str(len(items)) for items in (*counts, *sums))
        + ", /* series, links, memories, kept, constants, totals, sums, steps_totals */",
        *(f"{name}, /* {member} */" for member, name in listed.items()),
        _made(plan, forward, tables) + ", /* mades, made, forward */",
    ]


def _made(plan: TimePlan, forward: Signature, tables: PlanTables) -> str:
    """The last entries: what a backward pass reads of a forward pass, and what makes it."""
    if not plan.runs_again:
        return "0, 0, 0"
    numbers = {c_name(name): number for number, name in enumerate(member_names(forward))}
    rows_of_both = (tables.made_row(name, numbers) for name in plan.forward_arrays)
    rows = tables.table("cellgen_made", "made", rows_of_both, plan.forward_arrays)
    made_by = f"&CELLGEN_NAME({plan.cell}_{forward.name}_table)"
    return f"{len(plan.forward_arrays)}, {rows}, {made_by}"


def _listed(plan: TimePlan, strided: Sequence[Series], tables: PlanTables) -> dict[str, str]:
    """Names of the tables of what the function has, by member of ``cellgen_function``, in order."""
    pairs = {item.name: 2 * number for number, item in enumerate(strided)}
    series = (tables.series_row(item, pairs.get(item.name, 0)) for item in plan.series)
    constants = map(tables.kept_row, plan.constants)
    steps = map(tables.steps_total_row, plan.steps_totals)
    # Rows are spelled in this order: it numbers the lengths that they name.
    rows = (
        ("member", "cellgen_member", "members", tables.members(), tables.member),
        ("over_time", "cellgen_series_row", "over_time", series, (s.name for s in plan.series)),
        ("link", "cellgen_link", "states", map(tables.state_row, plan.states), tables.state),
        ("memory", "cellgen_memory", "memory", map(tables.memory_row, plan.memory), tables.memory),
        ("keep", "cellgen_kept", "kept", map(tables.kept_row, plan.kept), _kept(plan.kept)),
        ("constant", "cellgen_kept", "constants", constants, _kept(plan.constants)),
        ("total", "cellgen_total", "totals", map(tables.total_row, plan.totals), _of(plan.totals)),
        ("sum", "cellgen_sum", "sums", map(tables.sum_row, plan.sums), _of(plan.sums)),
        ("steps_total", "cellgen_steps_total", "steps_totals", steps, _of(plan.steps_totals)),
    )
    return {
        member: tables.table(kind, name, texts, labels)
        for member, kind, name, texts, labels in rows
    }


def _kept(items: Iterable[RowArray]) -> list[str]:
    return [item.memory for item in items]


def _of(items: Iterable[Total | RowSum | StepsTotal]) -> list[str]:
    return [item.of for item in items]
