"""Choose what the reverse loop leaves for the deferred part: a minimum cut between the two.

The deferred part reads adjoints that the loop has formed and forward values that its equations
give again. Each value can be kept, which writes and reads it once more, computed again behind the
border, or, where only deferred work reads it, computed on either side. So may sums of matrices be
that are as large as the largest state, which is then not kept for them. An adjoint that a product
reads is written and read on either side; one computed behind the border reads again what the loop
has at hand. What costs least is a minimum cut: on the side of the loop is what is not computed
behind the border.

Backward passes that form the factors of weight gradients in the loop, by those that do so behind
it: QRNN 0.88 and 0.92, minGRU 0.94 and 0.96 (1000,16,64,64 and 100,32,128,256, two threads, AVX2).
Forward values that products read stay behind it: r * h_prev of the GRU of 2014 in the loop, 1.04.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.language.value import Role, Value
from cellgen.program.cost import KEEPING, cost_of, elements
from cellgen.program.network import ENDLESS, Network
from cellgen.program.saving import is_repeatable
from cellgen.program.ssa import Program

_FINE = 256
"""What an operation counts, so that a preference below all costs can be stated."""


def kept_values(
    full: Program,
    reverse: Program,
    waiting: Sequence[Value],
    in_memory: Iterable[Value],
    carried: Sequence[Value],
) -> tuple[Value, ...]:
    """Return the values of every step that the loop keeps, in program order.

    ``reverse`` is what the loop computes in any case, ``waiting`` are the results of the deferred
    part, ``in_memory`` what both find there, ``carried`` the gradients of states as the loop forms
    them, which nothing gives again.
    """
    free = set(in_memory)
    deferred = full.restrict("deferred", waiting, free)
    looped = {*carried, *(statement.target for statement in reverse.statements)}
    own = {statement.target for statement in deferred.statements}
    stored = _factors(deferred)
    terms = _terms_of_sums(deferred, max(map(elements, carried), default=0))
    sums = {s.target for s in deferred.statements if s.traits.is_sum and terms & {*s.operands}}
    network = Network()
    for statement in deferred.statements:
        target = statement.target
        count = elements(target) * _FINE
        is_adjoint = target.role is Role.ADJOINT
        repeatable = is_repeatable(statement) and target.is_batched
        if target in looped:
            again = repeatable and not is_adjoint
            network.connect("source", target, cost_of(statement) * count if again else ENDLESS)
        elif target not in waiting and (repeatable or target in sums):
            network.connect(target, "sink", elements(target))  # on either side; rather deferred
        else:
            network.connect(target, "sink", ENDLESS)
        if target.is_batched:
            is_stored = is_adjoint and target in stored
            network.connect(target, (target, "kept"), 1 if is_stored else KEEPING * count)
        for operand in statement.operands:
            if not operand.is_batched or (operand not in free and operand not in own):
                continue
            network.connect((operand, "kept"), target, ENDLESS)
            if operand in free:
                # The loop has it at hand; a state after a step is that before the next.
                is_state = target in terms and elements(operand) == elements(target)
                if is_adjoint and (is_state or operand in reverse.arguments):
                    price = KEEPING * elements(operand) * _FINE
                    network.connect("source", (operand, "kept"), price)
                continue
            if operand not in looped and target not in looped:
                network.connect(target, operand, ENDLESS)  # in the loop, from what is there
    cut = network.cut_nearest_sink()
    return tuple(v for v in full.values if (v, (v, "kept")) in cut)


def _terms_of_sums(program: Program, largest: int) -> set[Value]:
    """Matrices of which sums within rows make less, so that they need not be kept.

    They have several axes within a row, and as many elements as the largest state.
    """
    sums = [s for s in program.statements if s.traits.is_sum and s.target.is_batched]
    terms = {term for s in sums for term in s.operands if elements(s.target) < elements(term)}
    return {term for term in terms if len(term.shape) > 2 and elements(term) >= largest}


def _factors(program: Program) -> set[Value]:
    """The values that products read, in memory whoever computes them; also as part of others."""
    factors: set[Value] = set()
    for statement in reversed(program.statements):
        is_place = statement.traits.is_place and statement.target in factors
        if statement.traits.is_product or is_place:
            factors.update(statement.operands)
    return factors
