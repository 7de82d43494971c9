"""Draw the masks of regularised cells: the same numbers at any thread count, from any step on.

Input: a seed, the number of a training step, what a mask is for. Output: NumPy arrays for kernels.
Bits come from Philox (Salmon, Moraes, Dror & Shaw 2011), a counter-based generator: the key is the
seed and the purpose, the counter holds the training step and the time step. Nothing is carried from
one draw to the next, so that any mask can be drawn again by itself. Rows are drawn one after the
other: a row's mask does not depend on how many rows follow.

Conventions. A dropout mask holds 0 with probability p and 1 / (1 - p) otherwise, so that its mean
is 1: at inference it is 1 everywhere. With p = 1 it is 0 everywhere. A keep mask (zoneout) holds 1,
keep the old value, with probability p and 0 otherwise: at inference it is its mean, p, everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, cast

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import axis_length

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SEQUENCE = 2**64 - 1
"""Stands for the time step of a mask that is the same at every step."""


class Kind(Enum):
    """What a mask does to a value."""

    DROPOUT = "dropout"
    KEEP = "keep the old value"


class Varies(Enum):
    """What a mask differs by: its axes before those of the value."""

    STEP_AND_ROW = "step and row"
    ROW = "row"
    NEVER = "weights, once for all rows and steps"


@dataclass(frozen=True)
class Mask:
    """One mask input of a cell; ``shape`` holds axis lengths as interfaces do: ``"H"``, ``"2*H"``.

    ``purpose`` names the stream of its numbers: the cell's masks have different ones.
    """

    name: str
    shape: tuple[str, ...]
    kind: Kind
    varies: Varies

    @property
    def purpose(self) -> str:
        """What it is for, in words."""
        return f"{self.kind.value}: {self.name}"

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.shape)}), {self.kind.value}, by {self.varies.value}"


def draw_masks(
    masks: Iterable[Mask],
    sizes: Mapping[str, int],
    rate: float | Mapping[str, float],
    *,
    seed: int,
    step: int = 0,
    steps: int | None = None,
    first: int = 0,
    training: bool = True,
    dtype: np.dtype[Any] | type = np.float32,
) -> dict[str, Array]:
    """Return the masks of a cell (``masks_of(cell)``) by name, to be passed to its kernel.

    ``sizes`` tells the dimensions, ``B`` among them. ``rate`` is p for all masks or one for each
    name. ``step`` counts training steps. With ``steps``, masks that vary by step are (T, B, ...)
    for the time steps from ``first`` on; without it (B, ...) for the one time step ``first``.
    With ``training=False`` masks are what inference takes, and no number is drawn.

    Raises:
        ArgumentError: a rate outside [0, 1] or missing, a negative count, an unknown dimension.
    """
    seed, step = _count("seed", seed), _count("step", step)
    first, steps = _count("first", first), None if steps is None else _count("steps", steps)
    lengths = accept.names("draw_masks", "sizes", sizes, "lengths of dimensions")
    sizes = {name: _count(f"sizes[{name!r}]", size) for name, size in lengths.items()}
    accept.flag("draw_masks", "training", training)
    number = _dtype(dtype)
    masks = _masks(masks)
    if isinstance(rate, Mapping):
        rate = cast("dict[str, float]", accept.names("draw_masks", "rate", rate, "rates"))
        _check_names([mask.name for mask in masks], rate)
    drawn = {}
    for mask in masks:
        p = _rate(mask, rate)
        shape = _lengths(mask, sizes)
        count, time = 1, SEQUENCE
        if mask.varies is Varies.STEP_AND_ROW:
            count, time = 1 if steps is None else steps, first
        result = _empty(mask, (count, *shape), number)
        if not training:
            result[...] = p if mask.kind is Kind.KEEP else 1.0
        elif result.size:
            values = _values(mask.kind, p)
            for place in range(count):
                hit = _uniform(shape, seed, mask.purpose, step, time + place) < p
                result[place] = np.where(hit, values[0], values[1])
        over_time = mask.varies is Varies.STEP_AND_ROW and steps is not None
        drawn[mask.name] = result if over_time else result[0]
    return drawn


def _count(name: str, value: object) -> int:
    expected = "an integer from 0 up"
    return accept.whole("draw_masks", name, value, 0, SEQUENCE - 1, expected=expected)


def _empty(mask: Mask, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    try:
        return np.empty(shape, dtype)
    except ValueError as fault:  # beyond what an address can reach
        raise ArgumentError(
            f"draw_masks: {mask.name} is to have shape {shape}, expected one that memory can hold; "
            f"give smaller sizes, or fewer steps"
        ) from fault


def _dtype(dtype: object) -> np.dtype[Any]:
    """The dtype of masks: any of floating-point numbers."""
    try:
        float_dtype = np.dtype(dtype)  # type: ignore[call-overload]
    except Exception:  # NumPy's own, or that of an object which says it is a dtype
        float_dtype = None
    if float_dtype is None or float_dtype.kind != "f":
        raise ArgumentError(
            f"draw_masks: dtype is {accept.quoted(dtype)}, expected one of floating-point numbers; "
            f"pass np.float32 or np.float64"
        )
    checked: np.dtype[Any] = float_dtype
    return checked


def _masks(masks: object) -> tuple[Mask, ...]:
    """The masks of a cell, from anything that can be gone through."""
    entries: tuple[object, ...] = ()
    if isinstance(masks, Iterable) and not isinstance(masks, str | Mapping):
        try:
            entries = tuple(masks)
        except Exception as fault:  # of what cannot be gone through, although it says so
            raise ArgumentError(
                f"draw_masks: masks cannot be gone through ({accept.reason(fault)}), expected "
                f"those of a cell; pass masks_of(cell)"
            ) from fault
    else:
        entries = (masks,)
    chosen = tuple(mask for mask in entries if isinstance(mask, Mask))
    if len(chosen) != len(entries):
        raise ArgumentError(
            f"draw_masks: masks are {accept.quoted(masks)}, expected those of a cell; pass "
            f"masks_of(cell)"
        )
    return chosen


def _check_names(names: Sequence[str], rate: Mapping[str, float]) -> None:
    missing = [name for name in names if name not in rate]
    if missing:
        raise ArgumentError(
            f"draw_masks: rate has no {missing[0]}; it has {', '.join(rate) or 'nothing'}: give "
            f"one number for all masks, or one for each"
        )
    unknown = [name for name in rate if name not in names]
    if unknown:
        raise ArgumentError(
            f"draw_masks: rate has {', '.join(unknown)}, expected names of masks: "
            f"{', '.join(names) or 'there are none'}"
        )


def _values(kind: Kind, p: float) -> tuple[float, float]:
    """What stands where a unit is hit, with probability p, and where it is not."""
    if kind is Kind.KEEP:
        return 1.0, 0.0
    return 0.0, 1 / (1 - p) if p < 1 else 0.0


def _uniform(shape: tuple[int, ...], seed: int, purpose: str, step: int, time: int) -> Array:
    """Numbers in [0, 1) with 53 bits; a function of the arguments and of nothing else."""
    word = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    key = np.array([seed, word], np.uint64)
    counter = np.array([0, 0, time, step], np.uint64)
    bits = np.random.Philox(key=key, counter=counter).random_raw(int(np.prod(shape, dtype=int)))
    return ((bits >> np.uint64(11)) * 2.0**-53).reshape(shape)


def _rate(mask: Mask, rate: float | Mapping[str, float]) -> float:
    p = rate[mask.name] if isinstance(rate, Mapping) else rate
    name, expected = f"the rate of {mask.name}", "a probability from 0 to 1"
    return accept.real("draw_masks", name, p, 0, 1, expected=expected)


def _lengths(mask: Mask, sizes: Mapping[str, int]) -> tuple[int, ...]:
    rows = () if mask.varies is Varies.NEVER else ("B",)
    try:
        return tuple(axis_length(axis, dict(sizes)) for axis in (*rows, *mask.shape))
    except KeyError as missing:
        raise ArgumentError(
            f"draw_masks: {mask.name} is ({', '.join((*rows, *mask.shape))}), and sizes has no "
            f"{missing.args[0]}; it has {', '.join(sizes) or 'nothing'}"
        ) from None
