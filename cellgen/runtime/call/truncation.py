"""Back-propagation truncated term by term, for any cell: every loss term reaches ``limit`` states.

The chunked form, which cuts at fixed steps, is ``window`` of ``sequence_backward``. Here a term at
step t sends gradient through the states of the steps t - 1 ... t - limit and no further, wherever t
is (mygrad's ``bp_lim``); a step that a mask leaves out is one of them, padding is not: each row is
as it would be alone; a step that repeats an output which is no state adds a term to the step that
made it, however far back that is. With a window as well, a term stops where either stops it. A step
back is linear in the gradient that it starts from, so all terms take it together: one call over a
single step with all T B rows, ``limit`` times, and a last one with the sum of what came back.

Input: the arguments of ``sequence_backward``, arrays over time (T, B, ...). Output: its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import Checked, as_steps, lengths
from cellgen.runtime.call.settings import read_flags, read_lengths
from cellgen.runtime.host.out_of_memory import (
    dense,
    named_in_memory_errors,
    of_steps,
    steps_within,
)
from cellgen.runtime.names import final_of, gradient_of
from cellgen.runtime.options import ROWS, Options
from cellgen.runtime.results import Array

Step = Callable[[dict[str, Array], Array, Array], Mapping[str, Array]]
"""Call ``sequence_backward`` with arrays, a mask and reset flags; results by name."""


@dataclass(frozen=True)
class Tables:
    """Which steps are valid, (T, B) in the order of computation.

    ``inside``: within a row's length; ``holds``: outputs repeat those of the step ``before``.
    """

    inside: Array
    valid: Array
    resets: Array
    holds: Array
    reverse: bool
    window: int = 0

    def chunk(self, step: Array | int) -> Array:
        """The chunk of the window that a step is in; no gradient passes from one to another."""
        return np.asarray(step) // (self.window or len(self.valid) or 1)

    @property
    def chunks(self) -> Array:
        """The chunk of every step."""
        return self.chunk(np.arange(len(self.valid)))

    @property
    def before(self) -> Array:
        """The step whose state each starts from; -1: the initial state."""
        steps, rows = self.valid.shape
        before = np.empty((steps, rows), np.intp)
        last = np.full(rows, -1)
        for step in range(steps):
            before[step] = last
            last = np.where(self.valid[step], step, last)
        return before

    @property
    def starts(self) -> tuple[Array, Array]:
        """Where each row's first step is: steps and rows, of those that have a step."""
        lengths = self.inside.sum(axis=0)
        rows = np.flatnonzero(lengths)
        return (len(self.inside) - lengths if self.reverse else 0 * lengths)[rows], rows

    @property
    def ends(self) -> tuple[Array, Array]:
        """Where each row's last step is: steps and rows, of those that have a step."""
        first, rows = self.starts
        return first + self.inside.sum(axis=0)[rows] - 1, rows

    def ordered(self, array: Array) -> Array:
        """Put an array over time into the order of computation, or back."""
        return array[::-1] if self.reverse else array


@named_in_memory_errors(str)
def tables_of(label: str, options: Options, steps: int, rows: int) -> Tables:
    """Tell which steps are valid, in the order of computation. Raises ArgumentError."""
    lengths = read_lengths(label, options.lengths, steps, rows)
    mask, reset = (read_flags(label, name, options, steps, rows) for name in ("mask", "reset"))
    everywhere = np.ones((steps, rows), bool)
    inside = everywhere if lengths is None else steps_within(lengths, steps)
    valid = inside if mask is None else inside & dense(mask)
    resets = np.zeros_like(valid) if reset is None else valid & dense(reset)
    order = slice(None, None, -1) if options.reverse else slice(None)
    inside, valid, resets = (dense(table[order]) for table in (inside, valid, resets))
    started = np.logical_or.accumulate(valid, axis=0)
    holds = inside & ~valid & started & (not options.zero_output_for_mask)
    window = as_steps(label, "window", options.window, ROWS["window"].least)
    return Tables(inside, valid, resets, holds, options.reverse, window)


