"""Spread a cell over time: the step forward, the step in reverse, and what can wait until the end.

Input: a ``Definition``. Output: ``SequencePrograms``, three step Programs and how they hang
together over time. ``forward`` also returns the values to save; ``reverse`` holds only what a
gradient of the previous state needs; ``deferred`` (weight gradients, input gradients) reads what
the other two left in memory and runs once over the rows of many steps. Work on weights alone is
done once a sequence: what the steps read in ``prologue``, what follows from gradients that are
summed over all steps in ``epilogue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cellgen.language.cell import Definition
from cellgen.language.names import Names
from cellgen.language.value import Role, Value
from cellgen.program.differentiate import Differentiated, differentiate, parameters
from cellgen.program.identity import once_for_each
from cellgen.program.keeping import kept_values
from cellgen.program.reverse import (
    copy_shared,
    cut_epilogue,
    like,
    read_through_joins,
    sum_rows_first,
)
from cellgen.program.rewrites.order import gather_products
from cellgen.program.saving import saved_values
from cellgen.program.simplify import LOWER, simplify
from cellgen.program.ssa import Program, Statement


@dataclass(frozen=True)
class StateLink:
    """One state over time.

    ``previous`` and ``next`` are its values before and after a step; ``carry`` is the gradient that
    reaches ``next`` from the step after, ``passed`` the one handed to ``previous``.
    """

    previous: Value
    next: Value
    carry: Value
    passed: Value


@dataclass(frozen=True)
class SequencePrograms:
    """A cell over time.

    ``kept`` is what ``deferred`` reads of ``reverse`` at every step, adjoints above all,
    ``gradients_of`` what ``deferred`` and ``epilogue`` return together, by what each is of; among
    them those of ``contexts``, values constant over time, of which ``deferred`` forms every step's
    share; ``fixed`` are the results of ``prologue``, and ``totals`` those of ``deferred`` that only
    ``epilogue`` reads.
    """

    definition: Definition
    forward: Program
    reverse: Program
    deferred: Program
    links: tuple[StateLink, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Value, ...]
    kept: tuple[Value, ...]
    upstream: Mapping[Value, Value]
    gradients_of: Mapping[Value, Value]
    contexts: tuple[Value, ...]
    prologue: Program | None
    epilogue: Program | None

    @property
    def gradients(self) -> tuple[Value, ...]:
        """What ``deferred`` and ``epilogue`` return together."""
        return tuple(self.gradients_of.values())

    @property
    def fixed(self) -> tuple[Value, ...]:
        """What the prologue forms."""
        return self.prologue.results if self.prologue else ()

    @property
    def arguments(self) -> tuple[Value, ...]:
        """What a call gives, in order of declaration."""
        read = {*self.forward.arguments, *(self.prologue.arguments if self.prologue else ())}
        declared = self.definition.declared
        return tuple(v for v in declared if v in read or v.role is Role.STATE)

    @property
    def totals(self) -> tuple[Value, ...]:
        """Sums over all steps that only the epilogue reads."""
        gradients = frozenset(self.gradients)
        return tuple(v for v in self.deferred.results if v not in gradients)

    @property
    def all(self) -> tuple[Program, ...]:
        """Every program there is."""
        ones = (self.forward, self.reverse, self.deferred, self.prologue, self.epilogue)
        return tuple(program for program in ones if program is not None)


@once_for_each
def unroll(definition: Definition) -> SequencePrograms:
    """Derive the three programs of a cell over time, once for each definition.

    Raises:
        DerivationError: an equation that cannot be differentiated.
    """
    step = differentiate(definition)
    gradients = _gradients(definition, step)
    memory = _remember(definition, step)
    carried = _carry(definition, step)
    backward = _cut_adjoint(gradients, memory, carried)
    forward, prologue = _cut_forward(step.forward, memory, backward)
    return SequencePrograms(
        definition,
        simplify(forward, LOWER),
        backward.reverse,
        simplify(backward.deferred, (*LOWER, gather_products)),
        carried.links,
        definition.outputs,
        memory.stored,
        backward.kept,
        step.upstream,
        gradients.of,
        gradients.contexts,
        prologue,
        simplify(backward.epilogue, LOWER) if backward.epilogue else None,
    )


@dataclass(frozen=True)
class _Gradients:
    """Gradients that a step hands to the one before it, and those that the caller gets at the end.

    The latter by what each is of; among them those of ``contexts``, which are constant over time.
    """

    passed: tuple[Value, ...]
    of: Mapping[Value, Value]
    contexts: tuple[Value, ...]

    @property
    def waiting(self) -> tuple[Value, ...]:
        """What the caller gets."""
        return tuple(self.of.values())


def _gradients(definition: Definition, step: Differentiated) -> _Gradients:
    read = set(step.forward.arguments)
    inputs = (v for v in definition.learning(Role.INPUT) if v in read)
    requested = [v for v in definition.requested if v in read]
    contexts = tuple(v for v in requested if v.is_batched)
    numbers = (v for v in requested if not v.is_batched)
    learned = parameters(definition, step.forward)
    wanted = (*inputs, *contexts, *learned, *numbers)
    return _Gradients(
        step.of(definition.states),
        {value: step.adjoints[value] for value in wanted},
        step.of(contexts),
    )


@dataclass(frozen=True)
class _Memory:
    """What the backward pass finds of a step: ``known`` in all.

    ``stored`` is what the forward pass saves for it, as it is called after the step, ``constant``
    what is computed from weights and scalars alone.
    """

    stored: tuple[Value, ...]
    constant: tuple[Value, ...]
    known: tuple[Value, ...]


def _remember(definition: Definition, step: Differentiated) -> _Memory:
    in_memory = _in_memory(definition, step.forward)
    saved = saved_values(step.forward, _read_by_adjoint(step.forward, step.full), in_memory)
    constant = _constant(step.forward)
    after = dict.fromkeys(_over_time(definition, value) for value in saved)
    return _Memory(
        tuple(value for value in after if value not in definition.outputs),
        constant,
        (*in_memory, *saved, *definition.states, *constant),
    )


@dataclass(frozen=True)
class _Carried:
    """The adjoint of a step within a loop: gradients of new states come from the step after too.

    ``totals`` are the sums of both; ``names`` knows every name in it.
    """

    full: Program
    links: tuple[StateLink, ...]
    totals: tuple[Value, ...]
    names: Names


@dataclass(frozen=True)
class _Backward:
    """The adjoint, cut: what the reverse loop forms, and what waits for many steps or for all.

    ``kept`` is what is deferred reads of the loop.
    """

    reverse: Program
    deferred: Program
    epilogue: Program | None
    kept: tuple[Value, ...]

    @property
    def all(self) -> tuple[Program, ...]:
        """Every program there is."""
        return (self.reverse, self.deferred, *([self.epilogue] if self.epilogue else []))


def _cut_adjoint(gradients: _Gradients, memory: _Memory, carried: _Carried) -> _Backward:
    """Cut where least is kept; what is deferred is then written for many rows."""
    passed, waiting, known = gradients.passed, gradients.waiting, memory.known
    full = copy_shared(carried.full, passed, waiting, known, carried.names)
    needed = full.restrict("reverse", passed, known)
    border = kept_values(full, needed, waiting, known, carried.totals)
    whole = full.restrict("deferred", waiting, (*known, *border))
    deferred, epilogue = cut_epilogue(sum_rows_first(whole, carried.names))
    deferred = read_through_joins(deferred, needed)
    kept = tuple(v for v in border if v in deferred.arguments)
    reverse = full.restrict("reverse", tuple(dict.fromkeys((*passed, *kept))), known)
    return _Backward(simplify(reverse, LOWER), deferred, epilogue, kept)


def _cut_forward(
    forward: Program, memory: _Memory, backward: _Backward
) -> tuple[Program, Program | None]:
    """The step that also saves, and what it computes from weights and scalars alone apart."""
    results = tuple(dict.fromkeys((*forward.results, *memory.stored)))
    if not memory.constant:
        return replace(forward, function="sequence_forward", results=results), None
    step = forward.restrict("sequence_forward", results, memory.constant)
    read = {value for program in (step, *backward.all) for value in program.arguments}
    fixed = [value for value in memory.constant if value in read]
    return step, simplify(forward.restrict("prologue", fixed, ()), LOWER)


def _carry(definition: Definition, step: Differentiated) -> _Carried:
    """Add the gradient that comes from the next step to the one that comes from the caller.

    Everything reads the sum: what runs in reverse, and what is deferred.
    """
    full, upstream = step.full, step.upstream
    names = Names(str(value.name) for value in full.values)
    links, sums, swap = [], [], {}
    arguments = list(full.arguments)
    for state in definition.states:
        following = definition.next_state(state)
        upstream_gradient = upstream[following]
        carry = like(upstream_gradient, names.fresh(f"{upstream_gradient.name}_next"))
        links.append(StateLink(state, following, carry, step.adjoints[state]))
        if upstream_gradient in swap:
            continue
        total = like(upstream_gradient, names.fresh(f"{upstream_gradient.name}_in"))
        swap[upstream_gradient] = total
        position = arguments.index(upstream_gradient)
        sums.append(Statement(total, upstream_gradient + carry))
        arguments.insert(position + 1, carry)
    statements = [Statement(s.target, s.expression.xreplace(swap)) for s in full.statements]
    program = Program(
        full.cell,
        full.function,
        tuple(arguments),
        (*sums, *statements),
        full.results,
        tuple(v for v in full.optional if v in arguments),
    )
    program.verify()
    return _Carried(program, tuple(links), tuple(swap.values()), names)


def _constant(forward: Program) -> tuple[Value, ...]:
    """What the step computes from weights and scalars alone; parts of those cost nothing."""
    known = {v for v in forward.arguments if not v.is_batched}
    constants: list[Value] = []
    for statement in forward.statements:
        target = statement.target
        if not target.is_batched and known.issuperset(statement.operands):
            known.add(target)
            if not statement.traits.is_part:
                constants.append(target)
    return tuple(constants)


def _in_memory(definition: Definition, forward: Program) -> tuple[Value, ...]:
    """What the caller keeps: arguments that are no states, outputs, states that are outputs."""
    states = [s for s in definition.states if definition.next_state(s) in definition.outputs]
    others = [v for v in forward.arguments if v.role is not Role.STATE]
    return (*others, *definition.outputs, *states)


def _over_time(definition: Definition, value: Value) -> Value:
    """A state that must be known at every step is saved as its new value."""
    return definition.next_state(value) if value.role is Role.STATE else value


def _read_by_adjoint(forward: Program, full: Program) -> tuple[Value, ...]:
    own = set(forward.values)
    adjoint_statements = [s for s in full.statements if s.target not in own]
    operands = {v: None for s in adjoint_statements for v in s.operands if v in own}
    return tuple(operands)
