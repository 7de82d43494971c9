"""Spell loops over rows and units in C; what steps and sequences have in common.

Input: planned loops. Output: lines of C by their place in the nest. Subclasses say where arrays
lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sympy import Expr, Mul

from cellgen.language.notation import order_key
from cellgen.language.value import Role, Value
from cellgen.schedule import Access, BufferKind, Load, Loop, Routine, Store
from cellgen.schedule.schedule import Line, View, describe
from cellgen.targets.c.nests import NestWriter, entries
from cellgen.targets.c_expressions import c_axis, c_expression, c_factor


@dataclass(frozen=True)
class LoopLines:
    """The lines of one loop nest: before it, in each row, in each unit, after a row, after it.

    ``down``: from the last row to the first; ``sums``: locals to which every unit adds. A nest has
    so many loops between a row and its units, ``depth``, ``opened`` and ``closed``, and so many
    units, ``width``; or it is a ``product`` of each row, in place of these.
    """

    comments: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    row_start: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    row_end: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    product: list[str] = field(default_factory=list)
    width: str = ""
    depth: int = 0
    down: bool = False

    @property
    def pad(self) -> str:
        """How much deeper the loop over units stands, within a nest."""
        return "    " * self.depth

    @property
    def pragma(self) -> str:
        """What stands before the loop over units."""
        return f"CELLGEN_SUMS({', '.join(self.sums)})" if self.sums else "CELLGEN_VECTORIZE"


LAST = 10**6
"""Where names of values that loops make stand in printed products: behind all others."""

TileRow = Callable[[View], str | None]
"""Where a view lies in the tile of a group, or None for memory."""


RowsAt: TypeAlias = tuple[str, str]
"""Where rows begin, and how far each lies from the next."""


def routine_call(stage: Routine, rows: str, operands: Iterable[RowsAt], target: RowsAt) -> str:
    """Spell a routine over rows: of ``cellgen_rows.h`` or ``cellgen_running.h``."""
    lengths = [c_axis(length) for length in (stage.heads, stage.units, stage.after)]
    read = [text for at, row in operands for text in (at, row if stage.by_row else "0")]
    return f"cg_{stage.row.name}({', '.join([rows, *lengths, *read, *target])})"


class LoopWriter:
    """Spells loops; ``first`` is added to every pointer to units, for partitions of a row."""

    first = ""
    pointers: Mapping[Value, str]

    def address(self, view: View) -> str:
        """Spell the address of a view's first element."""
        raise NotImplementedError

    def row(self, view: View) -> str:
        """Spell the address of a view in the current row."""
        raise NotImplementedError

    def begin_total(self, line: Line, pointer: str) -> list[str]:
        """Prepare a sum over rows before the loop."""
        raise NotImplementedError

    def sum_of_all(self, line: Line, lines: LoopLines) -> None:
        """Begin and store a sum over everything, which a local of its name holds."""
        raise NotImplementedError

    def condition(self, view: View) -> str:
        """Spell the condition on which a place is written: ``if (...) ``, or nothing."""
        return ""

    def loop(self, loop: Loop, tile_row: TileRow = lambda view: None) -> LoopLines:
        """Spell one planned loop."""
        lines = LoopLines(comments_of(loop.lines))
        for load in loop.loads:
            if load.access is not Access.AXES:
                self._load(load, tile_row, lines, has_rows=len(loop.space) == 2)
        expressions = self._expressions(loop, lines)
        if loop.is_nest:
            return self._nest(loop, expressions, lines)
        for line, expression in zip(loop.lines, expressions, strict=True):
            if line.view is not None:
                self._store(line, line.view, lines, has_rows=len(loop.space) == 2)
            lines.body.extend(self._line(line, expression, "unit" if loop.space else "0"))
        return lines

    def _nest(self, loop: Loop, expressions: Sequence[Expr], lines: LoopLines) -> LoopLines:
        """Spell a loop whose inner axes are told apart."""
        nest = NestWriter(loop, self.pointers.__getitem__)
        for load in loop.loads:
            if load.access is Access.AXES:
                nest.load(load, *self._starts(load.view))
        for line, expression in zip(loop.lines, expressions, strict=True):
            if line.view is None:
                nest.local(line, expression)
            elif line.store is Store.WRITE:
                nest.write(line, expression, *self._starts(line.view), self.condition(line.view))
            else:
                self._begin_sum(line, lines)
                assert line.walk is not None
                in_row = line.store is Store.ADD_UNITS
                row = self.row(line.view) if in_row else ""
                nest.add(line, expression, row, entries(line.walk, loop.axes))
        first, *_ = nest.levels
        lines.row_start.extend(first.start)
        return replace(
            lines,
            body=nest.body,
            row_end=[*first.end, *lines.row_end],
            sums=nest.sums,
            opened=nest.opened(),
            closed=nest.closed(),
            width=c_axis(loop.axes[-1]),
            depth=len(loop.axes) - 1,
        )

    def _starts(self, view: View) -> tuple[str, str]:
        """Where a view begins in the current row, and where it begins at all."""
        return self.row(view), self.address(view)

    def _begin_sum(self, line: Line, lines: LoopLines) -> None:
        """Begin a sum over rows, or over everything."""
        if line.store is Store.ADD_ROWS:
            lines.before.extend(self.begin_total(line, self.pointers[line.statement.target]))
        elif line.store is Store.ADD_ALL:
            self.sum_of_all(line, lines)

    def _expressions(self, loop: Loop, lines: LoopLines) -> list[Expr]:
        expressions, inverses = self.inverted(loop)
        lines.row_start.extend(inverses)
        return expressions

    def inverted(self, loop: Loop) -> tuple[list[Expr], list[str]]:
        """The expressions of a loop, and what divides all units of a row inverted before them."""
        expressions = [line.statement.expression for line in loop.lines]
        if not loop.space or loop.space[-1] == 1:
            return expressions, []
        fixed = {load.value for load in loop.loads if is_fixed(load)}
        inverses = Inverses(fixed, expressions)
        lines = [f"const real {n} = {c_expression(value)};" for value, n in inverses.names.items()]
        return [inverses.used_in(expression) for expression in expressions], lines

    def _load(self, load: Load, tile_row: TileRow, lines: LoopLines, *, has_rows: bool) -> None:
        name, pointer = load.value.name, self.pointers[load.value]
        in_tile = tile_row(load.view)
        if in_tile is not None:
            lines.row_start.append(f"const real *{pointer} = {in_tile};")
            lines.body.append(f"const real {name} = {pointer}[unit];")
        elif load.view.buffer.kind is BufferKind.SCALAR:
            return  # a local of the function already
        elif load.access is Access.SCALAR:
            lines.row_start.append(f"const real {name} = *({self.address(load.view)});")
        elif load.access is Access.ROW:
            lines.row_start.append(f"const real {name} = *({self.row(load.view)});")
        elif load.access is Access.COLUMN:
            lines.row_start.append(f"const real *{pointer} = {self.address(load.view)} + row;")
            lines.body.append(
                f"const real {name} = {pointer}[unit * {c_factor(load.view.row_stride)}];"
            )
        else:
            by_row = load.access is Access.ELEMENT and has_rows
            start = self.row(load.view) if by_row else self.address(load.view)
            lines.row_start.append(f"const real *{pointer} = {start}{self.first};")
            lines.body.append(f"const real {name} = {pointer}[unit];")

    def _store(self, line: Line, view: View, lines: LoopLines, *, has_rows: bool) -> None:
        name, pointer = line.statement.target.name, self.pointers[line.statement.target]
        if line.store is Store.WRITE:
            start = self.row(view) if has_rows and len(view.shape) == 2 else self.address(view)
            lines.row_start.append(f"real *{pointer} = {start}{self.first};")
        elif line.store is Store.ADD_ROWS:
            self._begin_sum(line, lines)
        elif line.store is Store.ADD_UNITS:
            lines.sums.append(name)
            lines.row_start.append(f"real {name} = 0;")
            lines.row_end.append(f"*({self.row(view)}) = {name};")
        else:
            lines.sums.append(name)
            self._begin_sum(line, lines)

    def _line(self, line: Line, expression: Expr, unit: str) -> list[str]:
        name, value = line.statement.target.name, c_expression(expression)
        pointer = self.pointers[line.statement.target]
        if line.store is Store.LOCAL:
            return [f"const real {name} = {value};"]
        if line.store is Store.WRITE:
            assert line.view is not None
            written = f"{self.condition(line.view)}{pointer}[{unit}]"
            if line.used:
                return [f"const real {name} = {value};", f"{written} = {name};"]
            return [f"{written} = {value};"]
        if line.store is Store.ADD_ROWS:
            return [f"{pointer}[{unit}] += {value};"]
        return [f"{name} += {value};"]