def truncated(
    function: Function, step: Step, checked: Checked, tables: Tables, limit: int
) -> dict[str, Array]:
    """Return every gradient with each loss term reaching ``limit`` earlier states."""
    steps, rows = tables.valid.shape
    arguments = checked.inputs
    upstreams = {a.name for a in function.arguments if a.role == "upstream"}
    fixed = {n: a for n, a in arguments.items() if n not in upstreams}
    flat = _flatten(function, fixed, tables)
    mask, reset = (t.reshape(1, steps * rows) for t in (tables.valid, tables.resets))
    of_outputs, through, initial = _upstream(
        function, arguments, _zero_states(function, checked), tables
    )
    reached = dict(through)
    total = dict(through)
    upstream = of_outputs
    for _ in range(min(limit, steps)):
        back = step({**flat, **upstream, **_last(reached)}, mask, reset)
        upstream = {}
        for state, name in function.states.items():
            passed = back[gradient_of(state)].reshape(steps, rows, *reached[name].shape[2:])
            first, of = tables.starts
            initial[name][of] += _of_rows(tables.chunk(first) == 0, passed[first, of])
            reached[name] = np.concatenate([passed[1:], np.zeros_like(passed[:1])])
            reached[name][:-1][np.diff(tables.chunks) != 0] = 0
            reached[name][~tables.inside] = 0
            total[name] = total[name] + reached[name]
    totals = dict(step({**flat, **of_outputs, **_last(total)}, mask, reset))
    for item in function.results:
        array = totals[item.name]
        if item.over_time:
            totals[item.name] = tables.ordered(array.reshape(steps, rows, *array.shape[2:]))
        elif item.of in function.states:
            totals[item.name] = initial[function.states[item.of]]
        elif item.shape[:1] == ("B",):  # constant over time
            totals[item.name] = array.reshape(steps, rows, *array.shape[1:]).sum(axis=0)
    return totals


def _flatten(
    function: Function, arguments: Mapping[str, Array], tables: Tables
) -> dict[str, Array]:
    """Lay the rows of all steps side by side, each with the state that it starts from."""
    steps, rows = tables.valid.shape
    flat = {}
    for item in function.arguments:
        if item.name not in arguments:
            continue
        array = arguments[item.name]
        if item.shape[:1] == ("T",):
            ordered = array if item.saved else tables.ordered(array)
            array = ordered.reshape(1, steps * rows, *array.shape[2:])
        elif item.role == "state":
            array = _states_before(arguments, item.name, function, tables)
        elif item.shape[:1] == ("B",):
            array = np.tile(array, (steps, *(1,) * (array.ndim - 1)))
        flat[item.name] = np.ascontiguousarray(array)
    return flat


def _states_before(
    arguments: Mapping[str, Array], name: str, function: Function, tables: Tables
) -> Array:
    """The state before every row of every step, (T B, ...), behind a reset its declared start."""
    steps, rows = tables.valid.shape
    initial = arguments[name]
    after = function.states[name]
    over_time = np.zeros((steps, *initial.shape), initial.dtype)
    if after in arguments:
        saved = any(item.name == after and item.saved for item in function.arguments)
        over_time = arguments[after] if saved else tables.ordered(arguments[after])
    known = np.concatenate([initial[None], over_time])
    before: Array = known[tables.before + 1, np.tile(np.arange(rows), (steps, 1))]
    before[tables.resets] = next(i.initial for i in function.arguments if i.name == name)
    return before.reshape(steps * rows, *initial.shape[1:])


def _zero_states(function: Function, checked: Checked) -> dict[str, Array]:
    """Zeros in the shape of each state.

    The initial one itself may be absent where no gradient depends on it.
    """
    states = function.states
    shapes = {item.name: lengths(item, checked.dims) for item in function.arguments}
    return {name: np.zeros(shapes[state], checked.dtype) for state, name in states.items()}


def _upstream(
    function: Function,
    arguments: Mapping[str, Array],
    zeros: Mapping[str, Array],
    tables: Tables,
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Gradients of outputs, row by row; those that enter states after a step, and initial ones.

    Those of final states enter at each row's last step, whatever lies behind it.
    """
    steps, rows = tables.valid.shape
    through = {name: np.tile(zero, (steps, *(1,) * zero.ndim)) for name, zero in zeros.items()}
    initial = {name: zero.copy() for name, zero in zeros.items()}
    upstream = {}
    for item in function.arguments:
        array = arguments.get(item.name)
        if not item.optional or array is None:
            continue
        if not item.over_time:
            state = function.finals[item.of]
            last, of = tables.ends
            chunk = tables.chunk(max(steps - 1, 0))
            through[state][last, of] += _of_rows(tables.chunk(last) == chunk, array[of])
            none = ~tables.inside.any(axis=0) & (chunk == 0)
            initial[state][none] = array[none]
            continue
        ordered = tables.ordered(array)
        if item.of in through:
            through[item.of][tables.holds] += ordered[tables.holds]
        else:  # no state: a step that repeats it is another term of the step that made it
            is_near = tables.chunk(tables.before) == of_steps(tables.chunks, rows)
            at = np.nonzero(tables.holds & is_near)
            ordered = ordered.copy()
            np.add.at(ordered, (tables.before[at], at[1]), ordered[at])
        upstream[item.name] = np.ascontiguousarray(
            ordered.reshape(1, steps * rows, *array.shape[2:])
        )
    return upstream, through, initial


def _of_rows(rows: Array, array: Array) -> Array:
    """The rows for which a condition holds, and zeros."""
    return np.where(rows.reshape(-1, *(1,) * (array.ndim - 1)), array, 0)


def _last(gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Name the gradients of states as those of the final states of a single step."""
    return {
        gradient_of(final_of(name)): dense(a.reshape(math.prod(a.shape[:2]), *a.shape[2:]))
        for name, a in gradients.items()
    }
