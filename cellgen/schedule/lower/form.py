"""Form the plan of a function over time: its arrays, states, sums and parts.

Pass: ``FunctionOverTime`` -> ``TimePlan`` that has no workspace yet, and in which no choice is made
that later passes make.
"""

from __future__ import annotations

from cellgen.program.over_time import StateLink
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.lengths import length, row_length
from cellgen.schedule.lower.places import sums_of_groups
from cellgen.schedule.lower.plan import State, TimePlan
from cellgen.schedule.lower.stages import form_part
from cellgen.schedule.lower.sums import RowArray, RowSum, StepsTotal, Total
from cellgen.schedule.lower.touched import begins_with_product
from cellgen.schedule.over_time import Storage, summed_over_rows
from cellgen.schedule.schedule import Buffer


def form(function: FunctionOverTime) -> TimePlan:
    """Form the plan of a function."""
    schedule, programs, arrays = function.schedule, function.programs, function.arrays
    signature, backward = function.signature, function.is_backward
    in_chunks = backward and not function.by_step
    storage = schedule.deferred.storage.values()
    epilogue = schedule.epilogue if backward else None
    once = [(f, b) for f in (schedule.prologue, epilogue) if f for b in f.buffers]
    once_places = {buffer: function.once_place(f, buffer) for f, buffer in once}
    return TimePlan(
        cell=programs.definition.name,
        function=signature.name,
        text=signature.text,
        backward=backward,
        memory=(),
        series=arrays.series(),
        states=tuple(_state(function, link) for link in programs.links),
        parts=tuple(form_part(function, name) for name in function.part_names),
        zeros=arrays.zeros(),
        product_rows=None,
        reads_before=backward and Storage.PREVIOUS in storage,
        required=arrays.required(),
        row_arrays=arrays.row_arrays(),
        summed=arrays.summed(),
        packs_from=tuple(a.name for a in signature.struct_members if a.is_weight),
        kept=_kept(function) if backward else (),
        constants=_constants(function) if in_chunks else (),
        totals=_totals(function) if backward else (),
        sums=_sums(function) if in_chunks else (),
        steps_totals=_steps_totals(function) if backward else (),
        forward_arrays=_made(function),
        runs_again=backward and _runs_again(function),
        by_step=function.by_step,
        prologue=schedule.prologue,
        epilogue=epilogue,
        once_places=tuple((b, of, inside) for b, (of, inside) in once_places.items()),
    )


def _made(function: FunctionOverTime) -> tuple[str, ...]:
    over_time = {a.name for a in function.forward.results if a.shape[:1] == ("T",)}
    members = (*function.signature.struct_members, *function.signature.results)
    return tuple(a.name for a in members if a.name in over_time)


def _runs_again(function: FunctionOverTime) -> bool:
    """Whether a backward pass has what a forward pass takes."""
    own = {a.name for a in function.signature.arguments}
    takes = {a.name for a in function.forward.arguments}
    return takes <= own and function.forward.dims == function.signature.dims


def _state(function: FunctionOverTime, link: StateLink) -> State:
    programs, backward = function.programs, function.is_backward
    output, saved = link.next in programs.outputs, link.next in programs.saved
    pair = "" if output else f"{link.next.name}_pair"
    if backward:
        pair = f"{link.passed.name}_pair"
    return State(
        name=str(link.next.name),
        previous=str(link.previous.name),
        passed=str(link.passed.name),
        width=row_length(link.next),
        output=output,
        saved=saved and not backward,
        series=str(link.next.name) if output or (backward and saved) else "",
        now=not function.by_step and (not backward or link.previous in programs.reverse.arguments),
        across=backward and not function.by_step and link.previous in programs.deferred.arguments,
        pair=pair,
        upstream=str(programs.upstream[link.next].name) if output else "",
        start=programs.definition.initial_of(link.previous),
    )


def _totals(function: FunctionOverTime) -> tuple[Total, ...]:
    """Every sum over all steps."""
    part, contexts = function.schedule.deferred, function.programs.contexts
    totals = [
        _total(function, buffer, not function.by_step and begins_with_product(part, buffer))
        for buffer, place in part.storage.items()
        if place is Storage.TOTAL
    ]
    of_steps = (buffer for buffer in part.storage if buffer.value in contexts)
    return (*totals, *(_total(function, buffer, begun=False) for buffer in of_steps))


def _total(function: FunctionOverTime, buffer: Buffer, begun: bool) -> Total:
    batched = buffer.value.is_batched
    of, in_memory = function.place_of(buffer.value)
    is_shared = not (in_memory or batched or function.by_step)
    own = f"own_{buffer.name}" if is_shared else ""
    count = length(buffer.shape[1:] if batched else buffer.shape)
    return Total(buffer.name, of, in_memory, count, begun, batched, own)


def _sums(function: FunctionOverTime) -> tuple[RowSum, ...]:
    stages = function.schedule.deferred.stages
    buffers = dict.fromkeys(b for stage in stages for b in summed_over_rows(stage))
    return tuple(
        RowSum(*function.place_of(b.value), length(b.shape), sums_of_groups(b)) for b in buffers
    )


def _steps_totals(function: FunctionOverTime) -> tuple[StepsTotal, ...]:
    """What each chunk of steps adds to the gradients of what is constant over time."""
    return tuple(
        StepsTotal(*function.place_of(value), f"deferred_{value.name}", row_length(value))
        for value in function.programs.contexts
    )


def _kept(function: FunctionOverTime) -> tuple[RowArray, ...]:
    """What the reverse part keeps for the deferred one."""
    return tuple(RowArray(f"{v.name}_time", row_length(v)) for v in function.programs.kept)


def _constants(function: FunctionOverTime) -> tuple[RowArray, ...]:
    """What is the same at every step and has a row for each of the batch.

    The deferred part reads it over many steps, from copies for each of a chunk.
    """
    storage = function.schedule.deferred.storage.items()
    values = [b.value for b, place in storage if place is Storage.CONSTANT]
    return tuple(
        RowArray(f"rows_{v.name}", row_length(v), str(v.name)) for v in values if v.is_batched
    )
