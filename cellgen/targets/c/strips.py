"""Spell loops that a strip of a matrix goes through in C, rows of it a few at a time, in vectors.

Input: ``StripPlan``. Output: lines of a function for one strip, and of the loops over strips. Nests
of sums, products and quotients alone are spelled in vectors along the last axis, ``CELLGEN_TURNS``
rows at a time: what does not differ between rows is read once for them, each has a chain of
additions of its own, and their sums across a vector are formed together. Other loops are
spelled as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sympy import Expr

from cellgen.language.value import Value
from cellgen.schedule.lower.plan import StripPlan
from cellgen.schedule.lower.tile_products import tile_product
from cellgen.schedule.lower.touches import in_vectors, walk_in
from cellgen.schedule.schedule import Access, BufferKind, Line, Load, Loop, Store, View
from cellgen.targets.c.loops import comments_of
from cellgen.targets.c.matrix_products import product_lines, value_of
from cellgen.targets.c.nests import entries, zeroed
from cellgen.targets.c_expressions import c_axis, c_expression, c_factor

INDENT = "    "


class PlaceWriter(Protocol):
    """Where arrays lie, and how their pointers are called."""

    @property
    def pointers(self) -> Mapping[Value, str]:
        """The name of the pointer to each value's row."""

    def address(self, view: View) -> str:
        """Spell the address of a view's first element."""

    def row(self, view: View) -> str:
        """Spell the address of a view in the current row."""

    def condition(self, view: View) -> str:
        """Spell the condition on which a place is written."""

    def inverted(self, loop: Loop) -> tuple[list[Expr], list[str]]:
        """The expressions of a loop, and what is inverted before it."""


@dataclass(frozen=True)
class StripContext:
    """The function of one strip, with a parameter for each axis around it, and what calls it.

    Of a stage that is one product, ``product`` is what is run for each row in their place.
    """

    outer: list[str]
    inside: list[str]
    around: list[str]
    product: list[str] = field(default_factory=list)


