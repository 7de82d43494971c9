"""Check a time plan: each pass by a rule, and all of them by following the plan.

Input: ``TimePlan``. ``flow`` follows it, for lifetimes and barriers; the rules here are of what a
pass leaves behind, whatever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TypeAlias

from sympy import Expr, Integer, expand

from cellgen.schedule.lower.flow import faults_of, reaches
from cellgen.schedule.lower.plan import (
    GroupPlan,
    How,
    LoopPlan,
    OutersPlan,
    PartPlan,
    Place,
    Rows,
    StagePlan,
    TimePlan,
)
from cellgen.schedule.schedule import Store, fault_of_plan, reads

Faults: TypeAlias = Iterator[str]
Rule: TypeAlias = Callable[[TimePlan], Faults]

OVER_TIME = (How.SERIES, How.STAGED, How.ACROSS, How.IN_PLACE)
OF_STATE = (How.BEFORE, How.CARRY, How.PASSED, How.PAIR)
IN_MEMORY = (How.MEMORY, How.KEPT, How.SUMS)


def verify(plan: TimePlan, rules: Sequence[Rule] | None = None) -> None:
    """Check what the passes have left, then lifetimes and barriers; or some ``rules`` alone.

    Raises:
        DerivationError: naming the function, and the name or the stage.
    """
    for once in (plan.prologue, plan.epilogue):
        if once is not None:
            once.verify()
    for rule in RULES if rules is None else rules:
        for what in rule(plan):
            raise fault_of_plan(f"{plan.cell}.{plan.function}", what)


def _stages(plan: TimePlan) -> Iterator[tuple[PartPlan, StagePlan]]:
    return ((part, stage) for part in plan.parts for stage in part.stages)


def places_have_tables(plan: TimePlan) -> Faults:
    """``form``: a place names what stands in the plan's tables."""
    tables = {
        OVER_TIME: {item.name for item in plan.series},
        OF_STATE: {item.previous for item in plan.states},
    }
    known = {how: names for hows, names in tables.items() for how in hows}
    for place in (place for part in plan.parts for place in part.places):
        if place.of not in known.get(place.how, {place.of}):
            yield f"{place.of} is no {place.how.value}"
    for part, stage in _stages(plan):
        if not set(stage.uses) <= set(part.places):
            yield f"{stage.name} uses an array that has no place"


def products_begin(plan: TimePlan) -> Faults:
    """``form``: operands have places, and one product begins each slot."""
    for _, stage in _stages(plan):
        if isinstance(stage, GroupPlan):
            placed = {place.buffer for place in stage.uses}
            for run in (run for run in stage.runs if run.operand not in placed):
                yield f"{stage.name} multiplies {run.operand.name} without a place"
            slots = [w.slot for run in stage.runs for w in run.weights if w.begins]
            if sorted((*slots, *stage.begun)) != list(range(len(stage.group.slots))):
                yield f"{stage.name} has a slot that no product begins"


def begun_sums_are_terms(plan: TimePlan) -> Faults:
    """``with_begun_sums``: the loop right before a group writes each slot that is begun, whole."""
    for part in plan.parts:
        for before, stage in pairwise((None, *part.stages)):
            if not isinstance(stage, GroupPlan):
                continue
            lines = before.loop.lines if isinstance(before, LoopPlan) else ()
            stored = {line.view for line in lines if line.store is Store.WRITE}
            for view in (stage.group.slots[slot].view for slot in stage.begun):
                if view not in stored:
                    yield f"{stage.name} adds to {view}, which no loop before it begins"


def products_have_places(plan: TimePlan) -> Faults:
    """``with_stored_products``: no weights and no sum lie in tiles alone."""
    for _, stage in _stages(plan):
        if isinstance(stage, GroupPlan):
            placed = {place.buffer for place in stage.uses}
            views = [slot.view for slot in stage.group.slots if slot.needs_memory]
            if len(views) < len(stage.group.slots):
                yield f"{stage.name} leaves a sum in its tile"
            views += [weight.view for term in stage.group.terms for weight in term.weights]
            for view in (view for view in views if view.buffer not in placed):
                yield f"{stage.name} has no place for {view}"


