"""Derivatives unit by unit: how values of a step follow single units of some of its arguments.

Input: a program, and sources among its arguments. Output: for every value the ways in which it
reads sources, each with its slope, as long as each of its units reads one unit of the source; and
where that ends, the statement that mixes units. Slopes are statements of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import shape_of, zeros_like
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.branches import Branches
from cellgen.program.ssa import Program, Statement

SLOPE_ORDER = 20_000_000
"""Slopes print behind all that an author named."""

FIRST = Integer(0)


@dataclass(frozen=True)
class Way:
    """How a value reads a source: units from ``start`` on, laid along ``axes`` of the value.

    An axis of length 1 is read by all units along it. Where the value is joined of several, the
    last axis is a piece of it, from ``at`` on.
    """

    source: Value
    axes: Shape
    start: Expr = FIRST
    at: Expr | None = None


class OwnUnits:
    """Slopes of all values of a program by its sources, unit by unit.

    ``through`` gives slopes of a statement that mixes units by its own units of its first operand:
    of each of the blocks that it forms side by side, or nothing where they do not count.
    ``called`` names sources in the names of slopes.
    """

    def __init__(
        self,
        program: Program,
        sources: Iterable[Value],
        through: Callable[[Statement], Sequence[Value]] = lambda statement: (),
        called: Mapping[Value, str] | None = None,
    ) -> None:
        self.names = Names(str(value.name) for value in program.values)
        self.branches = Branches(program.statements)
        self.through = through
        self.called = called or {}
        self.statements: list[Statement] = []
        self.ways: dict[Value, dict[Way, Expr]] = {v: {} for v in program.arguments}
        self.mixed: dict[Value, dict[Value, Statement]] = {v: {} for v in program.arguments}
        """By value and source: the statement that mixes units of the source on its way."""
        for source in sources:
            self.ways[source] = {Way(source, source.shape[1:]): Integer(1)}
            self.mixed[source] = {}
        self.written = {
            s.expression: s.target
            for s in program.statements
            if s.is_pointwise and s.expression.args
        }
        for statement in program.statements:
            self._follow(statement)

    def _follow(self, statement: Statement) -> None:
        target = statement.target
        self.mixed[target] = {}
        if statement.is_pointwise:
            self._pointwise(statement)
        elif statement.traits.is_part:
            self.ways[target] = dict(self._parts(statement))
        elif statement.traits.is_join:
            self.ways[target] = dict(self._joined(statement))
        elif statement.traits.is_reshape:
            self.ways[target] = dict(self._reshaped(statement))
        elif statement.traits.is_still:
            self.ways[target] = {}
            return
        else:
            self._operator(statement)
        if not statement.is_pointwise:
            for operand in statement.operands:
                self.mixed[target] = {**self.mixed[operand], **self.mixed[target]}

    def _pointwise(self, statement: Statement) -> None:
        target, terms = statement.target, dict[Way, list[Expr]]()
        for operand in statement.operands:
            if not self.ways[operand] and not self.mixed[operand]:
                continue
            slope = self.branches.slope(statement.expression, operand).xreplace(self.written)
            if slope == 0:
                continue
            self.mixed[target] = {**self.mixed[operand], **self.mixed[target]}
            for way, own in self.ways[operand].items():
                by = slope
                if way.at is not None:
                    by = self._part_of(target, way, slope, way.at, way.axes[-1])
                terms.setdefault(way, []).append(self.branches.product(by, own))
        self.ways[target] = {
            way: self._named(target, way, sympy.Add(*summands)) for way, summands in terms.items()
        }

    def _parts(self, statement: Statement) -> Iterable[tuple[Way, Expr]]:
        """Part of a value along its last axis: other units of what it follows."""
        (operand,), (axis, start, size) = statement.operands, statement.expression.attributes
        for way, slope in self.ways[operand].items():
            if int(axis) != len(operand.shape) - 1:
                self.mixed[statement.target][way.source] = statement
            elif way.at is not None:
                if way.at == start and way.axes[-1] == size:
                    yield replace(way, at=None), slope
                elif not _lie_apart(way, start, size):
                    self.mixed[statement.target][way.source] = statement
            elif way.axes[-1] == 1:
                yield way, self._part_of(statement.target, way, slope, start, size)
            else:
                cut = replace(way, axes=(*way.axes[:-1], size), start=way.start + start)
                yield cut, self._part_of(statement.target, way, slope, start, size)

    def _part_of(self, target: Value, way: Way, slope: Expr, start: Expr, size: Expr) -> Expr:
        """Some units of a slope, unless all have one."""
        shape = shape_of(slope)
        if not shape or shape[-1] in (1, size):
            return slope
        whole = self._named(target, way, slope)
        axis = Integer(len(shape) - 1)
        return self._named(target, way, Apply("part", (whole,), (axis, start, size)))

    def _joined(self, statement: Statement) -> Iterable[tuple[Way, Expr]]:
        """Values side by side along their last axis: each keeps its units, from its place on."""
        at: Expr = Integer(0)
        axis = int(statement.expression.attributes[0])
        for operand in statement.operands:
            for way, slope in self.ways[operand].items():
                is_whole = way.at is None and way.axes[-1] == operand.shape[-1]
                if axis == len(operand.shape) - 1 and is_whole:
                    yield replace(way, at=at), slope
                else:
                    self.mixed[statement.target][way.source] = statement
            at += operand.shape[axis]

    def _reshaped(self, statement: Statement) -> Iterable[tuple[Way, Expr]]:
        """The same elements along other axes; what is read by many units stays where it is."""
        (operand,), target = statement.operands, statement.target
        for way, slope in self.ways[operand].items():
            axes = axes_along(operand.shape[1:], target.shape[1:], way.axes)
            if axes is None or way.at is not None:
                self.mixed[target][way.source] = statement
                continue
            own = slope
            if shape_of(slope):
                wide = slope if shape_of(slope) == operand.shape else slope + zeros_like(operand)
                wide = self._named(operand, way, wide)
                own = self._named(target, way, Apply("reshape", (wide,), target.shape))
            yield Way(way.source, axes, way.start), own

    def _operator(self, statement: Statement) -> None:
        target, first = statement.target, statement.operands[0]
        self.ways[target] = {}
        for operand in dict.fromkeys(statement.operands):
            for way in self.ways[operand]:
                self.mixed[target][way.source] = statement
        blocks, at = self.through(statement), Integer(0)
        for own in blocks:
            for way, slope in self.ways[first].items():
                if way.at is None:
                    product = self._named(target, way, self.branches.product(slope, own))
                    self.ways[target][replace(way, at=at if len(blocks) > 1 else None)] = product
            at += own.shape[-1]

    def _named(self, target: Value, way: Way, slope: Expr) -> Expr:
        """Give a slope that is more than a value or a number a statement of its own."""
        if isinstance(slope, Value) or slope.is_Number:
            return slope
        source = self.called.get(way.source, str(way.source.name))
        name = self.names.fresh(f"{target.name}_by_{source}")
        order = SLOPE_ORDER + len(self.statements)
        value = Value(name, shape_of(slope), Role.TANGENT, "", order)
        statement = Statement(value, slope)
        self.statements.append(statement)
        self.branches.learn(statement)
        return value


def _lie_apart(way: Way, start: Expr, size: Expr) -> bool:
    """Whether a piece of a joined value and a part of it have no unit in common."""
    after = (start - (way.at + way.axes[-1])).as_coefficients_dict().values()
    before = (way.at - (start + size)).as_coefficients_dict().values()
    return all(c >= 0 for c in after) or all(c >= 0 for c in before)


def axes_along(old: Shape, new: Shape, axes: Shape) -> Shape | None:
    """Where axes that lie along old units lie along the same units in another shape."""
    if axes == old:
        return new
    kept = tuple(axis for axis in new if axis != 1)
    if kept != tuple(axis for axis in old if axis != 1) or len(axes) != len(old):
        return None
    lying = iter(own for own, axis in zip(axes, old, strict=True) if axis != 1)
    return tuple(axis if axis == 1 else next(lying) for axis in new)
