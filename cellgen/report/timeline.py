"""A call forward and a call backward on one axis of time: what runs when, and what is kept.

Input: the schedule of the time loop and its ``TimePlan``s. Output: ``Timeline``. Everything is read
from the plan that is compiled; the lengths of bars are not to scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from markupsafe import Markup

from cellgen.language.latex import Latex
from cellgen.language.value import Value, format_axis
from cellgen.report.mathml import mathml
from cellgen.schedule.groups import Term
from cellgen.schedule.lower import TimePlan
from cellgen.schedule.lower.plan import (
    GroupPlan,
    LoopPlan,
    OutersPlan,
    PartPlan,
    ProductPlan,
    RoutinePlan,
    StagePlan,
    StripPlan,
)
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.schedule.schedule import Loop, describe
from cellgen.views.figures import row_values


@dataclass(frozen=True)
class TimelineStage:
    """One stage: its kind, products as text, the values that it forms, what else is known."""

    kind: str
    products: tuple[str, ...]
    forms: tuple[Markup, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phase:
    """What runs at one time; ``bars`` are its spans, in percent of the axis."""

    key: str
    title: str
    when: str
    bars: tuple[tuple[float, float], ...]
    stages: tuple[TimelineStage, ...]


@dataclass(frozen=True)
class KeptValues:
    """Values that wait in memory for the backward pass."""

    title: str
    values: tuple[Markup, ...]
    size: str
    note: str


@dataclass(frozen=True)
class TimelineLane:
    """One row of the picture: bars in percent of the axis."""

    key: str
    title: str
    bars: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Timeline:
    """All phases in the order of time, and what is kept from the forward to the backward call."""

    phases: tuple[Phase, ...]
    kept: tuple[KeptValues, ...]

    @property
    def lanes(self) -> tuple[TimelineLane, ...]:
        """Rows of the picture: what runs once a call shares one."""
        lanes = []
        for key in dict.fromkeys(phase.key for phase in self.phases):
            phases = [phase for phase in self.phases if phase.key == key]
            title = phases[0].title if len(phases) == 1 else "Once a call"
            bars = tuple(bar for phase in phases for bar in phase.bars)
            lanes.append(TimelineLane(key, title, bars))
        return tuple(lanes)


FORWARD, BACKWARD = (7.0, 44.0), (53.0, 93.0)
"""Spans of the two loops on the axis."""
CHUNKS = 4
"""Chunks of steps that are drawn behind the reverse loop."""


def timeline_of(schedule: SequenceSchedule, plans: Iterable[TimePlan]) -> Timeline:
    """Lay out the plans of both directions."""
    ahead_of, behind = plans
    first, *forward = phases_of(ahead_of)
    second, *backward = phases_of(behind)
    packed = tuple(stage for stage in second.stages if stage not in first.stages)
    before = replace(first, bars=first.bars + second.bars, stages=first.stages + packed)
    phases = (before, *forward, *backward)
    return Timeline(tuple(p for p in phases if p.stages), tuple(_kept(schedule)))


def phases_of(plan: TimePlan) -> tuple[Phase, ...]:
    """The phases of one direction; one without stages may be among them."""
    if not plan.backward:
        bars, loop = ((0.0, FORWARD[0] - 1),), _stages(plan.parts[0])
        return (
            Phase("once", "Before the steps", "once a call", bars, tuple(_before(plan))),
            Phase("forward", "Forward", "every step, first to last", (FORWARD,), loop),
        )
    bars, late = ((FORWARD[1] + 4, BACKWARD[0] - 1),), ((BACKWARD[1] + 4.5, 100),)
    reverse, deferred = map(_stages, plan.parts)
    chunk = "a chunk of steps at a time: no state waits for it"
    return (
        Phase("once", "Before the steps", "once a call", bars, tuple(_before(plan))),
        Phase("reverse", "In reverse", "every step, last to first", (BACKWARD,), reverse),
        Phase("deferred", "Behind the reverse loop", chunk, tuple(_chunks()), deferred),
        Phase("once", "After the steps", "once a call", late, tuple(_after(plan))),
    )


def _chunks() -> Iterator[tuple[float, float]]:
    """Spans of the deferred part: each follows the steps that it is for."""
    length = (BACKWARD[1] - BACKWARD[0]) / CHUNKS
    for number in range(1, CHUNKS + 1):
        start = BACKWARD[0] + number * length
        yield start, start + 0.4 * length


# --- stages --------------------------------------------------------------------------------------


def _stages(part: PartPlan) -> tuple[TimelineStage, ...]:
    return tuple(_stage(stage) for stage in part.stages)


def _stage(stage: StagePlan) -> TimelineStage:
    notes = ["threads that share units meet after it"] if stage.barrier else []
    if not isinstance(stage, OutersPlan) and stage.wants:
        notes.append(f"left out where nobody wants {', '.join(stage.wants)}")
    if isinstance(stage, GroupPlan):
        ahead = [run.operand.name for run in stage.runs if run.ahead]
        if ahead:
            listed = ", ".join(dict.fromkeys(ahead))
            notes.insert(0, f"products of {listed} may be formed ahead, for a window of steps")
        terms = tuple(term_text(term) for term in stage.group.terms)
        return TimelineStage("products in tiles", terms, _formed(stage.group.loops), tuple(notes))
    if isinstance(stage, LoopPlan):
        return TimelineStage("equations", (), _formed([stage.loop]), tuple(notes))
    if isinstance(stage, StripPlan):
        return TimelineStage("equations", (), _formed(stage.loops), tuple(notes))
    if isinstance(stage, RoutinePlan):
        return TimelineStage("routine", (str(stage.routine.statement),), (), tuple(notes))
    if isinstance(stage, ProductPlan):
        return TimelineStage("product", (str(stage.product.statement),), (), tuple(notes))
    names = tuple(outer.text for outer in stage.outers)
    return TimelineStage("weight gradients", names, (), tuple(notes))


def term_text(term: Term) -> str:
    """One operand times its weights, as ``explain`` prints it."""
    return f"{term.operand} @ [{_weights(term)}]"


def _weights(term: Term) -> str:
    return ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in term.weights)


def _formed(loops: Iterable[Loop]) -> tuple[Markup, ...]:
    return _typeset(line.origin.target for loop in loops for line in loop.lines)


def _typeset(values: Iterable[Value]) -> tuple[Markup, ...]:
    latex = Latex()
    return tuple(mathml(latex.value(value)) for value in dict.fromkeys(values))


def _before(plan: TimePlan) -> Iterator[TimelineStage]:
    if plan.prologue is not None:
        statements = plan.prologue.program.statements
        yield TimelineStage(
            "of weights alone", tuple(describe(statement) for statement in statements), ()
        )
    if packed := _packed(plan):
        direction = "backward" if plan.backward else "forward"
        note = "kept for many calls by kernel.pack; read where they lie for a single step"
        yield TimelineStage(f"pack weights, {direction}", packed, (), (note,))


def _packed(plan: TimePlan) -> tuple[str, ...]:
    """The weights of each operand, in the order in which tiles read them."""
    stages = (stage for part in plan.parts for stage in part.stages)
    terms = (t for stage in stages if isinstance(stage, GroupPlan) for t in stage.group.terms)
    return tuple(f"[{_weights(term)}]" for term in terms)


def _after(behind: TimePlan) -> Iterator[TimelineStage]:
    if behind.epilogue is not None:
        statements = behind.epilogue.program.statements
        yield TimelineStage(
            "of sums over all steps", tuple(describe(statement) for statement in statements), ()
        )
    batched = [total.of for total in behind.totals if total.batched]
    if behind.sums:
        listed = tuple(item.of for item in behind.sums)
        note = "in groups of rows, then group by group: the same bits for any number of threads"
        yield TimelineStage("add up sums over rows", listed, (), (note,))
    if batched:
        yield TimelineStage("gradients of what is constant over time", tuple(batched), ())


# --- kept ----------------------------------------------------------------------------------------


def _kept(schedule: SequenceSchedule) -> Iterator[KeptValues]:
    programs = schedule.programs
    rows = (
        (
            "saved by the forward pass",
            programs.saved,
            "a minimum cut, by memory and operations, of what the backward pass reads",
        ),
        ("outputs, read again", programs.outputs, "the caller has them anyway"),
        (
            "kept by the reverse loop",
            programs.kept,
            "for a chunk of steps alone: the deferred part follows at once",
        ),
    )
    for title, values, note in rows:
        if values:
            size = f"{format_axis(row_values(values))} a step and row"
            yield KeptValues(title, _typeset(values), size, note)