def skipped_stages_are_alone(plan: TimePlan) -> Faults:
    """``with_requests``: what a stage that may be skipped forms is read where that is skipped too.

    It is the caller's only if it is one of those without which the stage is skipped.
    """
    results = {*(name for name, _ in plan.summed), *(item.name for item in plan.series)}
    results |= {state.passed for state in plan.states}
    readers = list(_readers(plan))
    for _, stage in _stages(plan):
        wants = frozenset() if isinstance(stage, OutersPlan) else frozenset(stage.wants)
        if not wants:
            continue
        written = {use.buffer.name for use in reaches(stage) if use.writes}
        if written & results - wants:
            yield f"{stage.name} is skipped without {', '.join(sorted(wants))} but writes more"
        for name in sorted(written):
            if any(name in read and not (own and wants >= own) for read, own in readers):
                without = ", ".join(sorted(wants))
                yield f"{stage.name} is skipped without {without} but {name} is read with others"


def _readers(plan: TimePlan) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """What each stage, or weight gradient, reads, and the gradients for which alone it runs."""
    sums = {total.name: frozenset(total.wants or [total.name]) for total in plan.totals}
    for _, stage in _stages(plan):
        if isinstance(stage, OutersPlan):
            for outer in stage.outers:
                a, b = outer.product.a.buffer.name, outer.product.b.buffer.name
                yield frozenset({a, b}), sums.get(outer.target.name, frozenset())
        else:
            read = frozenset(use.buffer.name for use in reaches(stage) if not use.writes)
            yield read, frozenset(stage.wants)
    late = plan.epilogue.stages if plan.epilogue else ()
    for once, wants in zip(late, plan.late_wants or ((),) * len(late), strict=True):
        yield frozenset(view.buffer.name for view in reads(once)), frozenset(wants)


def scratch_is_unread(plan: TimePlan) -> Faults:
    """``with_written_on_request``: what may have no memory is read nowhere."""
    for part in plan.parts:
        reads = {u.buffer.name for stage in part.stages for u in reaches(stage) if not u.writes}
        for stage in part.stages:
            keeps = stage.keeps if isinstance(stage, GroupPlan | LoopPlan) else ()
            for name in sorted(reads & set(keeps)):
                yield f"{stage.name} writes {name} on request, which a step reads"


def stages_have_rows(plan: TimePlan) -> Faults:
    """``with_barriers``: groups of rows go through deferred stages in order, each stage once."""
    for part in plan.parts:
        numbers = [n for run in part.rows for n in range(run.first, run.first + run.count)]
        in_chunks = part.name == "deferred" and not plan.by_step
        if numbers != list(range(len(part.stages) if in_chunks else 0)):
            yield f"{part.name} has stages that no group of rows goes through once, in order"
        for run in part.rows:
            last = run.first + run.count - 1
            if any(stage.barrier for stage in part.stages[run.first : last]):
                yield f"{part.name} has a barrier within a group of rows"


def operands_lie_apart(plan: TimePlan) -> Faults:
    """``with_packed_operands``: rows of packed operands share no memory, and have enough."""
    outers = (stage for _, stage in _stages(plan) if isinstance(stage, OutersPlan))
    lefts = [operand for stage in outers for operand in stage.lefts]
    starts = [operand.packed_after or Integer(0) for operand in lefts]
    ends = [start + operand.length for start, operand in zip(starts, lefts, strict=True)]
    for end, start in pairwise((Integer(0), *chain(*zip(starts, ends, strict=True)))):
        if not _is_least(end, start):
            yield f"packed operands of weight gradients meet: {start} is before {end}"
    if lefts and not _is_least(ends[-1], plan.product_rows or Integer(0)):
        yield f"{ends[-1]} rows of operands are packed, of {plan.product_rows}"


