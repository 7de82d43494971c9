"""Choose what the forward pass keeps for the backward pass: an exact minimum cut over the step.

A forward value that the adjoint reads is saved, or recomputed from values that are. Products and
sums are never recomputed, pointwise work may be. What costs least, bytes that are written and read
and operations that are computed once more, is a minimum cut between the values that cannot be
recomputed and those that are read: a value behind the border costs its operations, one on it its
bytes. Among cuts of equal cost the one nearest to the readers is taken, which recomputes least.
"""

from __future__ import annotations

from collections.abc import Iterable

from cellgen.language.value import Role, Value
from cellgen.program.cost import SAVING, cost_of, elements
from cellgen.program.network import ENDLESS, Network
from cellgen.program.ssa import Program, Statement


def saved_values(
    forward: Program, read: Iterable[Value], in_memory: Iterable[Value]
) -> tuple[Value, ...]:
    """Return the forward values to save, in program order.

    ``read`` are the forward values that the adjoint uses, ``in_memory`` those that are kept anyway
    (inputs, outputs, states that are outputs). A state argument that is read and not in memory is
    among the candidates: saving it means saving the state over time.
    """
    free = set(in_memory)
    network = Network()
    for value in forward.values:
        if value in free or not value.is_batched:
            continue
        network.connect((value, "in"), (value, "out"), _weight(forward, value))
        if _is_fixed(forward, value):
            network.connect("source", (value, "in"), ENDLESS)
    for statement in forward.statements:
        target = statement.target
        if target in free or not target.is_batched or _is_fixed(forward, target):
            continue
        network.connect("source", (target, "in"), cost_of(statement) * elements(target))
        for operand in statement.operands:
            if operand not in free and operand.is_batched:
                network.connect((operand, "out"), (target, "in"), ENDLESS)
    for value in read:
        if value not in free and value.is_batched:
            network.connect((value, "out"), "sink", ENDLESS)
    cut = network.cut_nearest_sink()
    return tuple(v for v in forward.values if ((v, "in"), (v, "out")) in cut)


def _is_fixed(forward: Program, value: Value) -> bool:
    """Values that nothing can give back: states, products, sums."""
    definition = forward.definitions.get(value)
    if definition is None:
        return value.role is Role.STATE
    return not is_repeatable(definition)


def is_repeatable(statement: Statement) -> bool:
    """Pointwise work and views; products and sums are formed once."""
    return statement.is_pointwise or statement.traits.is_repeatable


def _weight(forward: Program, value: Value) -> int:
    definition = forward.definitions.get(value)
    if definition is not None and definition.traits.is_place:
        return ENDLESS  # a view of something else: save that, or what is computed from it
    return SAVING * elements(value)
