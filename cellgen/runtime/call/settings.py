"""The options of a call, as C takes them.

Input: ``Options`` of a call and its dimensions. Output: ``Settings``, the C struct and what must
stay alive beside it, or an ArgumentError that names the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.accept import type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import as_base, as_steps
from cellgen.runtime.call.checkpoints import Checkpoints
from cellgen.runtime.call.layout import strides_of, written_strides
from cellgen.runtime.call.packed import PackedLayout
from cellgen.runtime.call.workspace import Pointer
from cellgen.runtime.host.out_of_memory import dense, named_in_memory_errors
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.numbers import c_numbers
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


@dataclass(frozen=True)
class Settings:
    """The options in C, and what they point to."""

    struct: Pointer
    keep: tuple[object, ...]


@dataclass(frozen=True)
class Beside:
    """What the options in C hold that is no option of a call.

    ``strides`` are those of arrays over time that have gaps. ``stored`` says of each member of the
    struct what an array over time or an operand holds, None: all floats. ``stop`` may be NULL.
    """

    strides: Mapping[str, tuple[int, int]]
    layout: PackedLayout | None
    stop: Pointer
    kept: Checkpoints | None = None
    stored: Array | None = None


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
    raise ArgumentError(f"{label}: {option.name} is {accept.shown(value)}, expected one of {known}")


def check_plan(label: str, plan: object) -> SequencePlan:
    """Return a plan whose numbers C can hold. Raises ArgumentError."""
    if isinstance(plan, SequencePlan):
        return plan.checked(label)
    raise ArgumentError(
        f"{label}: plan is {type_name(plan)}, expected a SequencePlan; pass what "
        f"{label}.plan(...) returns, or leave it out"
    )


@named_in_memory_errors(str)
def make_settings(
    label: str,
    ffi: Any,
    function: Function,
    dims: Mapping[str, int],
    options: Options,
    beside: Beside,
) -> Settings:
    """Make the C options of a call, and of what stands beside them."""
    steps, rows = dims["T"], dims["B"]
    counts = read_lengths(label, options.lengths, steps, rows)
    mask, reset = (read_flags(label, name, options, steps, rows) for name in ("mask", "reset"))
    gaps = dict(beside.strides)
    for name, flags in (("mask", mask), ("reset", reset)):
        if flags is not None and not flags.flags.c_contiguous:
            gaps[name] = strides_of(flags)
    arrays = {"lengths": counts, "mask": mask, "reset": reset, "stored": beside.stored}
    arrays["strides"] = written_strides(function, gaps) if gaps else None
    members: dict[str, object] = {
        name: ffi.cast(
            "unsigned char *" if name in ("mask", "reset", "stored") else "int64_t *",
            array.__array_interface__["data"][0],
        )
        for name, array in arrays.items()
        if array is not None
    }
    how = None if options.plan is None else check_plan(label, options.plan).as_c(ffi)
    if how is not None:
        members["plan"] = how
    if beside.layout is not None:
        members |= beside.layout.members
    if beside.kept is not None:
        members |= beside.kept.members(ffi)
    members |= c_numbers(options)
    struct = ffi.new("cellgen_options *", {**members, "stop": beside.stop})
    return Settings(struct, (*arrays.values(), beside, how, members))


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
