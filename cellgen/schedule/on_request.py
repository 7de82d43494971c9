"""Which gradients of a sequence a caller may leave out: those that nothing else is formed with.

Input: ``SequenceSchedule``. Output: values. A stage that writes such gradients alone is skipped
where none of them is wanted; of weight gradients each product is.
"""

from __future__ import annotations

from cellgen.language.value import Role, Value
from cellgen.schedule.groups import GroupedStage
from cellgen.schedule.over_time import (
    SequenceSchedule,
    Storage,
    read_by,
    summed_over_rows,
    written_by,
)
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction, Product, reads, writes


def on_request(schedule: SequenceSchedule) -> frozenset[Value]:
    """Return the gradients that are formed only where the caller gives memory for them.

    The gradient of an initial state is one: at the first step it goes to the memory of the others.
    """
    programs = schedule.programs
    parts = (schedule.reverse, schedule.deferred)
    stages = [stage for part in parts for stage in part.stages]
    read = {value for stage in stages for value in read_by(stage)}
    read |= set(programs.epilogue.arguments) if programs.epilogue else set()
    places = {b.value: place for b, place in schedule.deferred.storage.items()}
    gradients = {link.passed for link in programs.links if link.passed not in programs.gradients}
    for value in programs.gradients:
        writing = [stage for stage in stages if value in written_by(stage)]
        is_total = places.get(value) is Storage.TOTAL
        alone = all(_is_alone(stage, value, is_total=is_total) for stage in writing)
        if writing and alone and value not in read:
            gradients.add(value)
    return frozenset(gradients)


def _is_alone(stage: GroupedStage, value: Value, *, is_total: bool) -> bool:
    """Whether a stage writes a gradient so that nothing else depends on it.

    It writes nothing beside it, or into memory of its own, where sums over rows begin.
    """
    if is_total:
        sums = {buffer.value for buffer in summed_over_rows(stage)}
        return isinstance(stage, Product) or value in sums
    return written_by(stage) == {value}


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


def skipped_with(schedule: SequenceSchedule) -> frozenset[Value]:
    """Return those without which a stage can be skipped; of a state, steps pass the gradient on."""
    return on_request(schedule) - {link.passed for link in schedule.programs.links}


def wanted_by(stage: GroupedStage, requested: frozenset[Value]) -> tuple[Value, ...]:
    """Return the gradients for which alone a stage runs; none for one that runs always."""
    written = written_by(stage)
    own = tuple(sorted(written, key=lambda value: str(value.name)))
    return own if written and written <= requested and not isinstance(stage, Product) else ()
