"""Let a loop before a product begin the sum that the product adds to.

``d_h_prev = d_h_in * z + d_s @ u_n.T`` is a product and a loop after it. Where the first term is
known before the product, the loop before it stores that term where the sum belongs, and the product
adds to it: one launch less in every step, and the same bits, since a sum of two has no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sympy import Add, Expr

from cellgen.language.value import Value
from cellgen.program.ssa import Statement
from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.over_time import Part, Storage
from cellgen.schedule.schedule import Buffer, Line, Loop, Store, View


def begin_sums(part: Part) -> tuple[Part, frozenset[Group]]:
    """Begin what sums of a part can begin; return it, and the groups that add to their slots."""
    stages: list[GroupedStage] = []
    begun: set[Group] = set()
    for stage in part.stages:
        before = stages[-1] if stages else None
        if isinstance(stage, Group) and isinstance(before, Loop) and _meet(before, stage):
            moved = _begin(part.storage, before, stage)
            if moved is not None:
                stages[-1], stage = moved
                begun.add(stage)
        stages.append(stage)
    return replace(part, stages=tuple(stages)), frozenset(begun)


def _meet(before: Loop, group: Group) -> bool:
    """Whether a group has one loop, over the same elements as the one before it."""
    if group.heads is not None or len(group.loops) != 1:
        return False
    stores = {line.store for line in before.lines}
    plain = not before.is_nest and not group.loops[0].is_nest
    return plain and group.loops[0].space == before.space and stores <= {Store.LOCAL, Store.WRITE}


def _begin(
    storage: Mapping[Buffer, Storage], before: Loop, group: Group
) -> tuple[Loop, Group] | None:
    """The loop with the first terms, the group without its own loop; None where that cannot be."""
    loop = group.loops[0]
    slots = {slot.view: number for number, slot in enumerate(group.slots)}
    sums = {load.value: slots[load.view] for load in loop.loads if load.view in slots}
    of_lines = [_first_term(line, sums, storage) for line in loop.lines]
    terms = [term for term in of_lines if term is not None]
    if len(terms) != len(of_lines) or {sums[added] for added, _, _ in terms} != {*slots.values()}:
        return None
    targets = {sums[added]: view for added, _, view in terms}
    lines = _first_lines(loop.lines, [rest for _, rest, _ in terms])
    wanted = {value for line in lines for value in line.statement.expression.atoms(Value)}
    known = {load.value for load in before.loads} | {x.statement.target for x in before.lines}
    loads = tuple(load for load in loop.loads if load.value in wanted - known)
    joined = replace(before, loads=(*before.loads, *loads), lines=(*before.lines, *lines))
    moved = tuple(replace(slot, view=targets[n]) for n, slot in enumerate(group.slots))
    return joined, replace(group, slots=moved, loops=())


def _first_lines(lines: Sequence[Line], terms: Sequence[Expr]) -> list[Line]:
    """Lines whose targets are the first terms."""
    statements = [Statement(x.statement.target, e) for x, e in zip(lines, terms, strict=True)]
    return [
        replace(line, statement=statement, origin=statement)
        for line, statement in zip(lines, statements, strict=True)
    ]


def _first_term(
    line: Line, sums: Mapping[Value, int], storage: Mapping[Buffer, Storage]
) -> tuple[Value, Expr, View] | None:
    """The sum of products that a line adds, the rest, and where both go; None for other lines.

    It has to go where sums have their own precision, whatever the arrays of the caller have.
    """
    expression, view = line.statement.expression, line.view
    if line.store is not Store.WRITE or view is None or not isinstance(expression, Add):
        return None
    added = [term for term in expression.args if term in sums]
    if len(added) != 1 or storage[view.buffer] is not Storage.CARRY_OUT:
        return None
    rest = expression - added[0]
    return None if rest.atoms(Value) & set(sums) else (added[0], rest, view)
