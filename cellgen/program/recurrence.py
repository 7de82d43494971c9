"""Tell what kind of recurrence a cell is, from its equations: what a step must wait for.

Input: ``SequencePrograms``. Output: ``Recurrence``, the class of every state with the reason.
States that have a form over time (``program.chunks``) are of the class of their layer, given what
earlier layers form. Of the others every forward value carries, for each such state that reaches it,
which units of the state each of its own units may read (``Reach``). That is conservative: where
structure is lost (a concatenation, states of different shapes) all units count as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sympy import Expr, Integer

from cellgen.language.cell import Definition
from cellgen.language.notation import text
from cellgen.language.value import Role, Shape, Value
from cellgen.program.chunks import (
    Delay,
    Layer,
    MaxPlusScan,
    Memory,
    Refusal,
    equation_of,
    form_over_time,
)
from cellgen.program.over_time import SequencePrograms, StateLink
from cellgen.program.ssa import Program, Statement

Unit: TypeAlias = tuple[int, Expr]
"""The axis of a value along which an axis of a state lies, and the offset between the unit that is
formed and the one unit that it reads."""
Reach: TypeAlias = tuple[Unit | None, ...]
"""For each unit axis of a state: the one unit that is read, or None where every unit may be."""


class RecurrenceClass(Enum):
    """How the new states depend on the old ones, from the hardest to the easiest."""

    DENSE = "dense"
    BLOCK_DIAGONAL = "block-diagonal"
    DIAGONAL = "diagonal, state-dependent"
    RANK_ONE = "rank-one updates of a matrix"
    MATRIX = "diagonal and linear, on a matrix"
    MAX_PLUS = "diagonal, a running maximum"
    LINEAR = "diagonal and linear"


MEANING: Mapping[RecurrenceClass, str] = {
    RecurrenceClass.DENSE: "units read each other",
    RecurrenceClass.BLOCK_DIAGONAL: "heads read only themselves: they split like batch rows",
    RecurrenceClass.DIAGONAL: "units read only themselves",
    RecurrenceClass.RANK_ONE: "what a key holds is read, and corrected by an outer product",
    RecurrenceClass.MATRIX: "a scan, s = a * s + b, of outer products b",
    RecurrenceClass.MAX_PLUS: "a scan, s = max(s + a, b)",
    RecurrenceClass.LINEAR: "a scan, s = a * s + b",
}

_ORDER = tuple(RecurrenceClass)
_APART = _ORDER[_ORDER.index(RecurrenceClass.DIAGONAL) :]
"""Classes of states whose units do not read each other, but for reads of a matrix by a key."""


@dataclass(frozen=True)
class StateClass:
    """The class of one state, and why."""

    state: Value
    kind: RecurrenceClass
    reason: str

    def __str__(self) -> str:
        return f"{self.state}: {self.kind.value}: {self.reason}"


@dataclass(frozen=True)
class Recurrence:
    """What kind of recurrence a cell is.

    ``levels`` counts the products and sums over units on the longest path from a state to a new
    state: so often must threads that share units meet in a step. ``hoisted`` are the products and
    sums that no state reaches, ``recurrent`` those that a new state waits for, ``trailing`` those
    that a state reaches and only outputs read.
    """

    kind: RecurrenceClass
    levels: int
    states: tuple[StateClass, ...]
    hoisted: tuple[Statement, ...]
    recurrent: tuple[Statement, ...]
    trailing: tuple[Statement, ...]

    @property
    def levels_text(self) -> str:
        """The levels in words."""
        return f"{self.levels} {'level' if self.levels == 1 else 'levels'} a step"

    def __str__(self) -> str:
        head = f"{self.kind.value}, {self.levels_text}: {MEANING[self.kind]}"
        if self.kind in _APART and self.levels == 0:
            head += ": no product in the time loop"
        return "\n".join([head, *(f"  {state}" for state in self.states)])


def recurrence_of(programs: SequencePrograms) -> Recurrence:
    """Classify a cell's states; the cell is of the hardest class among them.

    A state that reads no state only hands an input on: for the classes of others it is one.
    """
    flow = _Flow(programs.forward, programs.links, programs.definition)
    form = form_over_time(programs.definition)
    layer_of = {state: layer for layer in form.layers for state in layer.states}
    refused = [k for k in programs.links if isinstance(layer_of[k.previous], Refusal)]
    among = _Flow(programs.forward, refused, programs.definition)
    states = []
    for link in programs.links:
        layer = layer_of[link.previous]
        if isinstance(layer, Refusal):
            states.append(among.state_class(link, layer))
        else:
            reason = equation_of(layer, form, link.previous)
            states.append(StateClass(link.previous, _class_of(layer), reason))
    barriers = [s for s in programs.forward.statements if _is_barrier(s)]
    waited = flow.needed_by_states()
    moving = [s.kind for s in states if not isinstance(layer_of[s.state], Delay)]
    kinds = moving or [s.kind for s in states]
    return Recurrence(
        kind=min(kinds, key=_ORDER.index),
        levels=max(flow.levels[link.next] for link in programs.links),
        states=tuple(states),
        hoisted=tuple(s for s in barriers if not flow.reach[s.target]),
        recurrent=tuple(s for s in barriers if flow.reach[s.target] and s.target in waited),
        trailing=tuple(s for s in barriers if flow.reach[s.target] and s.target not in waited),
    )


def are_units_apart(programs: SequencePrograms) -> bool:
    """Whether a unit of a new state reads that unit of old states alone, all of one shape."""
    flow = _Flow(programs.forward, programs.links, programs.definition)
    kinds = {
        _kind(own, state, link.next)
        for link in programs.links
        for state, own in flow.reach[link.next].items()
    }
    shapes = {link.previous.shape for link in programs.links}
    return len(shapes) == 1 and kinds <= {RecurrenceClass.DIAGONAL}


def _class_of(layer: Layer) -> RecurrenceClass:
    """The class of the states of a layer."""
    if isinstance(layer, Memory):
        return RecurrenceClass.MATRIX if layer.is_plain else RecurrenceClass.RANK_ONE
    is_maximum = isinstance(layer, MaxPlusScan)
    return RecurrenceClass.MAX_PLUS if is_maximum else RecurrenceClass.LINEAR


def _is_barrier(statement: Statement) -> bool:
    """Products and sums look across units; parts, joins and transposes only rename them."""
    return statement.traits.mixes_units


class _Flow:
    """Follows the states through one step."""

    def __init__(
        self, program: Program, links: Sequence[StateLink], definition: Definition
    ) -> None:
        self.program = program
        self.written = {item.target: item for item in definition.equations}
        self.links = links
        self.definitions = program.definitions
        self.reach: dict[Value, dict[Value, Reach]] = {v: {} for v in program.arguments}
        self.levels = dict.fromkeys(program.arguments, 0)
        self.mixed: dict[Value, Statement] = {}
        """Where a value came to read more than one unit of a state."""
        for link in links:
            state = link.previous
            # A state that nothing reads is no argument of the program.
            axes = range(1, len(state.shape))
            self.reach[state] = {state: tuple((axis, Integer(0)) for axis in axes)}
            self.levels[state] = 0
        for statement in program.statements:
            self._follow(statement)

    def _follow(self, statement: Statement) -> None:
        target, operands = statement.target, statement.operands
        reach: dict[Value, Reach] = {}
        for operand in operands:
            for state, own in self.reach[operand].items():
                passed = _passed(statement, operand, own)
                reach[state] = _joined(reach[state], passed) if state in reach else passed
        self.reach[target] = reach
        self.levels[target] = self._level_of(statement)
        if any(None in own for own in reach.values()):
            origins = (self.mixed[v] for v in operands if v in self.mixed)
            self.mixed[target] = next(origins, statement)

    def _level_of(self, statement: Statement) -> int:
        levels = [self.levels[operand] for operand in statement.operands]
        if not _is_barrier(statement) or not self.reach[statement.target]:
            return max(levels, default=0)
        if not statement.traits.is_onto:
            return 1 + max(levels)
        here = 1 + max(levels[-2:]) if any(self.reach[v] for v in statement.operands[-2:]) else 0
        return max(levels[0], here)  # a seed grows in place

    def needed_by_states(self) -> set[Value]:
        """Values that a new state waits for."""
        return self._waited(link.next for link in self.links)

    def _waited(self, values: Iterable[Value]) -> set[Value]:
        """Some values and all that they wait for."""
        needed = set(values)
        for statement in reversed(self.program.statements):
            if statement.target in needed:
                needed.update(statement.operands)
        return needed

    # --- verdicts -----------------------------------------------------------------------------

    def state_class(self, link: StateLink, refusal: Refusal) -> StateClass:
        """The class of a state that has no form over time."""
        kinds = {s: _kind(own, s, link.next) for s, own in self.reach[link.next].items()}
        worst = min(kinds.values(), key=_ORDER.index, default=RecurrenceClass.DIAGONAL)
        if worst is RecurrenceClass.DIAGONAL:
            return StateClass(link.previous, worst, refusal.reason)
        source = next(state for state, kind in kinds.items() if kind is worst)
        return StateClass(link.previous, worst, self._why_mixed(link.next, source))

    def _why_mixed(self, following: Value, source: Value) -> str:
        statement = self.mixed.get(following)
        if statement is None:
            return f"units of {following} read other units of {source}"
        if _is_barrier(statement):
            return f"`{self._spelled(statement)}` mixes units of a state"
        if statement.traits.is_join:
            return f"`{self._spelled(statement)}` joins a state with other units"
        return f"`{self._spelled(statement)}` reads one unit of a state for many"

    def _spelled(self, statement: Statement) -> str:
        """The expression of a statement; a product without what it is added onto."""
        expression = statement.expression
        if _is_barrier(statement) and statement.traits.is_product:
            a, b = (self._named(operand) for operand in statement.operands[-2:])
            return f"{a} @ {b}"
        if statement.traits.is_sum and self._is_made(statement.operands[0]):
            return self._stated(statement)
        swap = {v: self._origin(v) for v in statement.operands}
        return text(expression.xreplace(swap))

    def _is_made(self, value: Value) -> bool:
        """Whether the compiler alone has a name for it."""
        return value.role is Role.TEMPORARY and value not in self.written

    def _stated(self, statement: Statement) -> str:
        """The author's statement that a statement was made for: the first that it leads to."""
        reached = {statement.target}
        for reader in self.program.statements:
            if reached.isdisjoint(reader.operands):
                continue
            if reader.target in self.written:
                return str(self.written[reader.target])
            reached.add(reader.target)
        return text(statement.expression)

    def _origin(self, value: Value) -> Value:
        """The value that a copy, or a function that passes its argument on, was made from."""
        statement = self.definitions.get(value)
        is_copy = statement is not None and isinstance(statement.expression, Value)
        return self._origin(statement.expression) if statement is not None and is_copy else value

    def _named(self, value: Value) -> str:
        """A factor by the author's names: what only the compiler named is written out."""
        statement = self.definitions.get(value)
        if statement is None or value.role is not Role.TEMPORARY or _is_barrier(statement):
            return str(value)
        written = text(statement.expression)
        return f"({written})" if statement.is_pointwise else written


