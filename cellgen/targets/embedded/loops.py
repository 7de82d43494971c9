"""Spell stages as plain loops with constant bounds, an equation above each.

Input: functions of an export and where their arrays lie. Output: lines of C99. Indices are ``row``
(of the batch), ``unit``, ``depth`` (of what a product sums over), ``head``, ``axis1``, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Mul

from cellgen.language.ops import Form
from cellgen.language.value import Role
from cellgen.program.interpret import axis_size
from cellgen.schedule import Access, Buffer, Load, Loop, Product, Routine, Store
from cellgen.schedule.schedule import Line, Stage, View, describe
from cellgen.targets.embedded.request import ExportRequest
from cellgen.targets.embedded.spelling import NotationC99

INDENT = "    "
ONE = Integer(1)
WEIGHTS = "weights"
"""The struct of what learns, numbers too."""
LANES = 4
"""Sums that a product forms at a time: their common operand is read once."""


@dataclass(frozen=True)
class StructMember:
    """Where an array lies: a member of a struct, ``weights->w``."""

    struct: str
    name: str

    def __str__(self) -> str:
        return f"{self.struct}->{self.name}"


StructPlace = Callable[[Buffer], StructMember]
"""Where each array lies."""


class StageWriter:
    """Spells the stages of functions. What lies in ``sums`` is added to and begins elsewhere."""

    def __init__(
        self,
        request: ExportRequest,
        notation: NotationC99,
        place: StructPlace,
        sums: frozenset[Buffer] = frozenset(),
    ) -> None:
        self.dtype, self.notation, self.place, self.sums = request.dtype, notation, place, sums
        self.sizes, self.lengths = request.sizes, notation.lengths

    def function(self, stages: Sequence[Stage]) -> list[str]:
        """Spell all stages of a function."""
        lines: list[str] = []
        for stage in stages:
            lines += ["", *self.stage(stage)] if lines else self.stage(stage)
        return lines

    def stage(self, stage: Stage) -> list[str]:
        """Spell one stage, its equations first."""
        if isinstance(stage, Product):
            return [f"/* {describe(stage.statement)} */", *self._product(stage)]
        if isinstance(stage, Routine):
            return [f"/* {describe(stage.statement)} */", self._routine(stage)]
        equations = [describe(line.origin) for line in stage.lines if _is_told(line)]
        return [*_comment(equations), *self._loop(stage)]

    # --- products ---------------------------------------------------------------------------

    def _product(self, stage: Product) -> list[str]:
        rows, columns = stage.target.shape
        inner = stage.a.shape[0] if stage.is_outer else stage.a.shape[1]
        if stage.heads is not None:
            first, second = stage.weights
            inner, columns = (second, first) if stage.is_transposed else (first, second)
            if stage.is_outer:
                rows, inner = first, stage.a.shape[0]
        loops = [self._for("head", stage.heads)] if stage.heads is not None else []
        loops.append(self._for("row", rows))
        width = LANES if self._is_wide(columns, inner) else 1
        loops.append(self._for("unit", columns, width))
        return _nested(loops, self._terms(stage, inner, width))

    def _is_wide(self, columns: Expr, inner: Expr) -> bool:
        """Whether several sums at a time, which share an operand, are worth their code."""
        count, terms = (axis_size(axis, self.sizes) for axis in (columns, inner))
        return count % LANES == 0 and terms > 1

    def _terms(self, stage: Product, inner: Expr, width: int) -> list[str]:
        """So many entries of a product, each one sum in the order of ``depth``."""
        shifts = _shifts(stage)
        by_rows = ("depth", "row") if stage.is_outer else ("row", "depth")
        a = self._entry(stage, stage.a, by_rows, shifts[0])
        rights, results = [], []
        for lane in range(width):
            unit = f"(unit + {lane})" if lane else "unit"
            by = (unit, "depth") if stage.is_transposed else ("depth", unit)
            rights.append(self._entry(stage, stage.b, by, shifts[1]))
            results.append(self._entry(stage, stage.target, ("row", unit), shifts[2]))
        adds = stage.accumulate or stage.target.buffer in self.sums
        names = [f"term{lane}" for lane in range(width)] if width > 1 else ["term"]
        body = [
            f"{self.dtype} {name} = {to if adds else 0};"
            for name, to in zip(names, results, strict=True)
        ]
        if width == 1:
            body += [self._for("depth", inner), f"{INDENT}term += {a} * {rights[0]};"]
        else:
            body += [f"{self._for('depth', inner)} {{", f"{INDENT}const {self.dtype} left = {a};"]
            body += [
                f"{INDENT}{name} += left * {right};"
                for name, right in zip(names, rights, strict=True)
            ]
            body.append("}")
        return body + [f"{to} = {name};" for name, to in zip(names, results, strict=True)]

    def _entry(self, stage: Product, view: View, by: tuple[str, str], shift: Expr) -> str:
        """An element of an operand; a head's weights have rows of their own length."""
        is_weights = view == (stage.target if stage.is_outer else stage.b)
        own = stage.heads is not None and is_weights
        stride = stage.weights[1] if own else view.row_stride
        head = self.lengths.times("head", shift) if shift != 0 else ""
        return self._at(view, [(by[0], stride), (by[1], ONE)], head)

    # --- loops ------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> list[str]:
        lines = [text for line in loop.lines for text in self._zeroed(line)]
        body = [
            f"const {self.dtype} {load.value.name} = {self._read(load, loop)};"
            for load in loop.loads
        ]
        for line in loop.lines:
            body += self._line(line, loop)
        return [*lines, *_nested([self._for(*index) for index in _indices(loop)], body)]

    def _line(self, line: Line, loop: Loop) -> list[str]:
        name, value = line.statement.target.name, self.notation(line.statement.expression)
        if line.view is None:
            return [f"const {self.dtype} {name} = {value};"]
        to = self._target(line, line.view, loop)
        if line.store is not Store.WRITE:
            return [f"{to} += {value};"]
        sign = "+=" if line.view.buffer in self.sums else "="
        if line.used:
            return [f"const {self.dtype} {name} = {value};", f"{to} {sign} {name};"]
        return [f"{to} {sign} {value};"]

    def _zeroed(self, line: Line) -> list[str]:
        """Where a sum begins: at 0, unless it goes on from step to step."""
        view = line.view
        if view is None or line.store is Store.WRITE or view.buffer in self.sums:
            return []
        indices = [("row", view.shape[0])] if len(view.shape) == 2 else []
        indices += [("unit", view.shape[-1])] if view.shape else []
        steps = [("row", view.row_stride)] if len(view.shape) == 2 else []
        steps += [("unit", ONE)] if view.shape else []
        loops = [self._for(*index) for index in indices]
        return _nested(loops, [f"{self._at(view, steps)} = 0;"])

    def _read(self, load: Load, loop: Loop) -> str:
        """Spell what a loop reads."""
        view, row = load.view, ("row", load.view.row_stride if load.view.shape else ONE)
        if load.value.role is Role.SCALAR and not load.view.buffer.shape:
            return self._scalar(load.view.buffer)
        unit = ("unit", ONE)
        if load.access is Access.AXES:
            assert load.walk is not None
            steps = [row] if load.walk.rows else []
            return self._at(view, [*steps, *_axis_steps(load.walk.strides)])
        if load.access is Access.SCALAR:
            return self._at(view, [])
        if load.access is Access.ROW:
            return self._at(view, [row])
        if load.access is Access.COLUMN:
            return self._at(view, [("row", ONE), ("unit", view.row_stride)])
        by_row = load.access is Access.ELEMENT and len(loop.space) == 2
        return self._at(view, [row, unit] if by_row else [unit])

    def _target(self, line: Line, view: View, loop: Loop) -> str:
        row = ("row", view.row_stride if view.shape else ONE)
        if line.walk is not None:
            steps = [row] if line.walk.rows else []
            return self._at(view, [*steps, *_axis_steps(line.walk.strides)])
        if line.store is Store.ADD_ALL or not loop.space:
            return self._at(view, [])
        if line.store is Store.ADD_UNITS:
            return self._at(view, [row])
        unit = ("unit", ONE)
        by_row = line.store is Store.WRITE and len(loop.space) == 2 and len(view.shape) == 2
        return self._at(view, [row, unit] if by_row else [unit])

    def _scalar(self, buffer: Buffer) -> str:
        place = self.place(buffer)
        return f"{place}[0]" if place.struct == WEIGHTS else str(place)

    # --- the rest ---------------------------------------------------------------------------

    def _routine(self, stage: Routine) -> str:
        lengths = [self.lengths(n) for n in (stage.rows, stage.heads, stage.units, stage.after)]
        read = [(view, stage.by_row) for view in stage.operands]
        rows = [
            text
            for view, by_row in (*read, (stage.target, True))
            for text in (
                f"&{self._at(view, [])}",
                self.lengths(view.row_stride) if by_row else "0",
            )
        ]
        return f"{self.notation.called(stage.row.name)}({', '.join([*lengths, *rows])});"

    def _at(self, view: View, steps: Sequence[tuple[str, Expr]], shift: str = "") -> str:
        """An element of a view: indices with the distance between neighbours along each."""
        terms = [self.lengths.times(index, step) for index, step in steps if step != 0]
        terms += [shift] if shift else []
        terms += [term for term in self._start(view) if term]
        return f"{self.place(view.buffer)}[{' + '.join(terms) or '0'}]"

    def _start(self, view: View) -> Iterator[str]:
        strides = (view.row_stride, ONE)[2 - len(view.start) :] if view.start else ()
        for start, stride in zip(view.start, strides, strict=True):
            if start != 0:
                yield self.lengths.times(self.lengths.factor(start), stride)

    def _for(self, index: str, length: Expr, by: int = 1) -> str:
        step = f"++{index}" if by == 1 else f"{index} += {by}"
        return f"for (int {index} = 0; {index} < {self.lengths(length)}; {step})"


