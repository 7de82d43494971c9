"""Spell loops over rows and units in C; what steps and sequences have in common.

Input: planned loops. Output: lines of C by their place in the nest. Subclasses say where arrays
lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cellgen.printer import c_axis, c_expression, c_factor
from cellgen.schedule import Access, Kind, Load, Loop, Routine, Store
from cellgen.schedule.plan import Line, View, describe
from cellgen.value import Role, Value


@dataclass(frozen=True)
class LoopLines:
    """The lines of one loop nest: before it, in each row, in each unit, after a row, after it.

    ``down``: from the last row to the first.
    """

    comments: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    row_start: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    row_end: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    down: bool = False


TileRow = Callable[[View], str | None]
"""Where a view lies in the tile of a group, or None for memory."""


def routine_call(stage: Routine, rows: str, a: str, a_row: str, y: str, y_row: str) -> str:
    """Spell a routine of ``cellgen_rows.h`` over rows that begin at ``a`` and ``y``."""
    by_row, by_head, by_unit = stage.walk
    units = c_axis(stage.units)
    walks = [a_row if by_row else "0"]
    if stage.op == "spread":
        walks.append((units if by_unit else "1") if by_head else "0")
        walks.append("1" if by_unit else "0")
    arguments = [rows, c_axis(stage.heads), units, a, *walks, y, y_row]
    return f"cg_{stage.op}({', '.join(arguments)})"


class LoopWriter:
    """Spells loops; ``first`` is added to every pointer to units, for shares of a row."""

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

    def end_total(self, line: Line) -> str:
        """Store a sum over everything after the loop."""
        raise NotImplementedError

    def loop(self, loop: Loop, tile_row: TileRow = lambda view: None) -> LoopLines:
        """Spell one planned loop."""
        lines = LoopLines(comments_of(loop.lines))
        for load in loop.loads:
            self._load(load, tile_row, lines, has_rows=len(loop.space) == 2)
        for line in loop.lines:
            if line.view is not None:
                self._store(line, line.view, lines, has_rows=len(loop.space) == 2)
            lines.body.extend(self._line(line, "unit" if loop.space else "0"))
        return lines

    def _load(self, load: Load, tile_row: TileRow, lines: LoopLines, *, has_rows: bool) -> None:
        name, pointer = load.value.name, self.pointers[load.value]
        in_tile = tile_row(load.view)
        if in_tile is not None:
            lines.row_start.append(f"const real *{pointer} = {in_tile};")
            lines.body.append(f"const real {name} = {pointer}[unit];")
        elif load.view.buffer.kind is Kind.SCALAR:
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
            lines.before.extend(self.begin_total(line, pointer))
        elif line.store is Store.ADD_UNITS:
            lines.row_start.append(f"real {name} = 0;")
            lines.row_end.append(f"*({self.row(view)}) = {name};")
        else:
            lines.before.append(f"real {name} = 0;")
            lines.after.append(self.end_total(line))

    def _line(self, line: Line, unit: str) -> list[str]:
        name, value = line.statement.target.name, c_expression(line.statement.expression)
        pointer = self.pointers[line.statement.target]
        if line.store is Store.LOCAL:
            return [f"const real {name} = {value};"]
        if line.store is Store.WRITE:
            if line.used:
                return [f"const real {name} = {value};", f"{pointer}[{unit}] = {name};"]
            return [f"{pointer}[{unit}] = {value};"]
        if line.store is Store.ADD_ROWS:
            return [f"{pointer}[{unit}] += {value};"]
        return [f"{name} += {value};"]


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
