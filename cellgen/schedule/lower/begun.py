"""Let a loop before a product begin the sum that the product adds to.

Pass: a plan whose products begin all sums -> the same where loops begin some of a backward step.
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
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.places import Places, places_of
from cellgen.schedule.lower.plan import GroupPlan, How, LoopPlan, PartPlan, StagePlan, TimePlan
from cellgen.schedule.lower.touched import loaded, stored
from cellgen.schedule.schedule import Line, Loop, Store, View


def with_begun_sums(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Begin the sums of a step that can be begun."""
    if not plan.backward:
        return plan
    reverse, *others = plan.parts
    return replace(plan, parts=(_begun(Places(function, reverse.name), reverse), *others))


def _begun(places: Places, part: PartPlan) -> PartPlan:
    stages: list[StagePlan] = []
    for stage in part.stages:
        before, after = (stages[-1] if stages else None), stage
        if isinstance(before, LoopPlan) and isinstance(stage, GroupPlan):
            moved = _moved(places, before.loop, stage.group)
            if moved is not None:
                loop, group = moved
                uses = places.uses(loaded(loop), stored(loop))
                stages[-1] = replace(before, loop=loop, uses=uses)
                after = _adding(places, stage, group)
        stages.append(after)
    return replace(part, stages=tuple(stages), places=places_of(stages))


def _adding(places: Places, stage: GroupPlan, group: Group) -> GroupPlan:
    """The products of a group whose slots have all been begun."""
    runs = tuple(
        replace(run, weights=tuple(replace(weight, begins=False) for weight in run.weights))
        for run in stage.runs
    )
    operands = [term.operand.buffer for term in group.terms]
    uses = places.uses(operands, [slot.view.buffer for slot in group.slots])
    begun = tuple(range(len(group.slots)))
    return replace(stage, group=group, uses=uses, runs=runs, zeroed=(), begun=begun)


def _moved(places: Places, before: Loop, group: Group) -> tuple[Loop, Group] | None:
    """The loop with the first terms, the group without its own loop; None where that cannot be."""
    if not _meet(before, group):
        return None
    loop = group.loops[0]
    slots = {slot.view: number for number, slot in enumerate(group.slots)}
    sums = {load.value: slots[load.view] for load in loop.loads if load.view in slots}
    of_lines = [_first_term(line, sums, places) for line in loop.lines]
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


def _meet(before: Loop, group: Group) -> bool:
    """Whether a group has one loop, over the same elements as the one before it."""
    if group.heads is not None or len(group.loops) != 1:
        return False
    stores = {line.store for line in before.lines}
    plain = not before.is_nest and not group.loops[0].is_nest
    return plain and group.loops[0].space == before.space and stores <= {Store.LOCAL, Store.WRITE}


def _first_lines(lines: Sequence[Line], terms: Sequence[Expr]) -> list[Line]:
    """Lines whose targets are the first terms."""
    statements = [Statement(x.statement.target, e) for x, e in zip(lines, terms, strict=True)]
    return [
        replace(line, statement=statement, origin=statement)
        for line, statement in zip(lines, statements, strict=True)
    ]


def _first_term(
    line: Line, sums: Mapping[Value, int], places: Places
) -> tuple[Value, Expr, View] | None:
    """The sum of products that a line adds, the rest, and where both go; None for other lines.

    It has to go where sums have their own precision, whatever the arrays of the caller have.
    """
    expression, view = line.statement.expression, line.view
    if line.store is not Store.WRITE or view is None or not isinstance(expression, Add):
        return None
    added = [term for term in expression.args if term in sums]
    if len(added) != 1 or places.of(view.buffer).how is not How.PASSED:
        return None
    rest = expression - added[0]
    return None if rest.atoms(Value) & set(sums) else (added[0], rest, view)
