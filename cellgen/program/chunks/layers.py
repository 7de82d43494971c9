"""What a layer is: a state, or states that are coupled, with the form that they have over time.

Layers are computed one after the other, each for all steps at once. What a layer reads of the step
are its *streams*: values of every step that its ``pre`` Program forms from inputs, weights, states
and reads of earlier layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from sympy import Expr

from cellgen.language.value import Value
from cellgen.program.ssa import Program, Statement


class ForbiddenError(Exception):
    """Why states have no form over time: the statement that forbids it, and what it does."""

    def __init__(self, why: str, statement: Statement | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.statement = statement


class Decay(Enum):
    """What a memory is multiplied by at a step."""

    NONE = "none"
    HEAD = "a number a head"
    KEY = "a number a key"


@dataclass(frozen=True)
class Delay:
    """``x' = f(inputs)``: over time a shift."""

    state: Value
    next: Value

    @property
    def states(self) -> tuple[Value, ...]:
        """The states of the layer."""
        return (self.state,)

    @property
    def streams(self) -> tuple[Value, ...]:
        """Its new values are all that it needs."""
        return (self.next,)


@dataclass(frozen=True)
class MaxPlusScan:
    """``x' = max(x + rise, other)``; where both are equal the first argument is taken.

    ``moved_first``: that ``x + rise`` is the first argument.
    """

    state: Value
    next: Value
    rise: Value
    other: Value
    moved_first: bool

    @property
    def states(self) -> tuple[Value, ...]:
        """The states of the layer."""
        return (self.state,)

    @property
    def streams(self) -> tuple[Value, ...]:
        """What a step adds, and what it compares with."""
        return (self.rise, self.other)


@dataclass(frozen=True)
class LinearScan:
    """``x_i' = sum over j of factors[i, j] * x_j + terms[i]``, unit by unit.

    ``factors`` holds those that are not 0, ``following`` the new values.
    """

    states: tuple[Value, ...]
    following: tuple[Value, ...]
    factors: Mapping[tuple[int, int], Value]
    terms: tuple[Value, ...]

    @property
    def streams(self) -> tuple[Value, ...]:
        """Factors row by row, then terms."""
        return (*self.factors.values(), *self.terms)


@dataclass(frozen=True)
class Update:
    """Rank-one terms that share a key: ``(scale * value - sum_e erased[e] * u_e) key^T``.

    ``u_e`` is what the memory held for the e-th erased read. A value or a scale that is None is no
    factor: no value, or a scale of 1.
    """

    key: Value
    value: Value | None
    scale: Value | None
    erased: Mapping[int, Value]


@dataclass(frozen=True)
class Readout:
    """``value = S query``, of the memory before the step or after it."""

    value: Value
    query: Value
    after: bool


@dataclass(frozen=True)
class Memory:
    """``S' = S decay - sum_e (S a_e) b_e^T + sum_j v_j k_j^T``, read as ``S q`` or ``S' q``.

    Axes count in the state's shape; without a ``value_axis`` it is a vector for each row and head.
    ``log_decay`` is the logarithm of the decay, formed without one where the equations allow, and
    ``bound`` what it is proven not to fall below at a step. ``positive`` are weights or inputs that
    are decays: a call checks that they are not negative. ``beside`` is the memory of whose matrix
    this vector is one more column; ``is_scale``: whose values that matrix scales its own by.
    """

    state: Value
    next: Value
    value_axis: int | None
    key_axis: int
    decay: Decay
    log_decay: Value | None
    bound: float | None
    floored: bool
    erasers: tuple[Value, ...]
    updates: tuple[Update, ...]
    readouts: tuple[Readout, ...]
    positive: tuple[Value, ...] = ()
    beside: Value | None = None
    is_scale: bool = False

    @property
    def states(self) -> tuple[Value, ...]:
        """The states of the layer."""
        return (self.state,)

    @property
    def streams(self) -> tuple[Value, ...]:
        """Everything that a step says: decay, erased reads, updates, queries."""
        streams: list[Value | None] = [self.log_decay, *self.erasers]
        for update in self.updates:
            streams += [update.key, update.value, update.scale, *update.erased.values()]
        streams += [readout.query for readout in self.readouts]
        return tuple(dict.fromkeys(stream for stream in streams if stream is not None))

    @property
    def in_rows(self) -> tuple[Value, ...]:
        """The streams that are rows of keys or, of a matrix, of values; the others are numbers."""
        rows = [*self.erasers, *(update.key for update in self.updates)]
        rows += [readout.query for readout in self.readouts]
        if self.value_axis is not None:
            rows += [update.value for update in self.updates if update.value is not None]
        return tuple(dict.fromkeys(rows))

    @property
    def is_plain(self) -> bool:
        """Whether nothing of it is erased."""
        return not self.erasers


Layer: TypeAlias = Delay | MaxPlusScan | LinearScan | Memory


@dataclass(frozen=True)
class Refusal:
    """States without a form over time, and the statement that forbids it."""

    states: tuple[Value, ...]
    reason: str


@dataclass(frozen=True)
class FormOverTime:
    """A cell's states in the order in which they can be computed, each for all steps.

    ``pre`` forms the streams of each layer, row by row; ``post`` the outputs from what was read, as
    far as they are no states. Where a layer is a ``Refusal`` there are none of either. ``stated``
    says of a stream what it is.
    """

    cell: str
    step: Program
    layers: tuple[Layer | Refusal, ...]
    pre: Mapping[tuple[Value, ...], Program] = field(default_factory=dict)
    post: Program | None = None
    stated: Mapping[Value, Expr] = field(default_factory=dict)

    @property
    def refusal(self) -> Refusal | None:
        """The first layer that is none."""
        return next((one for one in self.layers if isinstance(one, Refusal)), None)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The layers that are memories."""
        return tuple(one for one in self.layers if isinstance(one, Memory))
