"""The options of a call: whether each of them is one.

Input: what a call states, and its dimensions. Output: ``Options``, tables of steps and a plan as C
reads them, or an ArgumentError that names the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cellgen import accept
from cellgen.accept import type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.call.arguments import as_base, as_steps
from cellgen.runtime.call.workspace import Pointer
from cellgen.runtime.host.out_of_memory import dense
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.options import (
    BF16,
    CHOICE,
    FULL,
    INT8,
    ROWS,
    STEPS,
    SWITCH,
    Option,
    Options,
)
from cellgen.runtime.results import Array


class StepTables(NamedTuple):
    """What the options of a call say that is no number: tables of steps, and a plan in C."""

    lengths: Array | None
    mask: Array | None
    reset: Array | None
    plan: Pointer


def step_tables(label: str, ffi: Any, options: Options, sizes: Mapping[str, int]) -> StepTables:
    """Look at the tables and the plan of a call of some dimensions. Raises ArgumentError."""
    steps, rows = sizes["T"], sizes["B"]
    return StepTables(
        read_lengths(label, options.lengths, steps, rows),
        read_flags(label, "mask", options, steps, rows),
        read_flags(label, "reset", options, steps, rows),
        None if options.plan is None else check_plan(label, options.plan).as_c(ffi),
    )


def checked_options(label: str, chosen: Mapping[str, Any]) -> Options:
    """Make the options of a call from those that it states: switches and steps as plain numbers.

    Raises ArgumentError for a switch that is none, and for steps that cannot be counted. What is
    no number is looked at when the call is made.
    """
    plain = dict(chosen)
    for name, value in chosen.items():
        option = ROWS[name]
        if option.kind == SWITCH:
            plain[name] = accept.flag(label, name, value)
        elif option.kind == STEPS:
            plain[name] = as_steps(label, name, value, option.least, option.fewest)
        elif option.kind == CHOICE:
            plain[name] = option.choices[number_of(label, option, value)]
    return Options(**plain)


def require_float32(label: str, products: str, dtype: np.dtype[np.floating]) -> None:
    """Refuse rounded products of other arrays than float32. Raises ArgumentError."""
    if products != FULL and dtype != np.float32:
        raise ArgumentError(
            f"{label}: products is {products!r} and the arrays are {dtype}, expected float32 "
            f"arrays; pass those, or leave products out"
        )


def require_forward(label: str, products: str, *, save: bool) -> None:
    """Refuse weights in int8 where there are gradients, of any weights. Raises ArgumentError."""
    if products == INT8:
        reason = "save is True" if save else "this is a backward pass"
        raise ArgumentError(
            f"{label}: products is {INT8!r} and {reason}, expected a forward pass alone, "
            f"which does not save: weights rounded to int8 have no gradients; leave products out, "
            f"or train with products={BF16!r}"
        )


def number_of(label: str, option: Option, value: object) -> int:
    """The number of what is chosen. Raises ArgumentError."""
    plain = str.__str__(value) if isinstance(value, str) else accept.plain(value)
    for number, choice in enumerate(option.choices):
        if type(plain) is type(choice) and plain == choice:
            return number
    known = ", ".join(map(repr, option.choices))
    raise ArgumentError(
        f"{label}: {option.name} is {accept.quoted(value)}, expected one of {known}"
    )


def check_plan(label: str, plan: object) -> SequencePlan:
    """Return a plan whose numbers C can hold. Raises ArgumentError."""
    if isinstance(plan, SequencePlan):
        return plan.checked(label)
    raise ArgumentError(
        f"{label}: plan is {type_name(plan)}, expected a SequencePlan; pass what "
        f"{label}.plan(...) returns, or leave it out"
    )


# --- arrays that say which steps are valid ------------------------------------------------------


def read_lengths(label: str, lengths: object, steps: int, rows: int) -> Array | None:
    """Return the steps of each row, (B) of int64, a copy. Raises ArgumentError."""
    if lengths is None:
        return None
    array = dense(accept.array(label, "lengths", lengths))
    if not array.size:  # of an empty list NumPy makes floats
        array = array.astype(np.int64)
    if array.shape != (rows,) or array.dtype.kind not in "iu":
        raise ArgumentError(
            f"{label}: lengths has shape {array.shape} and dtype {array.dtype}, "
            f"expected (B,) = ({rows},) integers; pass one length for each row"
        )
    bad = np.flatnonzero((array < 0) | (array > steps))
    if bad.size:
        row = int(bad[0])
        raise ArgumentError(
            f"{label}: lengths[{row}] is {array[row]}, expected 0 to T = {steps}; "
            f"shorten it or pass longer arrays"
        )
    return np.array(array, np.int64, order="C")  # checked: what the caller changes is not


def read_flags(label: str, name: str, options: Options, steps: int, rows: int) -> Array | None:
    """Return mask or reset as (T, B), whatever the layout of the call. Raises ArgumentError."""
    flags = as_base(getattr(options, name))
    if flags is None:
        return None
    accept.refuse_masked(label, name, flags)
    axes = ("B", "T") if options.batch_first else ("T", "B")
    shape = (rows, steps) if options.batch_first else (steps, rows)
    if not isinstance(flags, np.ndarray) or flags.dtype != np.bool_ or flags.shape != shape:
        kind, advice = type_name(flags), f"np.asarray({name}, dtype=bool)"
        if isinstance(flags, np.ndarray):
            kind = f"of shape {flags.shape} and dtype {flags.dtype}"
            advice = f"{name}.astype(bool)"
        raise ArgumentError(
            f"{label}: {name} is {kind}, expected a numpy.ndarray of bool "
            f"({', '.join(axes)}) = {shape}; pass {advice} in that shape"
        )
    return flags.swapaxes(0, 1) if options.batch_first else flags