def _is_least(low: Expr, high: Expr) -> bool:
    """Whether one length is at most the other, whatever the dimensions are."""
    counts = expand(high - low).as_coefficients_dict().values()
    return all(count >= 0 for count in counts)


def fetched_rows_are_touched(plan: TimePlan) -> Faults:
    """``with_prefetch``: what tiles fetch is over time, and a stage reads or writes it."""
    strided = {item.name for item in plan.series if item.strided}
    new = {state.previous: state.name for state in plan.states}
    places = [place for part in plan.parts for place in part.places]
    over_time = {p.of for p in places if p.how in (*OVER_TIME, How.SAVED)}
    over_time |= {new[place.of] for place in places if place.how is How.BEFORE}
    for _, stage in _stages(plan):
        for rows in stage.prefetch if isinstance(stage, GroupPlan) else ():
            if rows.name not in over_time:
                yield f"{stage.name} fetches {rows.name}, which no stage touches over time"
            if rows.strided is not (rows.name in strided):
                yield f"{stage.name} fetches {rows.name} at strides that it has not"


def memory_suffices(plan: TimePlan) -> Faults:
    """``with_memory``: each array is there once, with rows and width for what lies in it."""
    memory = {item.name: item for item in plan.memory}
    if len(memory) != len(plan.memory):
        yield "an array of the workspace is there twice"
    for name in _named(plan):
        if name not in memory:
            yield f"{name} is no array of the workspace"
            return
    for part in plan.parts:
        for place in part.places:
            if place.how in IN_MEMORY and place.of not in memory:
                yield f"{place.of} is no {place.how.value}"
                return
            of = place.other or (place.of if place.how in IN_MEMORY else "")
            rows = Rows.BATCH if place.other or plan.by_step else _rows(part, place)
            if not of or (memory[of].rows is Rows.ONE and not place.buffer.value.is_batched):
                continue
            width = memory[of].width
            narrow = width is None or place.width is None or expand(width - place.width) != 0
            if memory[of].rows is not rows or narrow:
                there = f"{memory[of].rows.value} of {width}"
                yield f"{of} has {there}, {place.buffer} needs {rows.value} of {place.width}"


def _rows(part: PartPlan, place: Place) -> Rows:
    """How many rows what lies at a place needs."""
    many = part.name == "deferred" or place.how is How.KEPT
    return Rows.GROUPS if place.how is How.SUMS else Rows.CHUNK if many else Rows.BATCH


def _named(plan: TimePlan) -> Iterator[str]:
    """What has to be in the workspace, by name, beside what places name."""
    for _, stage in _stages(plan):
        if isinstance(stage, GroupPlan):
            yield stage.whole
            yield from (name for run in stage.runs for name in (run.panel, run.ahead) if name)
            yield from (w.of for run in stage.runs for w in run.weights if w.in_memory)
    yield from (place.other for part in plan.parts for place in part.places if place.other)
    for state in plan.states:
        yield from (state.pair,) if state.pair else ()
        yield from (f"now_{state.previous}",) if state.now else ()
        yield from (f"rows_{state.previous}",) if state.across else ()
    yield from (item.memory for item in (*plan.kept, *plan.constants))
    yield from (total.own for total in plan.totals if total.own)
    yield from (item.groups for item in plan.sums)
    yield from (of for _, of, inside in plan.once_places if inside)
    yield from (item.of for item in plan.totals if item.in_memory)
    yield from (item.of for item in plan.sums if item.in_memory)
    yield from (item.of for item in plan.steps_totals if item.in_memory)


OF_LAUNCHES: tuple[Rule, ...] = (
    places_have_tables,
    products_begin,
    begun_sums_are_terms,
    products_have_places,
)
"""Of what launches begin with, before any memory is reserved."""
RULES: tuple[Rule, ...] = (
    places_have_tables,
    products_begin,
    skipped_stages_are_alone,
    scratch_is_unread,
    operands_lie_apart,
    fetched_rows_are_touched,
    memory_suffices,
    faults_of,
    stages_have_rows,
)
"""Of the passes; ``faults_of`` follows the plan."""