class StripWriter:
    """Spells the strips of one stage."""

    def __init__(self, places: PlaceWriter, stage: StripPlan, fresh: Callable[[str], str]) -> None:
        self.places, self.stage, self.fresh = places, stage, fresh
        self.outer = [f"axis{n}" for n in range(1, len(stage.axes) - 1)]
        self.own = f"axis{len(stage.axes) - 1}"

    def spell(self) -> StripContext:
        """Spell the function of a strip, and the loops that call it, or a product."""
        product = self._product()
        if product:
            return StripContext([], [], [], product)
        inside = [*self._pointers()]
        for loop in self.stage.loops:
            inside += self._loop(loop)
        return StripContext(self.outer, inside, self._around())

    def _product(self) -> list[str]:
        """The lines of a stage that is one product; none for any other."""
        (loop, *more), axes = self.stage.loops, self.stage.axes
        product = None if more else tile_product(loop, axes)
        if product is None:
            return []
        declared = []
        for item in product.arrays:
            assert item.view is not None
            begin = self._begin(item.view, rows=walk_in(item, loop, axes).rows)
            constant = "const " if isinstance(item, Load) else ""
            pointer = self.places.pointers[value_of(item)]
            declared.append(f"{constant}real *{pointer} = {begin};")
        lines = product_lines(product, axes, self.places.pointers.__getitem__)
        return [*comment_of(loop), *declared, *lines]

    # --- around strips ---

    def _around(self) -> list[str]:
        """The loops over strips of a row: sums that go on from strip to strip start from zero."""
        lines = [
            f"{{ real *{self._pointer(line)} = {self.places.row(line.view)}; "
            f"{zeroed(self._pointer(line), entries(line.walk, self.stage.axes))} }}"
            for loop in self.stage.loops
            for line in loop.lines
            if line.view is not None and line.walk is not None and _goes_on(line)
        ]
        strip_axis = c_axis(self.stage.axes[-2])
        for name, axis in zip(self.outer, self.stage.axes[:-2], strict=True):
            lines.append(f"for (int64_t {name} = 0; {name} < {c_axis(axis)}; ++{name})")
        lines.append(f"for (int64_t strip = 0, last; strip < {strip_axis}; strip = last) {{")
        lines.append(f"{INDENT}last = CELLGEN_STRIP_END(strip, {strip_axis});")
        return lines

    def _pointers(self) -> list[str]:
        """Declare pointers to rows, and what is one number for a row, each once."""
        declarations: dict[str, str] = {}
        for loop in self.stage.loops:
            for load in loop.loads:
                if load.view.buffer.kind is BufferKind.SCALAR:
                    continue  # a local of the function already
                if load.access in (Access.ROW, Access.SCALAR):
                    at = self._begin(load.view, rows=load.access is Access.ROW)
                    declarations[str(load.value.name)] = f"const real {load.value.name} = *({at});"
                    continue
                walk = walk_in(load, loop, self.stage.axes)
                pointer = self.places.pointers[load.value]
                declarations.setdefault(
                    pointer, f"const real *{pointer} = {self._begin(load.view, rows=walk.rows)};"
                )
        for loop in self.stage.loops:
            for line in loop.lines:
                if line.view is not None:
                    pointer = self._pointer(line)
                    begin = self._begin(line.view, rows=True)
                    declarations[pointer] = f"real *{pointer} = {begin};"
        return list(declarations.values())

    def _begin(self, view: View, *, rows: bool) -> str:
        return self.places.row(view) if rows else self.places.address(view)

    def _pointer(self, line: Line) -> str:
        return self.places.pointers[line.statement.target]

    # --- loops ---

    def _loop(self, loop: Loop) -> list[str]:
        expressions, inverses = self.places.inverted(loop)
        if in_vectors(loop, self.stage.axes):
            lines = self._in_vectors(loop, expressions)
        elif loop.axes == self.stage.axes:
            lines = self._nest(loop, expressions)
        else:
            lines = self._pointwise(loop, expressions)
        return [*comment_of(loop), "{", *_deeper([*inverses, *lines]), "}"]

    def _pointwise(self, loop: Loop, expressions: Sequence[Expr]) -> list[str]:
        """Spell what runs once for each place along all axes but the last."""
        place = [*self.outer, "unit", ""]
        body = [self._read(load, loop, place) for load in _walked(loop)]
        for line, value in zip(loop.lines, expressions, strict=True):
            body += self._kept(line, loop, value, place)
        head = "for (int64_t unit = first; unit < last; ++unit) {"
        return ["CELLGEN_VECTORIZE", head, *_deeper(body), "}"]

    def _nest(self, loop: Loop, expressions: Sequence[Expr]) -> list[str]:
        """Spell a nest row by row."""
        place = [*self.outer, self.own, "unit"]
        body = [self._read(load, loop, place) for load in _walked(loop)]
        start, end, sums = [], [], []
        for line, value in zip(loop.lines, expressions, strict=True):
            if line.store is not Store.ADD_UNITS:
                body += self._kept(line, loop, value, place)
                continue
            name, at = line.statement.target.name, self._at(line, loop, place)
            if walk_in(line, loop, self.stage.axes).strides[-1] != 0:
                body.append(f"{at} += {c_expression(value)};")
                continue
            sums.append(str(name))
            start.append(f"real {name} = 0;")
            body.append(f"{name} += {c_expression(value)};")
            end.append(f"{at} {'+=' if _goes_on(line) else '='} {name};")
        pragma = f"CELLGEN_SUMS({', '.join(sums)})" if sums else "CELLGEN_VECTORIZE"
        units = f"for (int64_t unit = 0; unit < {c_axis(self.stage.axes[-1])}; ++unit) {{"
        inner = [*start, pragma, units, *_deeper(body), "}", *end]
        head = f"for (int64_t {self.own} = first; {self.own} < last; ++{self.own}) {{"
        return [head, *_deeper(inner), "}"]

    def _in_vectors(self, loop: Loop, expressions: Sequence[Expr]) -> list[str]:
        """Spell a nest in vectors, some rows at a time, and what is left of each row."""
        nest = _VectorLines()
        place = [*self.outer, f"({self.own} + turn)", "unit"]
        for load in _walked(loop):
            self._vector_load(load, loop, place, nest)
            nest.scalars.append(self._read(load, loop, place))
        vectors = {load.value for load in _walked(loop)}
        for line, value in zip(loop.lines, expressions, strict=True):
            if line.store is Store.ADD_UNITS:
                self._vector_sum(line, loop, value, nest)
                continue
            target, text = line.statement.target, c_expression(value)
            if not value.atoms(Value) & vectors:
                text = f"cg_all({text})"
            vectors.add(target)
            at = self._at(line, loop, place) if line.view is not None else ""
            nest.turn.append(f"const cg_vector {target.name} = {text};")
            if line.view is not None:
                condition = self.places.condition(line.view)
                nest.turn.append(f"{condition}cg_store(&{at}, {target.name});")
            nest.scalars += self._kept(line, loop, value, place)
        return nest.text(self.own, c_axis(self.stage.axes[-1]))

    def _vector_load(self, load: Load, loop: Loop, place: list[str], nest: _VectorLines) -> None:
        """Read a value where it changes: by vector and row, by vector, or by row."""
        *_, row, unit = walk_in(load, loop, self.stage.axes).strides
        name, at = load.value.name, self._at(load, loop, place)
        if unit != 0:
            lines = nest.turn if row != 0 else nest.shared
            lines.append(f"const cg_vector {name} = cg_load(&{at});")
        elif row != 0:
            turns = self.fresh(f"{name}_of")
            nest.before.append(f"cg_vector {turns}[CELLGEN_TURNS];")
            nest.before += by_turn(f"{turns}[turn] = cg_all({at});")
            nest.turn.append(f"const cg_vector {name} = {turns}[turn];")
        else:
            every = self.fresh(f"{name}_all")
            nest.before.append(f"const cg_vector {every} = cg_all({at});")
            nest.turn.append(f"const cg_vector {name} = {every};")

    def _vector_sum(self, line: Line, loop: Loop, value: Expr, nest: _VectorLines) -> None:
        """Add up along the axes that the target lacks."""
        *_, row, unit = walk_in(line, loop, self.stage.axes).strides
        place = [*self.outer, f"({self.own} + turn)", "unit"]
        name, at, term = (
            line.statement.target.name,
            self._at(line, loop, place),
            c_expression(value),
        )
        if unit != 0 and row != 0:
            nest.turn.append(f"cg_store(&{at}, cg_load(&{at}) + ({term}));")
            nest.scalars.append(f"{at} += {term};")
        elif unit != 0:
            nest.shared.append(f"cg_vector {name} = cg_load(&{at});")
            nest.turn.append(f"{name} += {term};")
            nest.written.append(f"cg_store(&{at}, {name});")
            nest.scalars.append(f"{at} += {term};")
        elif row != 0:
            lanes, sums = self.fresh(f"{name}_lanes"), self.fresh(f"{name}_sums")
            nest.before.append(f"cg_vector {lanes}[CELLGEN_TURNS];")
            nest.before += by_turn(f"{lanes}[turn] = cg_all(0);")
            nest.turn.append(f"{lanes}[turn] += {term};")
            nest.summed.append(f"real {sums}[CELLGEN_TURNS];")
            nest.summed.append(f"cg_add_lanes({lanes}, turns, {sums});")
            nest.scalars.append(f"{sums}[turn] += {term};")
            nest.stored += by_turn(f"{at} {'+=' if _goes_on(line) else '='} {sums}[turn];")
        else:
            lanes, rest = self.fresh(f"{name}_lanes"), self.fresh(f"{name}_rest")
            nest.opened += [f"cg_vector {lanes} = cg_all(0);", f"real {rest} = 0;"]
            nest.turn.append(f"{lanes} += {term};")
            nest.scalars.append(f"{rest} += {term};")
            nest.closed.append(f"{at} += cg_sum_of({lanes}) + {rest};")

    def _read(self, load: Load, loop: Loop, place: Sequence[str]) -> str:
        return f"const real {load.value.name} = {self._at(load, loop, place)};"

    def _kept(self, line: Line, loop: Loop, value: Expr, place: Sequence[str]) -> list[str]:
        """Give a value a name, and write it if it lies in memory."""
        name, text = line.statement.target.name, c_expression(value)
        if line.view is None:
            return [f"const real {name} = {text};"]
        written = f"{self.places.condition(line.view)}{self._at(line, loop, place)}"
        if line.used:
            return [f"const real {name} = {text};", f"{written} = {name};"]
        return [f"{written} = {text};"]

    def _at(self, item: Load | Line, loop: Loop, place: Sequence[str]) -> str:
        """Spell the entry of an array at a place of the axes."""
        value = item.value if isinstance(item, Load) else item.statement.target
        strides = walk_in(item, loop, self.stage.axes).strides
        terms = [
            index if stride == 1 else f"{index} * {c_factor(stride)}"
            for index, stride in zip(place, strides, strict=True)
            if stride != 0
        ]
        return f"{self.places.pointers[value]}[{' + '.join(terms) or '0'}]"


