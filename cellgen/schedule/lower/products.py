"""Form a group of products: runs over packed panels, and what can be formed ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sympy import Expr, Integer

from cellgen.schedule.groups import Group, Weight
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.lengths import length
from cellgen.schedule.lower.places import Places
from cellgen.schedule.lower.plan import GroupPlan, PanelProduct, Weights
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.lower.touched import loaded, stored, views_written
from cellgen.schedule.over_time import Storage
from cellgen.schedule.schedule import BufferKind, View


def form_group(
    function: FunctionOverTime, places: Places, name: str, group: Group, granularity: int
) -> GroupPlan:
    """Form a group of one part."""
    runs = _runs(function, places, name, group)
    slots = [slot for slot in group.slots if slot.needs_memory]
    in_tile = {slot.view.buffer for slot in group.slots if not slot.needs_memory}
    reads = [term.operand.buffer for term in group.terms]
    reads += [b for loop in group.loops for b in loaded(loop) if b not in in_tile]
    written = [b for loop in group.loops for b in stored(loop)]
    written += [slot.view.buffer for slot in slots]
    first = {s for r in runs[:1] for s in range(r.first_slot, r.first_slot + r.slots)}
    return GroupPlan(
        name=name,
        group=group,
        uses=places.uses(reads, written),
        keeps=(),
        units=units_of_head(group),
        heads=group.heads,
        granularity=granularity,
        widest=widest(group),
        depth=_depth(runs),
        whole=f"{name}_whole",
        free=len(runs) == 1 and bool(runs[0].ahead),
        fetching_depth=_fetching_depth(runs),
        runs=tuple(runs),
        prefetch=(),
        in_place=tuple(
            (view.buffer, column(view))
            for view in views_written(group)
            if places.is_in_place(view.buffer)
        ),
        zeroed=tuple(s for s in range(len(group.slots)) if s not in first),
        leaves_out=places.name == "deferred" and any(map(leaves_out_rows, group.loops)),
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
        elements = view.start[0] * view.row_stride + view.start[1]
    else:
        elements = view.start[0] if view.start else Integer(0)
    return None if elements == 0 else elements


def column(view: View) -> Expr | None:
    """How far a view's first column is from its buffer's."""
    return view.start[1] if len(view.start) == 2 and view.start[1] != 0 else None


def _runs(
    function: FunctionOverTime, places: Places, name: str, group: Group
) -> list[PanelProduct]:
    begun: set[int] = set()
    runs: list[PanelProduct] = []
    for index, term in enumerate(group.terms, start=1):
        for run_index, weights in enumerate(term.runs):
            suffix = f"_{run_index + 1}" if run_index else ""
            ahead = not runs and _can_form_ahead(places, group)
            run = PanelProduct(
                term.operand.buffer,
                offset(term.operand),
                term.inner,
                term.by_head,
                len(weights),
                weights[0].slot,
                f"{name}_panel_{index}{suffix}",
                f"{name}_ahead" if ahead else "",
                tuple(_weights(function, group, weight, begun) for weight in weights),
            )
            runs.append(run)
            begun |= {weight.slot for weight in weights}
    return runs


def _weights(function: FunctionOverTime, group: Group, weight: Weight, begun: set[int]) -> Weights:
    of, in_memory = function.place_of(weight.view.buffer.value)
    return Weights(
        of,
        in_memory,
        offset(weight.view),
        weight.head[1] if weight.head else weight.view.row_stride,
        None if group.heads is None else _head_step(group, weight),
        weight.transposed,
        weight.slot,
        weight.slot not in begun,
    )


def _head_step(group: Group, weight: Weight) -> Expr:
    """Elements from the weights of one head to the next.

    Whole matrices, or columns (transposed: rows) of all heads side by side.
    """
    factors = weight.head or (units_of_head(group),)
    if weight.transposed and not weight.head:
        factors = (*factors, weight.view.row_stride)
    return length(factors)


def _can_form_ahead(places: Places, group: Group) -> bool:
    """Whether the first operand is an input, so that no state has to be waited for."""
    operand = group.terms[0].operand.buffer
    storage = places.part.storage[operand]
    is_input = storage is Storage.TIME and operand.kind is BufferKind.ARGUMENT
    waits = any(term.operand.buffer != operand for term in group.terms)
    return places.name == "forward" and is_input and (waits or len(group.terms) == 1)


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
