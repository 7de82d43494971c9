"""Plan the functions of a single step.

Statements are ordered by phase: the number of products and sums on the longest path to them. Within
a phase pointwise statements over one index space share a loop; what only that loop reads stays in
registers. Parts are views, concatenations are destinations: neither costs a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
from sympy import Integer

from cellgen.errors import DerivationError
from cellgen.language.ops import Form, operator_of
from cellgen.language.value import B, Dim, Shape, Value, format_shape
from cellgen.program.ssa import Program, Statement
from cellgen.program.step import CellPrograms
from cellgen.schedule.buffers import Placement
from cellgen.schedule.schedule import (
    Access,
    BufferKind,
    Line,
    Load,
    Loop,
    PlannedFunction,
    Product,
    Routine,
    Schedule,
    Stage,
    Store,
    flat,
    views,
)
from cellgen.schedule.walks import access_of, inner_axes, store_in_nest, store_of, walk_of


def schedule_step(programs: CellPrograms) -> Schedule:
    """Plan every function of a cell for one step."""
    functions = tuple(
        plan_function(program, programs.accepted[program.function], programs.definition.dims)
        for program in programs.functions
    )
    schedule = Schedule(programs.definition.name, programs.digest, functions, programs.sources)
    schedule.verify()
    return schedule


def plan_function(
    program: Program, accepted: tuple[Value, ...], order: tuple[Dim, ...]
) -> PlannedFunction:
    """Plan one program: phases, buffers, loops. ``order`` is the order of its dimensions."""
    planner = _Planner(program)
    stages = planner.stages()
    used = {view.buffer for stage in stages for view in views(stage)}
    buffers = [
        b for b in planner.buffers.values() if b.kind is not BufferKind.WORKSPACE or b in used
    ]
    return PlannedFunction(program, accepted, _dims(program, order), tuple(buffers), tuple(stages))


def _dims(program: Program, order: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Dimensions that a function's arrays have, in the order of the cell.

    B where they have none: a function in C takes one at least.
    """
    values = (*program.arguments, *program.results)
    dims = {symbol for value in values for axis in value.shape for symbol in axis.free_symbols}
    return tuple(dim for dim in order if dim in (dims or {B}))


@dataclass
class _OpenLoop:
    space: Shape
    is_nest: bool = False
    statements: list[Statement] = field(default_factory=list)
    targets: set[Value] = field(default_factory=set)
    sums: set[Store] = field(default_factory=set)

    def takes(self, space: Shape, store: Store | None) -> bool:
        """Whether a statement over a space fits in.

        Sums over rows and sums over units do not meet: the ones go on from row to row, the others
        begin anew in each.
        """
        return space == self.space and (store is None or self.sums <= {store})


