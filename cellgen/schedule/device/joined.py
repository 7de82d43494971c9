"""See loops and products over joined values as slots of the values that are joined.

Input: what a part does in every step. Output: the same, where a width that is a multiple of another
one, as four gates side by side are of a state, is so many slots of that one: a thread then has a
unit with all of its slots. A sum over the units of all is one of each slot's, added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sympy import Add, Expr, Integer, expand

from cellgen.language.names import Names
from cellgen.language.value import Value
from cellgen.program.ssa import Statement
from cellgen.schedule.device.stages import DeviceLoop, DeviceProduct, StepStage
from cellgen.schedule.schedule import Access, Line, Load, Store, View


def in_slots(stages: Sequence[StepStage]) -> tuple[StepStage, ...]:
    """Split what goes over joined values; the same stages where nothing does, or one cannot be."""
    widths = {expand(width) for stage in stages for width in _widths(stage)}
    counts = {width: count for width in widths if (count := _slots_of(width, widths)) > 1}
    splitter = _Splitter(Names(str(value.name) for stage in stages for value in _values(stage)))
    split = [splitter.stage(stage, counts) for stage in stages]
    if not counts or None in split:
        return tuple(stages)
    return tuple(stage for stage in split if stage is not None)


def _widths(stage: StepStage) -> Iterator[Expr]:
    """The units that a stage goes over, where it has any."""
    if isinstance(stage, DeviceLoop) and stage.loop.space:
        yield stage.loop.space[-1]
    elif isinstance(stage, DeviceProduct) and stage.heads is None:
        yield stage.width


def _slots_of(width: Expr, widths: set[Expr]) -> int:
    """How many times another width a width is; 1 where it is no multiple of one."""
    count, other = width.as_coeff_Mul()
    is_multiple = isinstance(count, Integer) and other != 1 and other in widths
    return int(count) if is_multiple else 1


def _values(stage: StepStage) -> Iterator[Value]:
    """The values that a stage has names of."""
    if isinstance(stage, DeviceLoop):
        yield from (load.value for load in stage.loop.loads)
        yield from (line.statement.target for line in stage.loop.lines)


@dataclass
class _Splitter:
    """Splits stages; a part of a value has one name in all of them."""

    names: Names
    parts: dict[tuple[Value, int], Value] = field(default_factory=dict)

    def stage(self, stage: StepStage, counts: Mapping[Expr, int]) -> StepStage | None:
        """Split a stage; None where it reads units that are not its own."""
        width = next(_widths(stage), None)
        count = counts.get(expand(width), 1) if width is not None else 1
        if count == 1 or width is None:
            return stage
        if isinstance(stage, DeviceLoop):
            return self._loop(stage, width / count, count)
        assert isinstance(stage, DeviceProduct)
        targets = (_part(view, n, width / count) for view in stage.targets for n in range(count))
        return replace(stage, width=width / count, targets=tuple(targets))

    def _loop(self, stage: DeviceLoop, width: Expr, count: int) -> DeviceLoop | None:
        loop = stage.loop
        whole = {Access.ROW, Access.SCALAR}
        split = [load for load in loop.loads if load.access not in whole]
        if any(load.access not in (Access.ELEMENT, Access.UNIT) for load in split):
            return None
        if any(stage.places[load.view.buffer].kept is not None for load in split):
            return None
        several = {load.value for load in split}
        several |= {x.statement.target for x in loop.lines if x.store is not Store.ADD_UNITS}
        renamed = [
            {value: self._value(value, number, width) for value in several}
            for number in range(count)
        ]
        loads = [load for load in loop.loads if load.access in whole]
        for load in split:
            loads += [
                Load(new[load.value], _part(load.view, number, width), load.access)
                for number, new in enumerate(renamed)
            ]
        lines = [part for line in loop.lines for part in _lines(line, renamed, width)]
        space = (*loop.space[:-1], width)
        own = replace(loop, space=space, loads=tuple(loads), lines=tuple(lines))
        return replace(stage, loop=own, kernels=())

    def _value(self, value: Value, number: int, width: Expr) -> Value:
        if (value, number) not in self.parts:
            name, shape = self.names.fresh(f"{value.name}_{number}"), (*value.shape[:-1], width)
            self.parts[value, number] = Value(name, shape, value.role, value.owner, value.order)
        return self.parts[value, number]


def _part(view: View, number: int, width: Expr) -> View:
    """A slot of a view."""
    return view.part(len(view.shape) - 1, number * width, width)


def _lines(line: Line, renamed: Sequence[Mapping[Value, Value]], width: Expr) -> Iterator[Line]:
    """A line for each slot; of a sum over units, one that adds up the terms of all."""
    statement = line.statement
    terms = [statement.expression.xreplace(dict(new)) for new in renamed]
    if line.store is Store.ADD_UNITS:
        yield replace(line, statement=Statement(statement.target, Add(*terms)))
        return
    for number, (new, term) in enumerate(zip(renamed, terms, strict=True)):
        view = _part(line.view, number, width) if line.view is not None else None
        yield replace(line, statement=Statement(new[statement.target], term), view=view)
