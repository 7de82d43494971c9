"""What one layer of a stack was given and returned, and its outputs of the last step alone.

Input: a call of one layer in one direction. Output: the rows of its last valid steps, and
their gradients among those of all steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cellgen.runtime.host.out_of_memory import dense, steps_within
from cellgen.runtime.names import final_of
from cellgen.runtime.results import Array, Results
from cellgen.runtime.stacked_inputs import Named


@dataclass(frozen=True)
class LayerCall:
    """One layer in one direction: what it was given, where each name came from, what it returned.

    ``label`` names it in messages; ``shape`` is that of x as it was given; ``sources`` lists names
    by ``weights``, ``states``, ...; of one that is ``last`` the last step alone is an output.
    """

    label: str
    shape: tuple[int, ...]
    arguments: Named
    sources: Mapping[str, tuple[str, ...]]
    options: Mapping[str, object]
    result: Results
    last: bool

    @property
    def shows_all(self) -> bool:
        """Whether outputs are those of all steps, which a call forms where every step saves."""
        saved = getattr(self.result, "saved", None)
        return saved is not None and not saved.run.checkpoint

    def units(self, name: str) -> tuple[int, ...]:
        """The shape of one row of an output at one step."""
        output = getattr(self.result, name)
        if output is None:
            last: Array = getattr(self.result, final_of(name))
            return last.shape[1:]
        shape: tuple[int, ...] = output.shape
        return shape[1 if self.last and not self.shows_all else 2 :]


def last_of(call: LayerCall, name: str, *, is_state: bool) -> Array:
    """The output of each row's last step, (B, H): a state, or what that step shows."""
    output: Array = getattr(call.result, final_of(name) if is_state else name)
    if not is_state and call.shows_all:
        at, over_time = _last_steps(call), output
        batch = call.shape[0 if call.options.get("batch_first") else 1]
        output = np.zeros((batch, *over_time.shape[2:]), over_time.dtype)
        output[at.rows] = over_time[at.place]
    return output.reshape(len(output), math.prod(output.shape[1:]))


def at_last_step(
    call: LayerCall, name: str, part: Array, last: Named, *, is_state: bool
) -> tuple[Array | None, Named]:
    """Give the gradient of the last step alone as one of all steps, or of a final state."""
    if is_state:
        own, state = last.get(name), getattr(call.result, final_of(name))
        if own is not None and not (
            isinstance(own, np.ndarray) and (own.shape, own.dtype) == (state.shape, state.dtype)
        ):
            return None, last  # refused by the call that gets it, in words that name it
        return None, {**last, name: dense(part) if own is None else added(own, part)}
    output, at = getattr(call.result, name), _last_steps(call)
    shape = output.shape if call.shows_all else (*call.shape[:2], *output.shape[1:])
    spread = np.zeros(shape, output.dtype)
    spread[at.place] = part[at.rows]
    return spread, last


def added(one: Array | float, other: Array | float) -> Array:
    """The sum of two gradients."""
    total: Array = dense(one) + dense(other)
    return total


@dataclass(frozen=True)
class _LastSteps:
    """Rows with a valid step, and where the last one of each is in an array over time."""

    rows: Array
    place: tuple[Array, Array]


def _last_steps(call: LayerCall) -> _LastSteps:
    options, batch_first = call.options, bool(call.options.get("batch_first"))
    batch, steps = call.shape[:2] if batch_first else call.shape[1::-1]
    if not batch:  # of however many steps
        nothing = np.empty(0, np.intp)
        return _LastSteps(nothing, (nothing, nothing))
    valid = np.ones((steps, batch), bool)
    if (lengths := options.get("lengths")) is not None:
        valid &= steps_within(np.asarray(lengths), steps)
    if (mask := options.get("mask")) is not None:
        valid &= dense(np.asarray(mask).T if batch_first else np.asarray(mask))
    rows = np.flatnonzero(valid.any(axis=0))
    if not len(rows):
        return _LastSteps(rows, (rows, rows))
    first, last = valid.argmax(axis=0), steps - 1 - valid[::-1].argmax(axis=0)
    at = (first if options["reverse"] else last)[rows]
    return _LastSteps(rows, (rows, at) if batch_first else (at, rows))
