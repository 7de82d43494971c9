"""Make one loop of several, and leave out what need not lie in memory between them.

Input: loops that go through strips together, in order. Output: fewer loops, which read and write
less. Arrays of a step that nothing else touches are ``own``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from cellgen.language.value import Shape, Value
from cellgen.program.cost import KEEPING, cost_of
from cellgen.program.ssa import Statement
from cellgen.schedule.lower.touches import are_apart, go_together, in_vectors
from cellgen.schedule.schedule import Buffer, Line, Load, Loop, Store


def condensed(loops: Sequence[Loop], axes: Shape, own: Collection[Buffer]) -> tuple[Loop, ...]:
    """Merge what hands on entry by entry, form again what is cheap, keep the rest of it local."""
    merged = list(loops)
    while (pair := _next_pair(merged, axes)) is not None:
        first, second, at = pair
        one = _merged(merged[first], merged[second])
        merged = [loop for n, loop in enumerate(merged) if n not in (first, second)]
        merged.insert(at, one)
    merged = [_forming_again(merged, number, axes, own) for number in range(len(merged))]
    read = {load.view.buffer for loop in merged for load in loop.loads}
    local = [_local(loop, set(own) - read) for loop in merged]
    return tuple(loop for loop in local if loop.lines)


def _next_pair(loops: Sequence[Loop], axes: Shape) -> tuple[int, int, int] | None:
    """Two nests that may be one, and the place of that among the others."""
    for second in range(len(loops)):
        for first in range(second):
            if not _may_merge(loops[first], loops[second], axes):
                continue
            between = loops[first + 1 : second]
            if all(are_apart(other, loops[second]) for other in between):
                return first, second, first
            if all(are_apart(loops[first], other) for other in between):
                return first, second, second - 1
    return None


def _may_merge(first: Loop, second: Loop, axes: Shape) -> bool:
    """Whether each entry of the second needs of the first only what that has of this entry."""
    if first.axes != axes or second.axes != axes or not go_together(first, second, axes):
        return False
    sums = {line.view.buffer for line in first.lines if line.store is Store.ADD_UNITS and line.view}
    read = {load.view.buffer for load in second.loads}
    return not sums & read and in_vectors(first, axes) == in_vectors(second, axes)


def _merged(first: Loop, second: Loop) -> Loop:
    formed = {
        line.view.buffer: line.statement.target
        for line in first.lines
        if line.store is Store.WRITE and line.view is not None
    }
    swap = {
        load.value: formed[load.view.buffer] for load in second.loads if load.view.buffer in formed
    }
    loads = {load.value: load for load in (*first.loads, *second.loads) if load.value not in swap}
    lines = (*first.lines, *(_swapped(line, swap) for line in second.lines))
    return _tidy(replace(first, loads=tuple(loads.values()), lines=lines))


def _forming_again(
    loops: Sequence[Loop], number: int, axes: Shape, own: Collection[Buffer]
) -> Loop:
    """Form in a nest what an earlier one has formed cheaply of what lies in memory."""
    loop = loops[number]
    earlier = [before for before in loops[:number] if before.axes == axes]
    for load in loop.loads:
        if load.view.buffer not in own:
            continue
        for before in earlier:
            line = next((line for line in before.lines if _writes(line, load.view.buffer)), None)
            if line is None:
                continue
            needed = _needed(line, before, loop)
            if sum(cost_of(item.statement) for item in needed) <= KEEPING:
                loop = _with(loop, needed, load, line.statement.target, before.loads)
    return loop


def _needed(line: Line, before: Loop, loop: Loop) -> list[Line]:
    """The lines of an earlier loop that form a value, in order, but for what a loop has."""
    known = {item.statement.target for item in loop.lines}
    values, needed = {line.statement.target}, list[Line]()
    for item in reversed(before.lines):
        if item.statement.target in values - known:
            needed.insert(0, item)
            values.update(item.statement.operands)
    return needed


def _writes(line: Line, buffer: Buffer) -> bool:
    return line.store is Store.WRITE and line.view is not None and line.view.buffer == buffer


def _with(
    loop: Loop, formed: Sequence[Line], load: Load, value: Value, earlier: Iterable[Load]
) -> Loop:
    """Form a value by some lines in a loop that reads it from memory."""
    again = [replace(line, store=Store.LOCAL, view=None, walk=None) for line in formed]
    rest = [_swapped(item, {load.value: value}) for item in loop.lines]
    own = {item.statement.target for item in (*formed, *loop.lines)}
    loads = {item.value: item for item in (*earlier, *loop.loads) if item.value not in own}
    return _tidy(replace(loop, loads=tuple(loads.values()), lines=_ordered([*again, *rest])))


def _ordered(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Put lines behind those that they read."""
    left, ordered = list(lines), list[Line]()
    while left:
        waiting = {line.statement.target for line in left}
        line = next(line for line in left if not waiting & {*line.statement.operands})
        left.remove(line)
        ordered.append(line)
    return tuple(ordered)


def _local(loop: Loop, unread: Collection[Buffer]) -> Loop:
    """Write nothing that is not read."""
    lines = tuple(
        replace(line, store=Store.LOCAL, view=None, walk=None)
        if line.store is Store.WRITE and line.view and line.view.buffer in unread
        else line
        for line in loop.lines
    )
    return _tidy(replace(loop, lines=lines))


def _swapped(line: Line, swap: dict[Value, Value]) -> Line:
    statement = line.statement
    return replace(line, statement=Statement(statement.target, statement.expression.xreplace(swap)))


def _tidy(loop: Loop) -> Loop:
    """Leave out values that no line reads; say which ones are read."""
    lines: list[Line] = []
    read: set[Value] = set()
    for line in reversed(loop.lines):
        used = line.statement.target in read
        if line.store is Store.LOCAL and not used:
            continue
        read.update(line.statement.expression.atoms(Value))
        lines.insert(0, replace(line, used=used))
    loads = [load for load in loop.loads if load.value in read]
    ordered = sorted(loads, key=lambda load: (load.value.order, str(load.value)))
    return replace(loop, loads=tuple(ordered), lines=tuple(lines))
