"""Spread a cell over time: the step forward, the step in reverse, and what can wait until the end.

Input: a ``Definition``. Output: ``SequencePrograms``, three step Programs and how they hang
together over time. ``forward`` also returns the values to save; ``reverse`` holds only what a
gradient of the previous state needs; ``deferred`` (weight gradients, input gradients) reads what
the other two left in memory and runs once over the rows of many steps. Work on weights alone is
done once a sequence: what the steps read in ``prologue``, what follows from gradients that are
summed over all steps in ``epilogue``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Integer

from cellgen.language.cell import Definition
from cellgen.language.names import Names
from cellgen.language.ops import part
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.derive import adjoint
from cellgen.program.derive import forward as forward_program
from cellgen.program.identity import once_for_each
from cellgen.program.keeping import kept_values
from cellgen.program.rewrites.exponentials import share_exponentials
from cellgen.program.rewrites.order import gather_products
from cellgen.program.saving import saved_values
from cellgen.program.simplify import FORWARD, LOWER, simplify
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
    def given(self) -> tuple[Value, ...]:
        """What a call gives, in order of declaration."""
        read = {*self.forward.arguments, *(self.prologue.arguments if self.prologue else ())}
        declared = self.definition.declared
        return tuple(v for v in declared if v in read or v.role is Role.STATE)

    @property
    def totals(self) -> tuple[Value, ...]:
        """Sums over all steps that only the epilogue reads."""
        return tuple(v for v in self.deferred.results if v not in self.gradients)

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
    next_states = tuple(definition.next_state(state) for state in definition.states)
    results = tuple(dict.fromkeys((*definition.outputs, *next_states)))
    step = replace(forward_program(definition.with_outputs(results)), function="sequence_forward")
    forward = simplify(step, FORWARD)
    read = set(forward.arguments)
    inputs = [v for v in definition.learning(Role.INPUT) if v in read]
    contexts = [v for v in definition.requested if v in read and v.is_batched]
    parameters = [v for v in definition.learning(Role.WEIGHT, Role.BIAS) if v in read]
    parameters += [v for v in definition.requested if v in read and not v.is_batched]
    wanted = (*inputs, *contexts, *parameters)
    moving = (*inputs, *contexts, *definition.states)
    full, adjoints = adjoint(forward, results, (*moving, *parameters))
    full = simplify(full, (share_exponentials,))
    forward = forward.taken_from(full)
    upstream = dict(zip(results, full.optional, strict=True))
    passed = [adjoints[state] for state in definition.states]
    waiting = [adjoints[value] for value in wanted]
    adjoint_reads = _read_by_adjoint(forward, full)
    names = Names(str(value.name) for value in full.values)
    full, links, totals = _carry(definition, full, adjoints, upstream, names)
    in_memory = _in_memory(definition, forward)
    saved = saved_values(forward, adjoint_reads, in_memory)
    constant = _constant(forward)
    given = (*in_memory, *saved, *definition.states, *constant)
    full = _copy_shared(full, passed, waiting, given, names)
    reverse = full.restrict("reverse", passed, given)
    border = kept_values(full, reverse, waiting, given, totals)
    deferred = full.restrict("deferred", waiting, (*given, *border))
    deferred, epilogue = _cut_epilogue(_sum_rows_first(deferred, names))
    deferred = _read_through_joins(deferred, reverse)
    kept = tuple(v for v in border if v in deferred.arguments)
    reverse = full.restrict("reverse", tuple(dict.fromkeys((*passed, *kept))), given)
    saved_next = tuple(dict.fromkeys(_over_time(definition, value) for value in saved))
    stored = tuple(v for v in saved_next if v not in definition.outputs)
    full_forward = replace(forward, results=tuple(dict.fromkeys((*results, *stored))))
    reverse = simplify(reverse, LOWER)
    full_forward, prologue = _cut_prologue(
        forward, full_forward, constant, (reverse, deferred, *([epilogue] if epilogue else []))
    )
    return SequencePrograms(
        definition,
        simplify(full_forward, LOWER),
        reverse,
        simplify(deferred, (*LOWER, gather_products)),
        links,
        definition.outputs,
        stored,
        kept,
        {v: a for v, a in upstream.items() if v in definition.outputs},
        dict(zip(wanted, waiting, strict=True)),
        tuple(adjoints[value] for value in contexts),
        prologue,
        simplify(epilogue, LOWER) if epilogue else None,
    )


def _cut_prologue(
    forward: Program,
    full_forward: Program,
    constant: tuple[Value, ...],
    others: Sequence[Program],
) -> tuple[Program, Program | None]:
    """Take what is computed from weights and scalars alone out of the forward step."""
    if not constant:
        return full_forward, None
    step = forward.restrict("sequence_forward", full_forward.results, constant)
    read = {value for program in (step, *others) for value in program.arguments}
    fixed = [value for value in constant if value in read]
    return step, simplify(forward.restrict("prologue", fixed, ()), LOWER)


def _constant(forward: Program) -> tuple[Value, ...]:
    """What the step computes from weights and scalars alone; parts of those cost nothing."""
    known = {v for v in forward.arguments if not v.is_batched}
    found: list[Value] = []
    for statement in forward.statements:
        target = statement.target
        if not target.is_batched and known.issuperset(statement.operands):
            known.add(target)
            if not statement.traits.is_part:
                found.append(target)
    return tuple(found)


def _sum_rows_first(deferred: Program, names: Names) -> Program:
    """Let the gradient of a number be a sum over rows, ``<name>_units``, then over units.

    One chain over all rows and units would keep a single thread busy, an addition at a time.
    """
    statements: list[Statement] = []
    for statement in deferred.statements:
        target, operands = statement.target, statement.operands
        if statement.traits.is_sum and operands[0].is_batched and not target.is_batched:
            inner = operands[0].shape[1:]
            is_aligned = len(target.shape) == 1 + len(inner)  # (1, H), of (B, H)
            shape = (Integer(1), *inner) if is_aligned else inner
            if target.shape != shape:
                units = _like(target, names.fresh(f"{target.name}_units"), shape)
                statements.append(Statement(units, Apply("sum_to", operands, shape)))
                statement = Statement(target, Apply("sum_to", (units,), target.shape))
        statements.append(statement)
    return deferred.with_statements(statements)


def _cut_epilogue(deferred: Program) -> tuple[Program, Program | None]:
    """Take what has no rows out of the deferred part: it waits for sums over all steps."""
    given, late = set(deferred.arguments), set[Value]()
    for statement in deferred.statements:
        operands = statement.operands
        if statement.target.is_batched or any(v.is_batched for v in operands):
            continue
        is_place = statement.traits.is_join and not late.intersection(operands)
        is_view = statement.traits.is_part and given.issuperset(operands)
        if not is_place and not is_view:
            late.add(statement.target)
    last = [v for v in deferred.results if v in late]
    if not last:
        return deferred, None
    formed = {s.target for s in deferred.statements if s.target not in late}
    epilogue = deferred.restrict("epilogue", last, formed)
    first = [v for v in deferred.results if v not in late]
    first += [v for v in epilogue.arguments if v in formed and v not in first]
    return deferred.restrict("deferred", first, ()), epilogue


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
    found = {v: None for s in adjoint_statements for v in s.operands if v in own}
    return tuple(found)


def _read_through_joins(deferred: Program, reverse: Program) -> Program:
    """Read an adjoint that is kept inside a joined one as a part of that."""
    reads = set(deferred.arguments)
    parts: dict[Value, Statement] = {}
    for statement in reverse.statements:
        if not statement.traits.is_join or statement.target not in reads:
            continue
        axis, start = int(statement.expression.attributes[0]), Integer(0)
        for piece in statement.expression.operands:
            size = piece.shape[axis]
            if piece in reads:
                parts.setdefault(piece, Statement(piece, part(statement.target, axis, start, size)))
            start = start + size
    arguments = tuple(v for v in deferred.arguments if v not in parts)
    statements = (*parts.values(), *deferred.statements)
    program = replace(deferred, arguments=arguments, statements=statements)
    program.verify()
    return program


def _carry(
    definition: Definition,
    full: Program,
    adjoints: Mapping[Value, Value],
    upstream: Mapping[Value, Value],
    names: Names,
) -> tuple[Program, tuple[StateLink, ...], tuple[Value, ...]]:
    """Add the gradient that comes from the next step to the one that comes from the caller.

    Everything reads the sum: what runs in reverse, and what is deferred. Also returns the sums.
    """
    links, sums, swap = [], [], {}
    arguments = list(full.arguments)
    for state in definition.states:
        following = definition.next_state(state)
        given = upstream[following]
        carry = _like(given, names.fresh(f"{given.name}_next"))
        links.append(StateLink(state, following, carry, adjoints[state]))
        if given in swap:
            continue
        total = _like(given, names.fresh(f"{given.name}_in"))
        swap[given] = total
        position = arguments.index(given)
        if following in definition.outputs:
            sums.append(Statement(total, given + carry))
            arguments.insert(position + 1, carry)
        else:
            sums.append(Statement(total, carry))
            arguments[position] = carry
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
    return program, tuple(links), tuple(swap.values())


def _copy_shared(
    full: Program,
    passed: Sequence[Value],
    waiting: Sequence[Value],
    given: Sequence[Value],
    names: Names,
) -> Program:
    """Let what is formed in reverse and serves twice be a value of its own, ``<name>_step``.

    A gradient that is returned at the end is then a copy of it, and so is one that is handed to the
    previous state while what is deferred reads it at every step.
    """
    formed = {statement.target for statement in full.restrict("reverse", passed, given).statements}
    deferred = full.restrict("deferred", waiting, (*given, *formed))
    shared = [v for v in waiting if v in formed] + [v for v in passed if v in deferred.arguments]
    swap = {value: _like(value, names.fresh(f"{value.name}_step")) for value in shared}
    statements = [
        Statement(swap.get(s.target, s.target), s.expression.xreplace(swap))
        for s in full.statements
    ]
    copies = [Statement(value, step) for value, step in swap.items()]
    return full.with_statements((*statements, *copies))


def _like(value: Value, name: str, shape: Shape | None = None) -> Value:
    return Value(name, shape or value.shape, value.role, value.owner, value.order)