def is_fixed(load: Load) -> bool:
    """Whether a value is one number for all units of a row."""
    scalar = load.view.buffer.kind is BufferKind.SCALAR
    return scalar or load.access in (Access.SCALAR, Access.ROW)


class Inverses:
    """What divides every unit of a row, inverted once a row.

    A product for each unit instead of a division. It rounds once more (within 1.5 ulp), and the
    inverse must be an ordinary number: a divisor below 3e-39 in float32 (6e-309 in float64) has
    none, and 0 / s is NaN there.
    """

    def __init__(self, fixed: Iterable[Value], expressions: Iterable[Expr]) -> None:
        self.fixed = frozenset(fixed)
        divisors = {below for expression in expressions for below in self._found_in(expression)}
        self.names: dict[Expr, Value] = {}
        for count, value in enumerate(sorted(divisors, key=order_key), start=1):
            name = f"inverse{count}"
            self.names[value] = Value(name, (1,), Role.TEMPORARY, order=LAST + count)

    def used_in(self, expression: Expr) -> Expr:
        """Return an expression with its divisions by what is fixed in a row as products."""
        if not expression.args:
            return expression
        below = self._below(expression)
        above = [self.used_in(part) for part in expression.args if part not in below]
        if below:
            return Mul(self.names[Mul(*below)], *above)
        return expression if above == list(expression.args) else expression.func(*above)

    def _found_in(self, expression: Expr) -> Iterator[Expr]:
        below = self._below(expression)
        if below:
            yield Mul(*below)
        for part in expression.args:
            yield from self._found_in(part)

    def _below(self, expression: Expr) -> list[Expr]:
        """The fixed factors that a product which is not fixed itself is divided by."""
        if not expression.is_Mul or self._is_fixed(expression):
            return []
        return [part for part in expression.args if is_inverse(part) and self._is_fixed(part)]

    def _is_fixed(self, expression: Expr) -> bool:
        return bool(expression.atoms(Value) <= self.fixed)


def is_inverse(factor: Expr) -> bool:
    """Whether a factor is divided by."""
    return bool(factor.is_Pow) and bool(factor.exp.is_Number) and bool(factor.exp < 0)


def comments_of(lines: Iterable[Line]) -> list[str]:
    """The equations of some lines of a loop, unnamed intermediates left out."""
    return [
        describe(line.origin)
        for line in lines
        if line.origin.target.role is not Role.TEMPORARY or line.store is not Store.LOCAL
    ]


def offset_of(view: View) -> str:
    """Spell how far a view's first element is from its buffer's: `` + nI * nH``, or nothing."""
    offset = ""
    if len(view.start) == 2:
        if view.start[0] != 0:
            offset += f" + {c_factor(view.start[0])} * {c_factor(view.row_stride)}"
        if view.start[1] != 0:
            offset += f" + {c_axis(view.start[1])}"
    elif view.start and view.start[0] != 0:
        offset += f" + {c_axis(view.start[0])}"
    return offset


def column_of(view: View) -> str:
    """Spell how far a view's first column is from its buffer's."""
    has_column = len(view.start) == 2 and view.start[1] != 0
    return f" + {c_axis(view.start[1])}" if has_column else ""