class _Planner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = program.uses
        self.definitions = program.definitions
        self.phase = self._phases()
        placement = Placement(program)
        self.buffers, self.views = placement.buffers, placement.views
        self.folded = self._folded_terms()

    def _phases(self) -> dict[Value, int]:
        phase = dict.fromkeys(self.program.arguments, 0)
        for statement in self.program.statements:
            phases = [phase[operand] for operand in statement.operands]
            if statement.traits.is_onto:  # a seed grows in place, in the same phase
                phase[statement.target] = max(phases[0], phases[1] + 1, phases[2] + 1)
                continue
            before = max(phases, default=0)
            is_place = statement.is_pointwise or statement.traits.is_place
            phase[statement.target] = before + (0 if is_place else 1)
        return phase

    def _folded_terms(self) -> dict[Value, Statement]:
        """Terms of sums that nothing else reads: computed where they are added."""
        folded = {}
        for statement in self.program.statements:
            if not statement.traits.is_sum:
                continue
            term = statement.expression.operands[0]
            source = self.definitions.get(term)
            alone = len(self.uses[term]) == 1 and term not in self.program.results
            if source is not None and source.is_pointwise and alone:
                folded[term] = source
        return folded

    def stages(self) -> list[Stage]:
        last = max(self.phase.values(), default=0)
        stages: list[Stage] = []
        for phase in range(last + 1):
            here = [s for s in self.program.statements if self.phase[s.target] == phase]
            stages += [self._product(s) for s in here if s.traits.is_product]
            stages += [self._routine(s) for s in here if s.traits.is_routine]
            sums = [
                s
                for s in self.program.statements
                if s.traits.is_sum and self.phase[s.target] == phase + 1
            ]
            pointwise = [s for s in here if s.is_pointwise and s.target not in self.folded]
            stages += self._loops(pointwise, sums)
        return stages

    def _product(self, statement: Statement) -> Product:
        operands = statement.expression.operands
        (a, b), target = operands[-2:], statement.target
        product = statement.traits.product
        assert product is not None
        weights = target if product.form is Form.TN else b
        return Product(
            form=product.form,
            target=self.views[target],
            a=self.views[a],
            b=self.views[b],
            accumulate=product.onto,
            statement=statement,
            heads=a.shape[1] if product.by_head else None,
            weights=weights.shape[1:] if product.by_head else (),
        )

    def _routine(self, statement: Statement) -> Routine:
        operands, target = statement.expression.operands, statement.target
        row, attributes = operator_of(statement.expression), statement.expression.attributes
        view, read = self.views[target], tuple(self.views[operand] for operand in operands)
        a = operands[0]  # all of one shape
        # Rows of a matrix are heads side by side, where it is not a part of the columns of another.
        is_narrow = any(own.is_narrow for own in (view, *read))
        rows = B in a.shape or (len(a.shape) == 2 and is_narrow)
        axes = a.shape[1:] if rows else a.shape
        last = len(axes) - row.axes_after(attributes)
        first = last - row.unit_axes(attributes)
        count, units, after = (
            sympy.expand(sympy.Mul(*some)) for some in (axes[:first], axes[first:last], axes[last:])
        )
        length = a.shape[0] if rows else Integer(1)
        return Routine(row, view, read, length, count, units, after, bool(rows), statement)

    def _loops(self, pointwise: Sequence[Statement], sums: Sequence[Statement]) -> list[Stage]:
        """Fuse statements of one phase into as few loops as their index spaces allow."""
        loops: list[_OpenLoop] = []
        made_in: dict[Value, int] = {}
        nests = {
            self._space(statement)
            for statement in (*pointwise, *sums)
            if not self._is_flat(statement, self._space(statement))
        }
        for statement in (*pointwise, *sums):
            is_sum, space = statement.traits.is_sum, self._space(statement)
            store = _sum_store(space, statement, space in nests) if is_sum else None
            # What lies at another place of a value's memory is read once all of it is there.
            first = max(
                (
                    made_in[computed] + (computed != value)
                    for value in self._reads(statement)
                    for computed in self._made_of(value)
                    if computed in made_in
                ),
                default=0,
            )
            index = next(
                (i for i in range(first, len(loops)) if loops[i].takes(space, store)), len(loops)
            )
            if index == len(loops):
                loops.append(_OpenLoop(space, space in nests))
            if store is not None:
                loops[index].sums.add(store)
            loops[index].statements.append(statement)
            loops[index].targets.add(statement.target)
            if not is_sum:
                made_in[statement.target] = index
        return [self._close(loop) for loop in loops]

    def _space(self, statement: Statement) -> Shape:
        """The index space of a statement: that of a sum is its term's."""
        value = statement.expression.operands[0] if statement.traits.is_sum else statement.target
        return value.shape

    def _is_flat(self, statement: Statement, space: Shape) -> bool:
        """Whether rows and units suffice for a statement, or inner axes are told apart."""
        if len(space) < 3:
            return True
        for operand in self._reads(statement):
            if access_of(operand.shape, space) is None or self.views[operand].transposed:
                return False
        is_sum = statement.traits.is_sum
        return not is_sum or store_of(space, statement.target.shape) is not None

    def _made_of(self, value: Value) -> list[Value]:
        """The computed values that a value is, or is a view or a concatenation of."""
        source = self.definitions.get(value)
        if source is None or not (source.traits.is_view or source.traits.is_join):
            return [value]
        return [computed for operand in source.operands for computed in self._made_of(operand)]

    def _reads(self, statement: Statement) -> tuple[Value, ...]:
        if statement.traits.is_sum:
            term = statement.expression.operands[0]
            return self.folded[term].operands if term in self.folded else (term,)
        return statement.operands

    def _close(self, loop: _OpenLoop) -> Loop:
        local = {s.target for s in loop.statements if s.is_pointwise}
        lines, loads = [], {}
        for statement in loop.statements:
            for operand in self._reads(statement):
                if operand not in local:
                    loads[operand] = self._load(operand, loop)
            lines.append(self._line(statement, loop))
        ordered = sorted(loads.values(), key=lambda load: (load.value.order, str(load.value)))
        axes = inner_axes(loop.space) if loop.is_nest else ()
        return Loop(flat(loop.space), tuple(ordered), tuple(lines), axes)

    def _load(self, value: Value, loop: _OpenLoop) -> Load:
        access, view = access_of(value.shape, loop.space), self.views[value]
        if loop.is_nest and access not in (Access.SCALAR, Access.ROW):
            return Load(value, view, Access.AXES, walk_of(value, view, loop.space))
        if access is None:
            raise DerivationError(
                f"{value} of shape {format_shape(value.shape)} cannot be read in a loop over "
                f"{format_shape(loop.space)}",
                code="schedule.access",
            )
        return Load(value, view, _TRANSPOSED.get(access, access) if view.transposed else access)

    def _line(self, statement: Statement, loop: _OpenLoop) -> Line:
        if statement.traits.is_sum:
            term = statement.expression.operands[0]
            expression = self.folded[term].expression if term in self.folded else term
            store = _sum_store(loop.space, statement, loop.is_nest)
            summand, sums = Statement(statement.target, expression), self.views[statement.target]
            through = walk_of(statement.target, sums, loop.space) if loop.is_nest else None
            return Line(summand, store, sums, False, statement, through)
        target = statement.target
        inside = any(target in self._reads(s) for s in loop.statements)
        outside = target in self.program.results or any(
            self._formed_with(s.target) not in loop.targets for s in self.uses[target]
        )
        view = self.views[target] if outside else None
        store = Store.WRITE if outside else Store.LOCAL
        walk = walk_of(target, view, loop.space) if loop.is_nest and view is not None else None
        return Line(statement, store, view, inside, statement, walk)

    def _formed_with(self, value: Value) -> Value:
        """The sum in whose loop a folded term is formed; any other value is formed by itself."""
        return self.uses[value][0].target if value in self.folded else value


_TRANSPOSED = {Access.ELEMENT: Access.COLUMN}
"""How a loop walks the memory of a value that lies transposed."""


def _sum_store(space: Shape, statement: Statement, is_nest: bool) -> Store:
    target = statement.target.shape
    store = store_in_nest(space, target) if is_nest else store_of(space, target)
    if store is None:
        raise DerivationError(f"{statement}: this sum is not scheduled", code="schedule.sum")
    return store
