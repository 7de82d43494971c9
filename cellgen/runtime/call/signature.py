"""What the arrays of a function over time are in a call with options: their axes and types.

Input: the interface of a function, and the options that change it. Output: the interface as such a
call has it. Calls of NumPy's arrays and of devices, layouts of torch and JAX, whose lengths may be
symbols, ask here; where C makes a call, ``cellgen_signature.h`` says the same by the descriptor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from cellgen.runtime.abi import EVERY, Argument, Function
from cellgen.runtime.call.arguments import has_steps
from cellgen.runtime.call.stored import FLOAT16, STORED
from cellgen.runtime.options import FORWARD, Options

CHECKPOINTS = "T kept"
"""How many checkpoints there are, as interfaces have it."""
ROWS_APART, NORMS = 1, 2
"""Gradients of weights row by row, (B, ...); the sums of their squares alone, (B)."""


@cache
def signature(
    function: Function, every: int = 1, *, last: bool = False, per_row: int = 0
) -> Function:
    """The interface of a function in a call with options.

    Outputs over time, and the gradients of them that a backward pass takes, are of every so many-th
    step, (T // every, B, ...), or of the ``last`` alone, (B, ...). Gradients of weights are sums,
    or one for each row (``per_row``: ``ROWS_APART``, ``NORMS``). What a backward pass reads of
    outputs, and what is saved, are all steps.
    """
    if every == 1 and not last and not per_row:
        return function
    if function.name == FORWARD:
        results = tuple(_shown(item, every, last=last) for item in function.results)
        return replace(function, results=results)
    return replace(
        function,
        arguments=tuple(
            _shown(item, every, last=last) if item.optional else item for item in function.arguments
        ),
        results=tuple(_by_row(item, per_row) for item in function.results),
    )


def of_steps(function: Function, options: Options) -> Function:
    """The interface of a function in a call that shows the steps that options say."""
    return function if options.every == 1 else signature(function, options.every)


def from_checkpoints(backward: Function, forward: Function) -> Function:
    """A backward pass that runs its forward pass once more: what that makes may be left out."""
    formed_anew = made_again(forward)
    items = backward.arguments
    arguments = tuple(replace(a, optional=True) if a.name in formed_anew else a for a in items)
    return replace(backward, arguments=arguments)


def made_again(forward: Function) -> frozenset[str]:
    """What a forward pass makes of all steps, by name."""
    return frozenset(item.name for item in forward.results if item.shape[:1] == ("T",))


def lengths_of(options: Options, steps: Any) -> dict[str, Any]:
    """Lengths that follow from T ``steps``, a number or a symbol: steps shown, and checkpoints.

    A number of steps that is a symbol is at least 1.
    """
    lengths = {} if options.every == 1 else {_steps(options.every): steps // options.every}
    if options.checkpoint:
        is_none = isinstance(steps, int) and steps == 0
        lengths[CHECKPOINTS] = 0 if is_none else (steps - 1) // options.checkpoint
    return lengths


def shown_steps(options: Options) -> slice:
    """The steps whose outputs a call shows, along the axis of steps."""
    return slice(options.every - 1, None, options.every)


def part_of(options: Options, formed: Options) -> slice | None:
    """The steps that a call shows of outputs that another formed; None: all of these."""
    return None if options.every == formed.every else shown_steps(options)


def _steps(every: int) -> str:
    """The length of an axis of every so many-th step, as interfaces have it."""
    return f"T{EVERY}{every}"


def _shown(item: Argument, every: int, *, last: bool) -> Argument:
    if not item.over_time:
        return item
    units = item.shape[1:]
    if last:
        return replace(item, shape=units)
    return item if every == 1 else replace(item, shape=(_steps(every), *units))


def _by_row(item: Argument, per_row: int) -> Argument:
    if not per_row or not item.is_weight:
        return item
    return replace(item, shape=("B",) if per_row == NORMS else ("B", *item.shape))


def kept_element(item: Argument, element: str, *, checkpoint: bool = False) -> str:
    """The type of what a forward pass in C keeps of arrays of a type; ``checkpoint``: of those.

    Of 16 bits, what has steps is kept: gates in float16, since bounded numbers need digits and no
    range, others as they are. What has none, and states at checkpoints, are float32.
    """
    if element not in STORED:
        return element
    if checkpoint or not has_steps(item):
        return "float32"
    return FLOAT16 if item.bounded else element
