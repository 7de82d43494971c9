"""Differentiate the step of a cell, once for all that is made of it: functions of a step, a loop.

Input: a ``Definition``. Output: a ``Differentiated``, the forward program and its whole adjoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellgen.language.cell import Definition
from cellgen.language.value import Role, Value
from cellgen.program.derive import adjoint
from cellgen.program.derive import forward as forward_program
from cellgen.program.identity import once_for_each
from cellgen.program.rewrites.exponentials import share_exponentials
from cellgen.program.simplify import FORWARD, simplify
from cellgen.program.ssa import Program


@dataclass(frozen=True)
class Differentiated:
    """A step and its adjoint.

    ``plain`` is the simplified forward program and ``mathematics`` its whole adjoint, as the
    equations have them; ``forward`` and ``full`` are the same as they are computed, exponentials
    shared. ``adjoints`` tells the adjoint of every value that has one, ``upstream`` the gradient
    that comes from outside for each of the results.
    """

    plain: Program
    mathematics: Program
    forward: Program
    full: Program
    adjoints: Mapping[Value, Value]
    upstream: Mapping[Value, Value]

    def of(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The adjoints of some values."""
        return tuple(self.adjoints[value] for value in values)


@once_for_each
def differentiate(definition: Definition) -> Differentiated:
    """Derive the adjoint of a step by all that a cell has gradients of, once for each definition.

    Raises:
        DerivationError: an equation that cannot be differentiated.
    """
    plain = simplify(forward_program(definition), FORWARD)
    moving = moving_values(definition, plain)
    unread = (state for state in definition.states if state not in moving)
    wanted = (*moving, *parameters(definition, plain), *(definition.gradients or ()), *unread)
    mathematics, adjoints = adjoint(plain, definition.outputs, dict.fromkeys(wanted))
    full = simplify(mathematics, (share_exponentials,))
    upstream = dict(zip(definition.outputs, full.optional, strict=True))
    return Differentiated(plain, mathematics, plain.taken_from(full), full, adjoints, upstream)


def moving_values(definition: Definition, forward: Program) -> tuple[Value, ...]:
    """Inputs that learn, states, and values that the author asked a gradient of, where read."""
    read = set(forward.arguments)
    moving = [v for v in definition.learning(Role.INPUT, Role.STATE) if v in read]
    return (*moving, *(v for v in definition.requested if v in read))


def parameters(definition: Definition, forward: Program) -> tuple[Value, ...]:
    """Weights and biases that learn, where they are read."""
    read = set(forward.arguments)
    return tuple(v for v in definition.learning(Role.WEIGHT, Role.BIAS) if v in read)
