"""Spell the equations of a time plan's stages in C, each once.

Input: stages of a ``PartPlan``. Output: the lines of one function for each stage that has
equations; the driver calls it for a tile, or for rows and a partition of the units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from cellgen.language.names import Names
from cellgen.language.value import B, Dim
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import LOCALS, c_member
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.plan import (
    GroupPlan,
    How,
    LoopPlan,
    OutersPlan,
    PartPlan,
    Place,
    RoutinePlan,
    StripPlan,
)
from cellgen.schedule.lower.tile_products import tile_product
from cellgen.schedule.schedule import Access, Buffer, Line, Loop, Store, View, describe
from cellgen.targets.c.loops import (
    LoopLines,
    LoopWriter,
    column_of,
    offset_of,
    routine_call,
)
from cellgen.targets.c.matrix_products import product_lines
from cellgen.targets.c.nests import entries, read_lengths, zeroed
from cellgen.targets.c.strips import StripContext, StripWriter
from cellgen.targets.c_expressions import c_factor

TILE_ROW = "tile + ({slots} * (row - begin) + {slot}) * width"

VALIDITY = "const unsigned char *const cellgen_validity = frame->validity;"
"""The table of valid rows stands before a loop: where each row reads it anew, GCC makes two
loops of one, which add up units in different orders."""


@dataclass(frozen=True)
class EquationsContext:
    """One function of equations: what it declares, its loops, or the call of a routine.

    ``widest``: slots of the widest panel, where it runs on whole tiles; 0 elsewhere.
    """

    name: str
    prelude: list[str]
    loops: list[LoopLines] = field(default_factory=list)
    call: str = ""
    comment: str = ""
    widest: int = 0
    strip: StripContext | None = None


@dataclass(frozen=True)
class Declared:
    """A local of a function of equations, and the line that declares it."""

    name: str
    text: str


EquationsPlan: TypeAlias = GroupPlan | LoopPlan | RoutinePlan | StripPlan
"""A stage that has equations."""


class EquationsWriter(LoopWriter):
    """Spells the equations of one part; knows how every array is called."""

    first = " + first"

    def __init__(self, part: PartPlan, dims: Sequence[str], arguments: str) -> None:
        values = {place.buffer.value for place in part.places}
        for stage in part.stages:
            loops = stage.group.loops if isinstance(stage, GroupPlan) else ()
            loops = (stage.loop,) if isinstance(stage, LoopPlan) else loops
            loops = stage.loops if isinstance(stage, StripPlan) else loops
            for loop in loops:
                values |= {load.value for load in loop.loads}
                values |= {line.statement.target for line in loop.lines}
        ordered = sorted(values, key=lambda value: (value.order, str(value.name)))
        names = Names([*LOCALS, *(str(value.name) for value in ordered)])
        self.dims, self.arguments = dims, arguments
        self.pointers = {v: names.fresh(f"{v.name}_row") for v in ordered}
        self._names = names
        self._uses: dict[Buffer, tuple[int, Place]] = {}
        self._read: set[Dim] = set()
        self._keeps: frozenset[str] = frozenset()
        self._why = "for a backward pass" if part.name == "forward" else "the caller wants it"

    def equations(self, stage: object) -> EquationsContext | None:
        """Spell a stage; None for weight gradients, which have no equations."""
        if isinstance(stage, OutersPlan):
            return None
        assert isinstance(stage, GroupPlan | LoopPlan | RoutinePlan | StripPlan)
        self._uses = {place.buffer: (n, place) for n, place in enumerate(numbered(stage.uses))}
        self._uses |= {p.buffer: (-1, p) for p in stage.uses if p.how is How.SCALAR}
        self._read = set()
        self._keeps = frozenset(() if isinstance(stage, RoutinePlan) else stage.keeps)
        if isinstance(stage, RoutinePlan):
            return self._routine(stage)
        if isinstance(stage, StripPlan):
            strip = StripWriter(self, stage, self._names.fresh).spell()
            declared = self._declared(stage, stage.loops)
            prelude = [*(line.text for line in declared), *_used(declared)]
            return EquationsContext(stage.name, prelude, strip=strip)
        if isinstance(stage, LoopPlan):
            loop = self._of_loop(stage)
            return EquationsContext(stage.name, self._prelude(stage, (stage.loop,)), [loop])
        return self._of_group(stage)

    def _of_group(self, stage: GroupPlan) -> EquationsContext:
        group = stage.group
        loops = [self.loop(loop, lambda view: self._in_tile(group, view)) for loop in group.loops]
        if stage.leaves_out:
            for loop, lines in zip(group.loops, loops, strict=True):
                self._leave_out(loop, lines)
        if any(slot.needs_memory for slot in group.slots):
            loops.insert(0, self._copies(group))
        prelude = [*self._prelude(stage, group.loops), *([VALIDITY] if stage.leaves_out else [])]
        return EquationsContext(stage.name, prelude, loops, widest=stage.widest)

    def _of_loop(self, stage: LoopPlan) -> LoopLines:
        """Spell a loop of its own."""
        lines = self.loop(stage.loop)
        if stage.leaves_out:
            lines.before.append(VALIDITY)
            self._leave_out(stage.loop, lines)
        product = tile_product(stage.loop, stage.loop.axes)
        if product is not None and product.kind.adds:
            axes, pointer = stage.loop.axes, self.pointers.__getitem__
            lines = replace(lines, product=product_lines(product, axes, pointer))
        return replace(lines, down=stage.down)

    def _leave_out(self, loop: Loop, lines: LoopLines) -> None:
        """Write zeros for the rows of masked steps."""
        rows = [line for line in loop.lines if line.store is Store.ADD_UNITS]
        lines.row_start.extend(
            [
                "if (cellgen_validity && cellgen_validity[row] != CELLGEN_VALID) {",
                *(
                    f"    {self.condition(line.view)}cg_zero_row({self._pointer(line)}, units);"
                    for line in loop.lines
                    if line.view is not None and line.store is Store.WRITE
                ),
                *(f"    {self._left_out(line, loop)}" for line in rows),
                "    continue;",
                "}",
            ]
        )

    def _pointer(self, line: Line) -> str:
        return self.pointers[line.statement.target]

    def _left_out(self, line: Line, loop: Loop) -> str:
        """Spell the sum within a row of a masked step: zero."""
        assert line.view is not None
        if line.walk is None:
            return f"*({self.row(line.view)}) = 0;"
        count = entries(line.walk, loop.axes)
        return zeroed(self.pointers[line.statement.target], count)

    def _routine(self, stage: RoutinePlan) -> EquationsContext:
        """A routine over whole rows."""
        routine = stage.routine
        target = (self._of_first_row(routine.target), self.stride(routine.target))
        begin = self._of_first_row if routine.by_row else self.address
        operands = [(begin(view), self.stride(view)) for view in routine.operands]
        call = routine_call(routine, "end - begin", operands, target)
        comment = describe(routine.statement)
        return EquationsContext(stage.name, self._prelude(stage, ()), call=call, comment=comment)

    def _of_first_row(self, view: View) -> str:
        return f"{self.address(view)} + begin * {self.stride(view)}"

    def _prelude(self, stage: EquationsPlan, loops: Sequence[Loop]) -> list[str]:
        return [line.text for line in self._declared(stage, loops)]

    def _declared(self, stage: EquationsPlan, loops: Sequence[Loop]) -> list[Declared]:
        """Declare the dimensions and numbers of the call that equations read.

        Which ones lengths of rows and offsets of views take is known once they are spelled.
        """
        for loop in loops:
            by_column = [load.view for load in loop.loads if load.access is Access.COLUMN]
            self._read.update(*(view.row_stride.atoms(Dim) for view in by_column))
            self._read.update(*(line.statement.expression.atoms(Dim) for line in loop.lines))
            self._read.update(*(length.atoms(Dim) for length in read_lengths(loop)))
        if isinstance(stage, StripPlan):
            self._read.update(*(length.atoms(Dim) for length in stage.axes))
        if isinstance(stage, RoutinePlan):
            routine = stage.routine
            lengths = (routine.heads, routine.units, routine.after)
            self._read.update(*(length.atoms(Dim) for length in lengths))
        used = {str(dim.name) for dim in self._read}
        lines = [
            Declared(c_dim(name), f"const int64_t {c_dim(name)} = frame->n[{number}];")
            for number, name in enumerate(self.dims)
            if name in used
        ]
        scalars = [place for place in stage.uses if place.how is How.SCALAR]
        if scalars:
            members = f"const CELLGEN_NAME({self.arguments})"
            lines.append(Declared("args", f"{members} *const args = ({members} *)frame->args;"))
        for place in scalars:
            name, member = place.buffer.name, c_member(place.of)
            lines.append(Declared(name, f"const real {name} = (real)args->{member};"))
        if self._keeps:
            text = f"const int keeps = frame->keeps; /* {self._why} */"
            lines.append(Declared("keeps", text))
        return lines

    def _in_tile(self, group: Group, view: View) -> str | None:
        slot = group.slot_of(view)
        return None if slot is None else TILE_ROW.format(slots=len(group.slots), slot=slot)

    def _copies(self, group: Group) -> LoopLines:
        """Write the slots that something else reads, a backward pass perhaps, to memory."""
        lines = LoopLines()
        for index, slot in enumerate(group.slots):
            if not slot.needs_memory:
                continue
            pointer = f"{self.pointers[slot.view.buffer.value]}_{index}"
            place = TILE_ROW.format(slots=len(group.slots), slot=index)
            lines.row_start.append(f"const real *tile_{index} = {place};")
            lines.row_start.append(f"real *{pointer} = {self.row(slot.view)}{self.first};")
            lines.body.append(f"{self.condition(slot.view)}{pointer}[unit] = tile_{index}[unit];")
            lines.comments.append(f"{slot.view} = slot {index}")
        return lines

    # --- places ---

    def _rows(self, buffer: Buffer) -> str:
        return f"frame->at[{self._uses[buffer][0]}].rows"

    def address(self, view: View) -> str:
        """The address of a view's first element."""
        self._read.update(*(start.atoms(Dim) for start in view.start))
        if len(view.start) == 2 and view.start[0] != 0:
            self._read.update(view.row_stride.atoms(Dim))
        return f"{self._rows(view.buffer)}{offset_of(view)}"

    def row(self, view: View) -> str:
        """The pointer to a view's row."""
        buffer = view.buffer
        number, place = self._uses[buffer]
        self._read.update(view.start[-1].atoms(Dim) if len(view.start) == 2 else ())
        if place.how is How.IN_PLACE:
            self._read.add(B)
            start = f"cg_place_row(frame->at + {number}, nB, frame->step, row)"
            return f"{start}{column_of(view)}"
        return f"{self._rows(buffer)} + row * {self.stride(view)}{column_of(view)}"

    def stride(self, view: View) -> str:
        """Spell the distance of two rows."""
        number, place = self._uses[view.buffer]
        if place.moves:
            return f"frame->at[{number}].row"
        self._read.update(view.row_stride.atoms(Dim))
        return c_factor(view.row_stride)

    def condition(self, view: View) -> str:
        """What a store waits for, where the caller may leave the array out."""
        return "if (keeps) " if view.buffer.name in self._keeps else ""

    def begin_total(self, line: Line, pointer: str) -> list[str]:
        """Begin a sum over rows."""
        assert line.view is not None
        return [f"real *{pointer} = {self.address(line.view)}{self.first};"]

    def sum_of_all(self, line: Line, lines: LoopLines) -> None:
        """Row by row, so that nothing depends on how many rows a stage is given."""
        assert line.view is not None
        name = line.statement.target.name
        lines.row_start.append(f"real {name} = 0;")
        lines.row_end.append(f"*({self.address(line.view)}) += {name};")


def _used(declared: Sequence[Declared]) -> list[str]:
    """A line that uses what lines declare: a strip's two functions declare the same."""
    return [", ".join(f"(void){line.name}" for line in declared) + ";"] if declared else []


def numbered(uses: tuple[Place, ...]) -> list[Place]:
    """The places that a stage uses, as the driver numbers them: numbers of the call are none."""
    return [place for place in uses if place.how is not How.SCALAR]