def _kind(reach: Reach, source: Value, target: Value) -> RecurrenceClass:
    """Class of one state's reach into the new value of another."""
    own = [unit == (axis, 0) for axis, unit in enumerate(reach, start=1)]
    if source.shape == target.shape and all(own):
        return RecurrenceClass.DIAGONAL
    has_heads = len(target.shape) > 2 and source.shape[1] == target.shape[1]
    return RecurrenceClass.BLOCK_DIAGONAL if own[0] and has_heads else RecurrenceClass.DENSE


def _joined(a: Reach, b: Reach) -> Reach:
    return tuple(
        x if x is not None and y is not None and x == y else None for x, y in zip(a, b, strict=True)
    )


def _passed(statement: Statement, operand: Value, reach: Reach) -> Reach:
    """Which units of a state the target reads through one operand."""
    target = statement.target
    if statement.traits.is_reshape:
        moved = _moved_axes(operand.shape, target.shape)
        return tuple((moved[u[0]], u[1]) if u and u[0] in moved else None for u in reach)
    if len(target.shape) != len(operand.shape):
        return (None,) * len(reach)
    if statement.traits.is_part:
        axis, start, _ = statement.expression.attributes
        return tuple((u[0], u[1] + start) if u and u[0] == int(axis) else u for u in reach)
    kept = tuple(
        unit if unit and operand.shape[unit[0]] == target.shape[unit[0]] else None for unit in reach
    )
    # Of a sum, the axes that it adds up are shorter in what it forms.
    if statement.is_pointwise or statement.traits.is_sum or _is_seed(statement, operand):
        return kept
    # An operator over units: their axis, the last one mostly, is read whole; heads are kept.
    whole = len(operand.shape) - 1 - _axes_after(statement)
    return tuple(None if unit and unit[0] == whole else unit for unit in kept)


def _moved_axes(old: Shape, new: Shape) -> Mapping[int, int]:
    """Where axes of a value lie in another shape of the same rows; axes of length 1 are put in."""
    before, after = ([n for n, axis in enumerate(shape) if axis != 1] for shape in (old, new))
    same = [old[n] for n in before] == [new[n] for n in after]
    return dict(zip(before, after, strict=True)) if same else {}


def _axes_after(statement: Statement) -> int:
    """How many axes stand behind the units of a routine."""
    return statement.traits.axes_after(statement.expression.attributes)


def _is_seed(statement: Statement, operand: Value) -> bool:
    """Whether a product is added onto an operand, unit by unit, and does not contract it."""
    operands = statement.expression.operands
    return statement.traits.is_onto and operand == operands[0] and operand not in operands[1:]
