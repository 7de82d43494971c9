"""Traces: the derivatives of states by parameters, unit by unit, as a step hands them on.

Input: a definition. Output: ``Traces``: which states follow which parameters, the slopes of a step
that make the next traces of the present ones, and the gradients of the step's own loss. For exact
traces each unit of a state must follow its own unit alone; approximations leave out the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sympy import Expr

from cellgen.errors import DeclarationError
from cellgen.language.cell import Definition
from cellgen.language.notation import text
from cellgen.language.value import Shape, Value
from cellgen.program.derive import adjoint
from cellgen.program.derive import forward as forward_program
from cellgen.program.ssa import Statement
from cellgen.program.transforms.own_units import OwnUnits, Way, axes_along
from cellgen.program.transforms.probes import Manner, ProbePlace, probed

EXACT, E_PROP, SNAP_1 = "", "e-prop", "snap-1"
APPROXIMATIONS = (E_PROP, SNAP_1)


@dataclass(frozen=True)
class TraceGroup:
    """The places where a parameter enters in one manner: they share a trace for each state.

    ``parts`` are the units that states read where they read parts of what the parameter forms,
    (start, length) each, and nothing where they read all of it.
    """

    parameter: Value
    entry: Manner
    places: tuple[ProbePlace, ...]
    parts: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def units(self) -> Shape:
        """Units of what the parameter forms, where parts of it have a trace; else none."""
        return self.places[0].probe.shape[1:] if self.parts else ()


@dataclass(frozen=True)
class Coupling:
    """A state of the step before that a state follows, unit by unit: its slope, and how it lies."""

    state: Value
    slope: Expr
    axes: Shape


@dataclass(frozen=True)
class Trace:
    """The derivative of a state by the parameter of a group.

    ``axes`` are those of what the parameter forms, along the units of the state: 1 where all of
    them follow one. ``slopes`` are, place by place and part by part, those of this step.
    """

    group: TraceGroup
    state: Value
    axes: Shape
    slopes: tuple[tuple[ProbePlace, Expr, Expr], ...]
    couplings: tuple[Coupling, ...]


class Traces:
    """The traces of a definition, and what a step needs of them."""

    def __init__(
        self,
        definition: Definition,
        parameters: Sequence[Value],
        outputs: Sequence[Value],
        approximation: str,
    ) -> None:
        self.definition = definition
        self.approximation = approximation
        holds = approximation != EXACT
        keeps = approximation == SNAP_1
        self.probed = probed(definition, parameters, holds=holds, keeps_diagonals=keeps)
        self.program = forward_program(self.probed.definition)
        arguments = set(self.program.arguments)
        self.places = [place for place in self.probed.places if place.probe in arguments]
        self.states = [state for state in definition.states if state in arguments]
        called = {place.probe: str(place.parameter.name) for place in self.places}
        sources = [*called, *self.states]
        self.units = OwnUnits(self.program, sources, self._own_units, called)
        self._moved = self._moving()
        if not holds:
            self._refuse_mixed()
        full, adjoints = adjoint(self.program, outputs, sources)
        given_last = full.optional[len(self.program.optional) :]
        self.upstream = dict(zip(outputs, given_last, strict=True))
        zero = {s.target for s in full.statements if s.expression == 0}
        self.adjoints = {v: adjoints[v] for v in sources if adjoints[v] not in zero}
        """Gradients of this step's loss by probes and by states of the step before."""
        after = full.statements[len(self.program.statements) :]
        self.statements = (*self.program.statements, *self.units.statements, *after)
        self.traces = self._needed(self._all())

    def _own_units(self, statement: Statement) -> Sequence[Value]:
        """Slopes of a product by its own units, where they count: of each of its blocks."""
        weight = statement.operands[-1]
        return self.probed.own_units.get(weight, ()) if statement.traits.is_product else ()

    # --- which states follow parameters ---

    def _coupled(self, state: Value) -> dict[Value, list[tuple[Way, Expr]]]:
        """The states of the step before that a new state follows unit by unit."""
        ways: dict[Value, list[tuple[Way, Expr]]] = {}
        for way, slope in self.units.ways[self.definition.next_state(state)].items():
            whole = _without_ones(way.axes) == _without_ones(way.source.shape[1:])
            if way.source in self.states and way.start == 0 and whole:
                ways.setdefault(way.source, []).append((way, slope))
        return ways

    def _follows(self, state: Value) -> set[Value]:
        """Every source that a new state follows, in whatever manner."""
        new = self.definition.next_state(state)
        return {way.source for way in self.units.ways[new]} | set(self.units.mixed[new])

    def _moving(self) -> set[Value]:
        """States that follow a parameter."""
        moving: set[Value] = {place.probe for place in self.places}
        while True:
            more = {s for s in self.definition.states if self._follows(s) & moving} - moving
            if not more:
                return moving
            moving |= more

    def _refuse_mixed(self) -> None:
        for state in self.definition.states:
            new = self.definition.next_state(state)
            ways = {way.source for way in self.units.ways[new] if way.source in self.states}
            lost = ways - set(self._coupled(state))
            for source in (*self.states, *(place.probe for place in self.places)):
                statement = self.units.mixed[new].get(source)
                if source not in self._moved or (statement is None and source not in lost):
                    continue
                raise self._mixed(new, source, statement)

    def _mixed(self, new: Value, source: Value, statement: Statement | None) -> DeclarationError:
        parameter = {p.probe: str(p.parameter.name) for p in self.places}.get(source)
        place = f" (`{self._text_of(statement)}`)" if statement is not None else ""
        leave = f"leave {parameter} out of by=, or " if parameter else ""
        return DeclarationError(
            f"online({self.definition.class_name}): units of {new} read other units of "
            f"{parameter or source}{place}, so that exact traces would have an entry for every "
            f"unit and every parameter; {leave}for an approximation pass "
            f"approximation='e-prop', or approximation='snap-1'",
            code="declaration.online",
        )

    def _text_of(self, statement: Statement) -> str:
        swap = dict(self.probed.restored)
        definitions = self.program.definitions
        for operand in statement.operands:
            definition = definitions.get(operand)
            if definition is not None and operand not in swap and definition.is_pointwise:
                swap[operand] = definition.expression.xreplace(self.probed.restored)
        return text(statement.expression.xreplace(swap))

    # --- traces ---

    def _groups(self) -> list[TraceGroup]:
        kinds = dict.fromkeys((place.parameter, place.entry) for place in self.places)
        return [
            self._group(*kind, [p for p in self.places if (p.parameter, p.entry) == kind])
            for kind in kinds
        ]

    def _group(self, parameter: Value, entry: Manner, places: Sequence[ProbePlace]) -> TraceGroup:
        parts: dict[tuple[Expr, Expr], None] = {}
        for state in self.definition.states:
            for way in self.units.ways[self.definition.next_state(state)]:
                probes = [place.probe for place in places if place.probe == way.source]
                if probes and _without_ones(way.axes) != _without_ones(probes[0].shape[1:]):
                    parts[way.start, way.axes[-1]] = None
        if not parts:
            return TraceGroup(parameter, entry, tuple(places))
        if any(len(place.probe.shape) > 2 for place in places):
            raise DeclarationError(
                f"online({self.definition.class_name}): states read parts of what "
                f"{parameter.name} forms for heads; declare a weight for each part",
                code="declaration.online",
            )
        # Starts of parts differ by positive terms, so that fewer terms are nearer.
        ordered = sorted(parts, key=lambda p: (sum(p[0].as_coefficients_dict().values()), str(p)))
        return TraceGroup(parameter, entry, tuple(places), tuple(ordered))

    def _all(self) -> list[Trace]:
        """Every trace that is not 0, in the order of parameters and states."""
        traces: list[Trace] = []
        for group in self._groups():
            axes: dict[Value, Shape] = {}
            for _ in self.definition.states:  # each round reaches one state more, or none
                for state in self.definition.states:
                    lying = axes.get(state) or self._axes(group, state, axes)
                    if lying is not None:
                        axes[state] = lying
            states = [state for state in self.definition.states if state in axes]
            traces += [self._trace(group, state, axes) for state in states]
        return traces

    def _axes(self, group: TraceGroup, state: Value, known: Mapping[Value, Shape]) -> Shape | None:
        """How a state lies along what a parameter forms; nothing where it does not follow it."""
        new = self.definition.next_state(state)
        probes = {place.probe for place in group.places}
        for way in self.units.ways[new]:
            if way.source in probes:
                return way.axes
        for source, ways in self._coupled(state).items():
            if source in known:
                return axes_along(source.shape[1:], ways[0][0].axes, known[source]) or known[source]
        return None

    def _trace(self, group: TraceGroup, state: Value, axes: Mapping[Value, Shape]) -> Trace:
        ways = self.units.ways[self.definition.next_state(state)]
        probes = {place.probe: place for place in group.places}
        slopes = [(probes[w.source], w.start, own) for w, own in ways.items() if w.source in probes]
        couplings = [
            Coupling(source, own, way.axes)
            for source, links in self._coupled(state).items()
            if source in axes
            for way, own in links
        ]
        return Trace(group, state, axes[state], tuple(slopes), tuple(couplings))

    def _needed(self, traces: Sequence[Trace]) -> list[Trace]:
        """Traces that a gradient reads, or the next step of one that is needed."""
        needed = {(id(t.group), t.state) for t in traces if t.state in self.adjoints}
        while True:
            more = {
                (id(t.group), coupling.state)
                for t in traces
                if (id(t.group), t.state) in needed
                for coupling in t.couplings
            } - needed
            if not more:
                return [t for t in traces if (id(t.group), t.state) in needed]
            needed |= more


def _without_ones(axes: Shape) -> Shape:
    return tuple(axis for axis in axes if axis != 1)
