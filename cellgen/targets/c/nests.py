"""Spell nests in C: loops over rows and several inner axes, with sums along any of them.

Input: a planned loop with ``axes``. Output: lines of C by their place in the nest. The last axis is
the loop that vectors go along; what lacks it is read once, or added up, in the loop around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sympy import Expr

from cellgen.language.value import Value
from cellgen.schedule.schedule import Line, Load, Loop, Store, Walk
from cellgen.targets.c_expressions import c_axis, c_expression, c_factor

INDENT = "    "


@dataclass(frozen=True)
class Level:
    """One loop within a row: its length, what begins and ends each of its turns."""

    length: str = ""
    start: list[str] = field(default_factory=list)
    end: list[str] = field(default_factory=list)


class NestWriter:
    """Spells one nest. Level 0 is the row; the loop over the last axis has no level of its own."""

    def __init__(self, loop: Loop, pointers: Callable[[Value], str]) -> None:
        self.loop, self.pointers = loop, pointers
        self.levels = [Level(), *(Level(c_axis(axis)) for axis in loop.axes[:-1])]
        self.body: list[str] = []
        self.sums: list[str] = []

    def load(self, load: Load, row: str, address: str) -> None:
        """Declare a value that differs along some axes."""
        walk, name = load.walk, load.value.name
        assert walk is not None
        pointer = self.pointers(load.value)
        self.levels[0].start.append(f"const real *{pointer} = {row if walk.rows else address};")
        line = f"const real {name} = {self._element(pointer, walk)};"
        if walk.strides[-1] != 0:
            self.body.append(line)
        else:
            self.levels[_depth(walk)].start.append(line)

    def write(self, line: Line, value: Expr, row: str, address: str, condition: str) -> None:
        """Store a value at each place of the nest."""
        assert line.walk is not None
        pointer, name = self.pointers(line.statement.target), line.statement.target.name
        self.levels[0].start.append(f"real *{pointer} = {row if line.walk.rows else address};")
        place = f"{condition}{self._element(pointer, line.walk)}"
        if line.used:
            self.body += [f"const real {name} = {c_expression(value)};", f"{place} = {name};"]
        else:
            self.body.append(f"{place} = {c_expression(value)};")

    def add(self, line: Line, value: Expr, row: str, count: str) -> None:
        """Add up along the axes that the target lacks.

        Sums within a row begin here; those over rows go on from what their pointer, or local, has.
        """
        walk, target = line.walk, line.statement.target
        assert walk is not None
        pointer, name, term = self.pointers(target), target.name, c_expression(value)
        if line.store is Store.ADD_ALL:
            self.sums.append(str(name))
            self.body.append(f"{name} += {term};")
            return
        in_row = line.store is Store.ADD_UNITS
        if in_row:
            self.levels[0].start.append(f"real *{pointer} = {row};")
        place, depth = self._element(pointer, walk), _depth(walk)
        kept = all(stride != 0 for stride in walk.strides[:depth])
        direct = in_row and kept and walk.strides[-1] == 0
        if in_row and not direct:
            self.levels[0].start.append(zeroed(pointer, count))
        if walk.strides[-1] != 0:
            self.body.append(f"{place} += {term};")
            return
        self.sums.append(str(name))
        self.levels[depth].start.append(f"real {name} = 0;")
        self.levels[depth].end.append(f"{place} {'=' if direct else '+='} {name};")
        self.body.append(f"{name} += {term};")

    def local(self, line: Line, value: Expr) -> None:
        """Give a value a name inside the nest."""
        self.body.append(f"const real {line.statement.target.name} = {c_expression(value)};")

    def opened(self) -> list[str]:
        """The loops around the last one, and what begins their turns."""
        lines: list[str] = []
        for number, level in enumerate(self.levels[1:], start=1):
            index = f"axis{number}"
            lines.append(
                f"{INDENT * (number - 1)}"
                f"for (int64_t {index} = 0; {index} < {level.length}; ++{index}) {{"
            )
            lines += [f"{INDENT * number}{text}" for text in level.start]
        return lines

    def closed(self) -> list[str]:
        """What ends the turns of the loops around the last one, from the innermost."""
        lines: list[str] = []
        for number in range(len(self.levels) - 1, 0, -1):
            lines += [f"{INDENT * number}{text}" for text in self.levels[number].end]
            lines.append(f"{INDENT * (number - 1)}}}")
        return lines

    def _element(self, pointer: str, walk: Walk) -> str:
        indices = [f"axis{n}" for n in range(1, len(walk.strides))] + ["unit"]
        terms = [
            index if stride == 1 else f"{index} * {c_factor(stride)}"
            for index, stride in zip(indices, walk.strides, strict=True)
            if stride != 0
        ]
        return f"{pointer}[{' + '.join(terms) or '0'}]"


def zeroed(pointer: str, count: str) -> str:
    """Spell what sets a sum of several entries to zero."""
    return f"for (int64_t unit = 0; unit < {count}; ++unit) {pointer}[unit] = 0;"


def entries(walk: Walk, axes: Sequence[Expr]) -> str:
    """Spell how many entries of a row a target has."""
    own = [a for a, stride in zip(axes, walk.strides, strict=True) if stride != 0]
    return " * ".join(map(c_factor, own)) or "1"


def read_lengths(loop: Loop) -> list[Expr]:
    """What a nest's indices and lengths are made of."""
    walks = [load.walk for load in loop.loads] + [line.walk for line in loop.lines]
    strides = [stride for walk in walks if walk is not None for stride in walk.strides]
    return [*loop.axes, *strides]


def _depth(walk: Walk) -> int:
    """The level of the last axis along which an array differs, the loop over the last one aside."""
    return max((n for n, s in enumerate(walk.strides[:-1], start=1) if s != 0), default=0)
