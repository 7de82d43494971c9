"""Choose what the reverse loop leaves for the deferred part: a minimum cut between the two.

The deferred part reads adjoints that the loop has formed and forward values that its equations
give again. Each value can be kept, which writes and reads it once more, computed again behind the
border, or, where only deferred work reads it, computed on either side. What costs least is a
minimum cut: on the side of the loop is what is not computed behind the border.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.program import Program
from cellgen.schedule.cost import KEEPING, cost_of, elements
from cellgen.schedule.network import ENDLESS, Network
from cellgen.schedule.saving import is_repeatable
from cellgen.value import Role, Value

_FINE = 256
"""What an operation counts, so that a preference below all costs can be stated."""


def kept_values(
    full: Program,
    reverse: Program,
    waiting: Sequence[Value],
    given: Iterable[Value],
    carried: Iterable[Value],
) -> tuple[Value, ...]:
    """Return the values of every step that the loop keeps, in program order.

    ``reverse`` is what the loop computes in any case, ``waiting`` are the results of the deferred
    part, ``given`` what both find in memory, ``carried`` the gradients of states as the loop forms
    them, which nothing gives again.
    """
    free = set(given)
    part = full.restrict("deferred", waiting, free)
    looped = {*carried, *(statement.target for statement in reverse.statements)}
    own = {statement.target for statement in part.statements}
    network = Network()
    for statement in part.statements:
        target = statement.target
        count = elements(target) * _FINE
        repeatable = is_repeatable(statement) and target.is_batched
        if target in looped:
            again = repeatable and target.role is not Role.ADJOINT
            network.connect("source", target, cost_of(statement) * count if again else ENDLESS)
        elif repeatable and target not in waiting:
            network.connect(target, "sink", elements(target))  # on either side; rather deferred
        else:
            network.connect(target, "sink", ENDLESS)
        if target.is_batched:
            network.connect(target, (target, "kept"), KEEPING * count)
        for operand in statement.operands:
            if operand in free or operand not in own or not operand.is_batched:
                continue
            network.connect((operand, "kept"), target, ENDLESS)
            if operand not in looped and target not in looped:
                network.connect(target, operand, ENDLESS)  # in the loop, from what is there
    cut = network.cut_nearest_sink()
    return tuple(v for v in full.values if (v, (v, "kept")) in cut)