def _shifts(stage: Product) -> tuple[Expr, Expr, Expr]:
    """How far what a head reads and writes lies from the first one's: a, b, target."""
    if stage.heads is None:
        return Integer(0), Integer(0), Integer(0)
    first, second = stage.weights
    weights = Mul(first, second)
    return {
        Form.NN: (first, weights, second),
        Form.NT: (second, weights, first),
        Form.TN: (first, second, weights),
    }[stage.form]


def _indices(loop: Loop) -> list[tuple[str, Expr]]:
    if loop.is_nest:
        axes = [(name, n) for (name, _), n in zip(_axis_steps(loop.axes), loop.axes, strict=True)]
        return [("row", loop.space[0]), *axes]
    names = ("row", "unit")[2 - len(loop.space) :]
    return list(zip(names, loop.space, strict=True))


def _axis_steps(strides: Sequence[Expr]) -> list[tuple[str, Expr]]:
    """The indices of a nest's inner axes, the last one of which is ``unit``."""
    names = [*(f"axis{n}" for n in range(1, len(strides))), "unit"]
    return list(zip(names, strides, strict=True))


def _nested(loops: Sequence[str], body: Sequence[str]) -> list[str]:
    """Put a body into loops; braces where more than one line stands."""
    braces = len(body) > 1
    lines = [f"{INDENT * depth}{loop}" for depth, loop in enumerate(loops)]
    if not loops:
        return ["{", *(f"{INDENT}{line}" for line in body), "}"] if braces else list(body)
    if braces:
        lines[-1] += " {"
    lines += [f"{INDENT * len(loops)}{line}" for line in body]
    return [*lines, f"{INDENT * (len(loops) - 1)}}}"] if braces else lines


def _is_told(line: Line) -> bool:
    """Whether an equation stands above the loop: unnamed intermediates do not."""
    return line.origin.target.role is not Role.TEMPORARY or line.store is not Store.LOCAL


def _comment(equations: Sequence[str]) -> list[str]:
    if len(equations) < 2:
        return [f"/* {equation} */" for equation in equations]
    first, *middle, last = equations
    return [f"/* {first}", *(f" * {equation}" for equation in middle), f" * {last} */"]
