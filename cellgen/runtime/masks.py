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
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

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
    counts = (("seed", seed), ("step", step), ("first", first), ("steps", steps or 0))
    for name, count in (*counts, *((f"sizes[{name!r}]", size) for name, size in sizes.items())):
        whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
        if not whole or not 0 <= count < SEQUENCE:
            raise ArgumentError(f"draw_masks: {name} is {count!r}, expected an integer from 0 up")
    masks = tuple(masks) if isinstance(masks, Iterable) else masks
    if not isinstance(masks, tuple) or not all(isinstance(mask, Mask) for mask in masks):
        raise ArgumentError(
            f"draw_masks: masks are {masks!r}, expected those of a cell; pass masks_of(cell)"
        )
    if isinstance(rate, Mapping):
        _check_names([mask.name for mask in masks], rate)
    drawn = {}
    for mask in masks:
        p = _rate(mask, rate)
        shape = _lengths(mask, sizes)
        times = [SEQUENCE]
        if mask.varies is Varies.STEP_AND_ROW:
            times = list(range(first, first + (1 if steps is None else steps)))
        if training:
            parts = [_uniform(shape, seed, mask.purpose, step, time) < p for time in times]
            array = np.array(parts, dtype=bool).reshape(len(times), *shape)
            values = _values(mask.kind, p)
            result = np.where(array, values[0], values[1]).astype(dtype)
        else:
            result = np.full((len(times), *shape), p if mask.kind is Kind.KEEP else 1.0, dtype)
        over_time = mask.varies is Varies.STEP_AND_ROW and steps is not None
        drawn[mask.name] = result if over_time else result[0]
    return drawn


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
    if isinstance(p, bool) or not isinstance(p, Real) or not 0 <= p <= 1:
        raise ArgumentError(
            f"draw_masks: the rate of {mask.name} is {p!r}, expected a probability from 0 to 1"
        )
    return float(p)


def _lengths(mask: Mask, sizes: Mapping[str, int]) -> tuple[int, ...]:
    rows = () if mask.varies is Varies.NEVER else ("B",)
    try:
        return tuple(axis_length(axis, dict(sizes)) for axis in (*rows, *mask.shape))
    except KeyError as missing:
        raise ArgumentError(
            f"draw_masks: {mask.name} is ({', '.join((*rows, *mask.shape))}), and sizes has no "
            f"{missing.args[0]}; it has {', '.join(sizes) or 'nothing'}"
        ) from None
