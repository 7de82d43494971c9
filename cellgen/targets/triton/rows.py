"""Cut a cell into work that runs for all steps: kernels over rows and units, products, sums.

Input: ``ChunkPrograms``. Output: ``Stage`` after ``Stage``: in each, operators that look across
units (products with weights, sums, memories) of what stages before it formed, then kernels. A
kernel is what goes unit by unit, equations of the step in the author's words: pointwise work, and
states whose units read themselves alone (delays, maxima, linear scans), which stay in registers
from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sympy import Expr

from cellgen.errors import DerivationError
from cellgen.language.value import B, Value
from cellgen.program.chunks.layers import Memory, Refusal
from cellgen.program.chunks.programs import ChunkPrograms
from cellgen.program.chunks.streams import moved_axes
from cellgen.program.ssa import Program, Statement

NOT_SPELLED = "triton.rows"
"""The code of the error for work that the target has no kernel for."""
Axes = tuple[Expr, ...]


def unit_axes(value: Value) -> Axes:
    """The axes of a value that count units: neither rows nor axes of 1."""
    return tuple(axis for axis in value.shape if axis not in (B, 1))


def is_by_row(value: Value) -> bool:
    """Whether a value has numbers of its own for each row."""
    return B in value.shape


@dataclass(frozen=True)
class RowKernel:
    """Work unit by unit over all steps, in one launch.

    ``step`` maps ``streams`` (read at each step), ``weights`` (of all steps) and ``states`` (before
    the step) to ``following`` and ``roots``, which others read.
    """

    name: str
    axes: Axes
    step: Program
    states: tuple[Value, ...]
    following: tuple[Value, ...]
    roots: tuple[Value, ...]
    initials: tuple[float, ...]
    """Where states begin anew."""

    @cached_property
    def weights(self) -> tuple[Value, ...]:
        """What is the same at all steps and rows."""
        return tuple(v for v in self.step.arguments if not is_by_row(v))

    @cached_property
    def streams(self) -> tuple[Value, ...]:
        """What is read at each step."""
        apart = {*self.states, *self.weights}
        return tuple(v for v in self.step.arguments if v not in apart)


@dataclass(frozen=True)
class Stage:
    """Operators and memories, then kernels."""

    operators: tuple[Statement, ...]
    memories: tuple[Memory, ...]
    kernels: tuple[RowKernel, ...]


class RowWork:
    """What of a cell runs unit by unit, and what lies between."""

    def __init__(self, programs: ChunkPrograms) -> None:
        self.programs, self.form = programs, programs.form
        definition = programs.definition
        self.following = {state: definition.next_state(state) for state in definition.states}
        self.memories = self.form.memories
        self.statements = dict(_statements(programs))
        self.columns = {one.beside: one for one in self.memories if one.beside is not None}
        """Vectors that are one more column, by the memories of whose matrices they are."""
        self.reads = {r.value: one for one in self.memories for r in one.readouts}
        self.scanned: dict[Value, tuple[Value, ...]] = {}
        """Layers that are no memories, by each of their states and new values."""
        for layer in self.form.layers:
            if not isinstance(layer, Memory | Refusal):
                for state in layer.states:
                    self.scanned[state] = self.scanned[self.following[state]] = layer.states
        self._levels: dict[Value, int] = {}

    def stages(self) -> tuple[Stage, ...]:
        """All stages, in the order in which they run."""
        roots = self._roots()
        wanted = self._wanted(roots)
        last = max((self.level(value) for value in wanted), default=0)
        return tuple(self._stage(level, wanted, roots) for level in range(last + 1))

    # --- levels: how many operators lie on the way to a value ---

    def level(self, value: Value) -> int:
        """The stage in which a value is formed."""
        if value not in self._levels:
            self._levels[value] = self._level(value)
        return self._levels[value]

    def _level(self, value: Value) -> int:
        if value in self.reads:
            return 1 + max(self.level(stream) for stream in self.taken(self.reads[value]))
        if value in self.scanned:
            states = self.scanned[value]
            inner = self._inside(states)
            return max((self.level(leaf) for leaf in inner), default=0)
        statement = self.statements.get(value)
        if statement is None:
            return 0
        below = max((self.level(operand) for operand in statement.operands), default=0)
        return below if self._is_by_unit(statement) else below + 1

    def _inside(self, states: tuple[Value, ...]) -> list[Value]:
        """What new states of a layer are made of: values that none of its states is part of."""
        own, new = {*states}, [self.following[s] for s in states]
        others, pending, seen = list[Value](), [*new], set[Value]()
        while pending:
            value = pending.pop()
            if value in seen or value in own:
                continue
            seen.add(value)
            statement = self.statements.get(value)
            is_other = value in self.scanned and self.scanned[value] != states
            if statement is None or is_other or not self._is_by_unit(statement):
                if statement is not None and value in new:
                    raise _refusal(self.form.cell, f"{value}, a state that is formed across units")
                others.append(value)
            else:
                pending += statement.operands
        return others

    def _is_by_unit(self, statement: Statement) -> bool:
        if statement.is_pointwise:
            return True
        is_view = statement.traits.is_reshape
        return (
            is_view and moved_axes(statement.operands[0].shape, statement.target.shape) is not None
        )

    def taken(self, memory: Memory) -> tuple[Value, ...]:
        """The streams of a memory, with the values of the vector that is a column of it."""
        whole = next((m for m in self.memories if m.state == memory.beside), memory)
        column = self.columns.get(whole.state)
        values = [update.value for update in column.updates] if column else []
        return tuple(dict.fromkeys([*whole.streams, *(v for v in values if v is not None)]))

    # --- roots: what kernels write, since others read it ---

    def _roots(self) -> dict[Value, None]:
        """Operands of operators, streams of memories, and outputs."""
        streams = [s for m in self.memories for s in self.taken(m)]
        pending: list[Value] = [*self.programs.outputs, *streams]
        roots = dict.fromkeys(v for v in pending if self._is_formed_by_unit(v))
        pending += [self.following[s] for s in self.following if s in self.scanned]
        seen = set[Value]()
        while pending:
            value = pending.pop()
            statement = self.statements.get(value)
            if statement is None or value in seen:
                continue
            seen.add(value)
            pending += statement.operands
            if not self._is_by_unit(statement):
                inner = [v for v in statement.operands if self._is_formed_by_unit(v)]
                roots.update(dict.fromkeys(inner))
        return {v: None for v in roots if v not in self.scanned}

    def _is_formed_by_unit(self, value: Value) -> bool:
        return value in self.statements and self._is_by_unit(self.statements[value])

    def _wanted(self, roots: Iterable[Value]) -> list[Value]:
        """Everything that some stage forms."""
        formed, pending = (
            dict[Value, None](),
            [*roots, *self.programs.outputs, *self.scanned, *self.reads],
        )
        while pending:
            value = pending.pop()
            if value in formed:
                continue
            formed[value] = None
            if value in self.statements:
                pending += self.statements[value].operands
        return list(formed)

    # --- stages ---

    def _stage(self, level: int, wanted: Sequence[Value], roots: Iterable[Value]) -> Stage:
        at = [v for v in wanted if self.level(v) == level]
        operators = [s for t, s in self.statements.items() if t in at and not self._is_by_unit(s)]
        operators = [s for s in operators if s.target not in self.reads]
        memories = tuple(
            m for m in self.memories if any(self.level(r.value) == level for r in m.readouts)
        )
        return Stage(tuple(operators), memories, tuple(self._kernels(level, roots)))

    def _kernels(self, level: int, roots: Iterable[Value]) -> Iterable[RowKernel]:
        states = [s for s in self.following if s in self.scanned and self.level(s) == level]
        formed = [v for v in roots if self.level(v) == level]
        groups: dict[Axes, tuple[list[Value], list[Value]]] = {}
        for state in states:
            groups.setdefault(unit_axes(state), ([], []))[0].append(state)
        for root in formed:
            groups.setdefault(unit_axes(root), ([], []))[1].append(root)
        ordered = sorted(groups.items(), key=lambda group: not group[1][0])
        for number, (axes, (own, written)) in enumerate(ordered):
            suffix = f"_{number + 1}" if len(ordered) > 1 else ""
            yield self._kernel(f"rows_{level}{suffix}", axes, own, written)

    def _kernel(
        self, name: str, axes: Axes, states: Sequence[Value], roots: Sequence[Value]
    ) -> RowKernel:
        following = [self.following[state] for state in states]
        level = max(self.level(v) for v in (*states, *roots))
        kept = {v for v in self._roots() if self.level(v) < level}
        statements, leaves = self._cone([*following, *roots], {*states, *following}, kept)
        for root in (*following, *roots):
            if not is_by_row(root):
                raise _refusal(self.form.cell, f"{root}, a weight that is changed before a product")
        for leaf in leaves:
            if leaf in self.following and leaf not in states:
                raise _refusal(
                    self.form.cell, f"{leaf}, which is read with other units than it has"
                )
        arguments = tuple(sorted({*leaves, *states}, key=lambda v: (v.order, str(v))))
        step = Program(self.form.cell, name, arguments, statements, (*following, *roots))
        step.verify()
        for value in step.values:
            if not set(unit_axes(value)) <= set(axes):
                raise _refusal(self.form.cell, f"{value}, which has axes that its reader lacks")
        if len(set(axes)) < len(axes):
            raise _refusal(self.form.cell, f"{roots[0]}, which has an axis twice")
        initials = tuple(map(self.programs.definition.initial_of, states))
        return RowKernel(name, axes, step, tuple(states), tuple(following), tuple(roots), initials)

    def _cone(
        self, results: Sequence[Value], own: set[Value], kept: set[Value]
    ) -> tuple[tuple[Statement, ...], list[Value]]:
        needed, leaves = set(results), dict[Value, None]()
        pending = list(results)
        while pending:
            value = pending.pop()
            statement = self.statements.get(value)
            is_inner = value in own and value in results
            is_leaf = (
                statement is None
                or value in kept
                or not self._is_by_unit(statement)
                or (value in self.scanned and not is_inner)
            )
            if is_leaf and not (is_inner and statement is not None):
                leaves[value] = None
                continue
            assert statement is not None
            for operand in statement.operands:
                if operand not in needed:
                    needed.add(operand)
                    pending.append(operand)
        inner = needed - leaves.keys()
        chosen = [self.statements[v] for v in self.statements if v in inner]
        return tuple(_in_order(chosen)), list(leaves)


def _statements(programs: ChunkPrograms) -> Iterable[tuple[Value, Statement]]:
    """Statements of the step, with those that form streams, and outputs from reads."""
    form = programs.form
    yield from form.step.definitions.items()
    for memory in form.memories:
        yield from form.pre[memory.states].definitions.items()
    if form.post is not None:
        yield from form.post.definitions.items()


def _in_order(statements: Sequence[Statement]) -> list[Statement]:
    """Statements, each behind those that it reads."""
    by, ordered = {s.target: s for s in statements}, dict[Value, Statement]()

    def add(statement: Statement) -> None:
        if statement.target in ordered:
            return
        for operand in statement.operands:
            if operand in by:
                add(by[operand])
        ordered[statement.target] = statement

    for statement in statements:
        add(statement)
    return list(ordered.values())


def _refusal(cell: str, what: str) -> DerivationError:
    return DerivationError(f"{cell} has {what}: no kernel of Triton does that", code=NOT_SPELLED)
