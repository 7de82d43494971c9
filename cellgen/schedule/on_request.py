"""Which gradients of a sequence a caller may leave out: those that nothing else is formed with.

Input: ``SequenceSchedule``. Output: values. A stage runs where a gradient is wanted that it leads
to; of weight gradients each product does, and of a loop one gradient is written by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cellgen.language.value import Role, Value
from cellgen.schedule.groups import GroupedStage
from cellgen.schedule.over_time import (
    SequenceSchedule,
    Storage,
    read_by,
    summed_over_rows,
    written_by,
)
from cellgen.schedule.schedule import (
    Buffer,
    BufferKind,
    Line,
    Loop,
    PlannedFunction,
    Product,
    Store,
    reads,
    writes,
)

Reached = Mapping[Value, frozenset[Value]]
"""The gradients that are formed with a value, itself among them."""


_ADDING_UNITS = frozenset((Store.ADD_UNITS, Store.ADD_ALL))


def on_request(schedule: SequenceSchedule) -> frozenset[Value]:
    """Return the gradients that are formed only where the caller gives memory for them.

    The gradient of an initial state is one: at the first step it goes to the memory of the others.
    """
    programs, reached = schedule.programs, gradients_reached(schedule)
    stages = _stages(schedule)
    read = {value for stage in stages for value in read_by(stage)}
    places = {b.value: place for b, place in schedule.deferred.storage.items()}
    gradients = {link.passed for link in programs.links if link.passed not in programs.gradients}
    gradients |= written_on_request(schedule)
    for value in programs.gradients:
        writing = [stage for stage in stages if value in written_by(stage)]
        is_total = places.get(value) is Storage.TOTAL
        alone = all(_is_alone(stage, value, reached, is_total=is_total) for stage in writing)
        if writing and alone and value not in read:
            gradients.add(value)
    return frozenset(gradients)


def written_on_request(schedule: SequenceSchedule) -> frozenset[Value]:
    """Return the gradients that a loop forms beside others, and that it alone need not write.

    A loop is deferred, adds no units up, and asks of one array whether the caller has memory for
    it.
    """
    stages, gradients = _stages(schedule), schedule.programs.gradients
    reached = gradients_reached(schedule)
    read = {value for stage in stages for value in read_by(stage)}
    requested: set[Value] = set()
    for stage in schedule.deferred.stages:
        lines = stage.lines if isinstance(stage, Loop) else ()
        if not _ADDING_UNITS.isdisjoint(line.store for line in lines):
            continue
        plain = [line.view.buffer.value for line in lines if line.view and _is_plain(line)]
        written = [value for value in plain if value in gradients]
        writers = [one for one in stages if written and written[0] in written_by(one)]
        if len(written) == len(writers) == 1 and reached_by(stage, reached) != {*written}:
            requested.update(written)
    return frozenset(requested - read)


def _is_plain(line: Line) -> bool:
    return line.store is Store.WRITE


def _is_alone(stage: GroupedStage, value: Value, reached: Reached, *, is_total: bool) -> bool:
    """Whether a stage writes a gradient so that nothing else depends on it.

    It leads to no other one, or writes it into memory of its own, where sums over rows begin.
    """
    if is_total:
        sums = {buffer.value for buffer in summed_over_rows(stage)}
        return isinstance(stage, Product) or value in sums
    return reached_by(stage, reached) == {value}


def _stages(schedule: SequenceSchedule) -> list[GroupedStage]:
    """Everything that a backward pass runs once it has begun, in order."""
    late = schedule.epilogue.stages if schedule.epilogue else ()
    return [*schedule.reverse.stages, *schedule.deferred.stages, *late]


def gradients_reached(schedule: SequenceSchedule) -> Reached:
    """Return which gradients each value of a backward pass leads to, through stages after it.

    A gradient that is passed to the step before leads to all: nothing before it may be left out.
    """
    programs = schedule.programs
    results = {*programs.gradients, *(link.passed for link in programs.links)}
    reached: dict[Value, frozenset[Value]] = defaultdict(
        frozenset, {value: frozenset({value}) for value in results}
    )
    for stage in reversed(_stages(schedule)):
        formed = reached_by(stage, reached)
        for value in read_by(stage):
            reached[value] |= formed
    return reached


def reached_by(stage: GroupedStage, reached: Reached) -> frozenset[Value]:
    """Return the gradients that a stage leads to."""
    return frozenset[Value]().union(*(reached[value] for value in written_by(stage)))


def on_request_of_step(function: PlannedFunction) -> frozenset[Buffer]:
    """Return the gradients of a step that are formed only where the caller wants them.

    Every stage that writes one writes nothing else, and none of the others reads it.
    """
    written = {stage: {view.buffer for view in writes(stage)} for stage in function.stages}
    read = {
        view.buffer
        for stage in function.stages
        for view in reads(stage)
        if written[stage] != {view.buffer}
    }
    return frozenset(
        buffer
        for buffer in function.of_kind(BufferKind.RESULT)
        if buffer.value.role is Role.ADJOINT
        and buffer not in read
        and all(targets == {buffer} for targets in written.values() if buffer in targets)
    )


def wanted_in_step(function: PlannedFunction) -> tuple[tuple[Buffer, ...], ...]:
    """Return for each stage of a step the gradients for which alone it runs; none: it runs always.

    A stage leads to what it writes, and to what later ones form with that.
    """
    requested = on_request_of_step(function)
    reached: dict[Buffer, frozenset[Buffer]] = defaultdict(
        frozenset, {b: frozenset({b}) for b in function.of_kind(BufferKind.RESULT)}
    )
    wanted: list[tuple[Buffer, ...]] = []
    for stage in reversed(function.stages):
        formed = frozenset[Buffer]().union(*(reached[view.buffer] for view in writes(stage)))
        for view in reads(stage):
            reached[view.buffer] |= formed
        own = tuple(sorted(formed, key=lambda buffer: buffer.name))
        wanted.append(own if formed <= requested else ())
    return tuple(reversed(wanted))


def skipped_with(schedule: SequenceSchedule) -> frozenset[Value]:
    """Return those without which a stage can be skipped; of a state, steps pass the gradient on."""
    return on_request(schedule) - {link.passed for link in schedule.programs.links}


def wanted_by(formed: Iterable[Value], requested: frozenset[Value]) -> tuple[Value, ...]:
    """Return for which of the gradients that a stage leads to it runs; none if it runs always."""
    own = tuple(sorted(formed, key=lambda value: str(value.name)))
    return own if requested.issuperset(own) else ()
