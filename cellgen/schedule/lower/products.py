"""Lower a group of products: runs over packed panels, what is formed ahead, what is fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sympy import Expr, Integer

from cellgen.language.value import Value
from cellgen.schedule.groups import Group, Term, Weight
from cellgen.schedule.lower.memory import length
from cellgen.schedule.lower.plan import (
    GroupPlan,
    PanelProduct,
    Prefetch,
    Rows,
    Weights,
    When,
    WorkspaceArray,
)
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.lower.touched import (
    loaded,
    read_by,
    stored,
    up_to_group,
    views_written,
    writes,
)
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Buffer, BufferKind, View, flat

if TYPE_CHECKING:
    from cellgen.schedule.lower.part import PartLowering


def lower_group(part: PartLowering, name: str, group: Group) -> GroupPlan:
    """Lower a group of one part."""
    runs = _runs(part, name, group)
    slots = [slot for slot in group.slots if slot.needs_memory]
    in_tile = {slot.view.buffer for slot in group.slots if not slot.needs_memory}
    reads = [term.operand.buffer for term in group.terms]
    reads += [b for loop in group.loops for b in loaded(loop) if b not in in_tile]
    written = [b for loop in group.loops for b in stored(loop)]
    written += [slot.view.buffer for slot in slots]
    first = {s for r in runs[:1] for s in range(r.first_slot, r.first_slot + r.slots)}
    free = len(runs) == 1 and bool(runs[0].ahead)
    return GroupPlan(
        name=name,
        group=group,
        uses=part.uses(reads, written),
        keeps=part.keeps(written),
        units=units_of_head(group),
        heads=group.heads,
        granularity=part.granularity(widest(group)),
        widest=widest(group),
        depth=_depth(runs),
        whole=_whole(part, name, group),
        free=free,
        fetching_depth=_fetching_depth(runs),
        runs=tuple(runs),
        prefetch=() if free else tuple(_prefetch(part, group)),
        in_place=tuple(
            (view.buffer, column(view))
            for view in views_written(group)
            if part.places.is_in_place(view.buffer)
        ),
        zeroed=tuple(s for s in range(len(group.slots)) if s not in first),
        leaves_out=part.name == "deferred" and any(map(leaves_out_rows, group.loops)),
    )


def widest(group: Group) -> int:
    """Slots of the widest panel."""
    return max(len(run) for term in group.terms for run in term.runs)


def units_of_head(group: Group) -> Expr:
    """The units of one head; all of them where there are none."""
    return group.units if group.heads is None else group.units / group.heads


def offset(view: View) -> Expr | None:
    """How far a view's first element is from its buffer's."""
    if len(view.start) == 2:
        found = view.start[0] * view.row_stride + view.start[1]
    else:
        found = view.start[0] if view.start else Integer(0)
    return None if found == 0 else found


def column(view: View) -> Expr | None:
    """How far a view's first column is from its buffer's."""
    return view.start[1] if len(view.start) == 2 and view.start[1] != 0 else None


def _runs(part: PartLowering, name: str, group: Group) -> list[PanelProduct]:
    begun: set[int] = set()
    runs: list[PanelProduct] = []
    for index, term in enumerate(group.terms):
        for run_index, weights in enumerate(term.runs):
            suffix = f"_{run_index + 1}" if run_index else ""
            panel = f"{name}_panel_{index + 1}{suffix}"
            ahead = ""
            if not runs and _can_form_ahead(part, group):
                ahead = _formed_ahead(part, name, group, len(weights))
            runs.append(_run(part, group, term, weights, panel, ahead, begun))
    return runs


def _run(
    part: PartLowering,
    group: Group,
    term: Term,
    weights: Sequence[Weight],
    panel: str,
    ahead: str,
    begun: set[int],
) -> PanelProduct:
    found = []
    for weight in weights:
        of, in_memory = part.owner.place_of(weight.view.buffer.value)
        stride = weight.head[1] if weight.head else weight.view.row_stride
        step = None if group.heads is None else _head_step(group, weight)
        begins = weight.slot not in begun
        found.append(
            Weights(
                of,
                in_memory,
                offset(weight.view),
                stride,
                step,
                weight.transposed,
                weight.slot,
                begins,
            )
        )
        begun.add(weight.slot)
    memory = WorkspaceArray(
        panel,
        Rows.PANELS,
        term.inner,
        "packed weights",
        packed=True,
        slots=len(weights),
        units=units_of_head(group),
        widest=widest(group),
        heads=group.heads,
    )
    return PanelProduct(
        term.operand.buffer,
        offset(term.operand),
        term.inner,
        term.by_head,
        len(weights),
        weights[0].slot,
        part.owner.workspace.put(memory),
        ahead,
        tuple(found),
    )


def _head_step(group: Group, weight: Weight) -> Expr:
    """Elements from the weights of one head to the next.

    Whole matrices, or columns (transposed: rows) of all heads side by side.
    """
    factors = weight.head or (units_of_head(group),)
    if weight.transposed and not weight.head:
        factors = (*factors, weight.view.row_stride)
    return length(factors)


def _can_form_ahead(part: PartLowering, group: Group) -> bool:
    """Whether the first operand is an input, so that no state has to be waited for."""
    operand = group.terms[0].operand.buffer
    is_input = part.part.storage[operand] is Storage.TIME and operand.kind is BufferKind.ARGUMENT
    waits = any(term.operand.buffer != operand for term in group.terms)
    return part.name == "forward" and is_input and (waits or len(group.terms) == 1)


def _formed_ahead(part: PartLowering, name: str, group: Group, slots: int) -> str:
    """Memory for the product of an input over a window of steps, in the layout of tiles."""
    memory = WorkspaceArray(
        f"{name}_ahead",
        Rows.AHEAD,
        None,
        "products of a window of steps",
        slots=slots,
        units=units_of_head(group),
        widest=widest(group),
        heads=group.heads,
    )
    return part.owner.workspace.put(memory)


def _whole(part: PartLowering, name: str, group: Group) -> str:
    """Memory for the products of one step, all slots of a row side by side."""
    rows = Rows.CHUNK_SLOTS if part.name == "deferred" else Rows.BATCH_SLOTS
    note = "products of one step"
    return part.owner.workspace.put(
        WorkspaceArray(
            f"{name}_whole",
            rows,
            None,
            note,
            When.UNPACKED,
            slots=len(group.slots),
            units=group.units,
        )
    )


def _depth(runs: Sequence[PanelProduct]) -> Expr:
    """How many rows of one slot the panels of a block of units hold."""
    counts: Counter[Expr] = Counter()
    for run in runs:
        counts[run.inner] += run.slots
    return sum((count * inner for inner, count in counts.items()), start=Integer(0))


def _fetching_depth(runs: Sequence[PanelProduct]) -> Expr:
    """How many k a tile goes through in products of more than one vector, which fetch.

    An only slot is one vector where the widest operand has three slots or more.
    """
    most = max(run.slots for run in runs)
    wide = [run.inner for run in runs if run.slots > 1 or most < 3]
    return sum(wide, start=Integer(0))


# --- what is fetched while the products of a step run ---------------------------------------------


def _prefetch(part: PartLowering, group: Group) -> Iterable[Prefetch]:
    """Name the rows that this group's tiles fetch; those that must come first."""
    if part.name == "deferred":
        return
    rows = _written_next(part, group) if part.name == "forward" else _read_next(part, group)
    for value, later in dict.fromkeys(rows):
        strided = part.owner.arrays.has_strides(value)
        yield Prefetch(str(value.name), strided, flat(value.shape)[-1], later)