@dataclass
class _VectorLines:
    """Lines of a nest in vectors, by their place in it.

    Around the loop over rows, ``opened`` and ``closed``; for some rows ``before``, then for each
    vector ``shared``, ``turn`` of each row and ``written``; sums across vectors, ``summed``; units
    that no vector holds, ``scalars``; what is ``stored`` of each row.
    """

    opened: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    turn: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    summed: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def text(self, own: str, length: str) -> list[str]:
        """The lines in order; ``own`` counts the rows of a strip, ``length`` is that of a row."""
        rest = ["for (int turn = 0; turn < turns; ++turn) {", *_deeper(self.scalars), "}"]
        rows = [
            *self.before,
            "int64_t unit = 0;",
            f"for (; unit + CELLGEN_LANES <= {length}; unit += CELLGEN_LANES) {{",
            *_deeper([*self.shared, *by_turn(*self.turn), *self.written]),
            "}",
            *self.summed,
            f"for (; unit < {length}; ++unit) {{",
            *_deeper(rest),
            "}",
            *self.stored,
        ]
        head = f"for (int64_t {own} = first; {own} < last; {own} += turns) {{"
        return [*self.opened, head, *_deeper(rows), "}", *self.closed]


def comment_of(loop: Loop) -> list[str]:
    """The equations of a loop, as a comment."""
    equations = comments_of(loop.lines)
    comment = [f"/* {equations[0]}", *(f" * {text}" for text in equations[1:])]
    comment[-1] += " */"
    return comment


def by_turn(*lines: str) -> list[str]:
    """What is done for each of some rows."""
    head = "for (int turn = 0; turn < turns; ++turn)"
    if len(lines) == 1:
        return ["CELLGEN_UNROLL", f"{head} {lines[0]}"]
    return ["CELLGEN_UNROLL", f"{head} {{", *_deeper(lines), "}"]


def _walked(loop: Loop) -> list[Load]:
    """What is read place by place."""
    one = (Access.ROW, Access.SCALAR)
    kinds = BufferKind.SCALAR
    return [x for x in loop.loads if x.access not in one and x.view.buffer.kind is not kinds]


def _goes_on(line: Line) -> bool:
    """Whether a sum goes on from strip to strip, or from one place around them to the next."""
    if line.store is not Store.ADD_UNITS or line.walk is None:
        return False
    *outer, last = line.walk.strides
    return last != 0 or any(stride == 0 for stride in outer)


def _deeper(lines: Iterable[str]) -> list[str]:
    return [f"{INDENT}{line}" for line in lines]