def _written_next(part: PartLowering, group: Group) -> list[tuple[Value, int]]:
    """What this group and the loops behind it write in the next forward step.

    Beside it the inputs that are read there first.
    """
    stages, at = part.part.stages, part.part.stages.index(group)
    own = [group, *up_to_group(stages[at + 1 :])]
    before = stages[:at]
    is_first = not any(isinstance(stage, Group) for stage in before)
    near = {} if is_first else read_by(before)
    read = read_by([*before, *own] if is_first else own)
    inputs = [b for b in read if b.kind is BufferKind.ARGUMENT and b not in near]
    inputs = [b for b in inputs if part.part.storage[b] is Storage.TIME]
    written = [buffer for stage in own for buffer in writes(stage)]
    return _rows_of(part, [*written, *inputs], 1, part.part)


def _read_next(part: PartLowering, group: Group) -> list[tuple[Value, int]]:
    """Of a reverse step: what is read behind this group up to the next group's own equations.

    By the last group, what the next step reads up to there, and then the deferred part.
    """
    stages, at = part.part.stages, part.part.stages.index(group)
    behind = list(up_to_group(stages[at + 1 :]))
    following = [stage for stage in stages[at + 1 :] if isinstance(stage, Group)][:1]
    rows = _rows_of(part, read_by([*behind, *following]), 0, part.part)
    if not following:
        first = next(stage for stage in stages if isinstance(stage, Group))
        rows += _rows_of(part, read_by([*up_to_group(stages), first]), -1, part.part)
        deferred = part.owner.schedule.deferred
        rows += _rows_of(part, read_by(deferred.stages), 0, deferred)
    came = _rows_of(part, read_by(stages[: at + 1]), 0, part.part)
    came += _rows_of(part, read_by(stages), 1, part.part)  # by the reverse step before
    return [row for row in rows if row not in came]


def _rows_of(
    part: PartLowering, buffers: Iterable[Buffer], later: int, of: Part
) -> list[tuple[Value, int]]:
    """Arrays over time, of more than a number a row, and how many steps later they are needed.

    A state before a step is the one after the step before.
    """
    programs = part.owner.schedule.programs
    links = {link.previous: link.next for link in programs.links}
    found = []
    for buffer in buffers:
        value, storage = buffer.value, of.storage[buffer]
        kept = value in programs.saved or part.owner.arrays.has_strides(value)
        if not buffer.shape or buffer.shape[-1] == 1:
            continue
        if storage is Storage.PREVIOUS:
            found.append((links[value], later - 1))
        elif storage is Storage.TIME and kept:
            found.append((value, later))
    return found
