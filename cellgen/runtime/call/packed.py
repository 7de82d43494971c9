"""Weights laid out once for many calls: what they are of, and where the layouts lie.

``Packed`` holds the weights; a layout belongs to one function of one build of one cell, and is made
again where there is none. Weights travel, layouts do not.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cellgen.runtime.call.stored import in_numpy
from cellgen.runtime.options import FULL
from cellgen.runtime.results import Array

if TYPE_CHECKING:
    from cellgen.runtime.call.workspace import AlignedBytes


class PackedWeights(NamedTuple):
    """What was packed: cell and digest of its sources, dtype and dimensions, arrays and scalars.

    ``products`` says for which products, as the option of a call does.
    """

    cell: str
    digest: str
    dtype: str
    dims: tuple[tuple[str, int], ...]
    arguments: tuple[tuple[str, Array | float], ...]
    products: str = FULL


class PackedLayout(NamedTuple):
    """Packed bytes for a function: of which weights, and what a call must have to read them.

    ``fits`` are the dtype's suffix and the dimensions of weights, in the order of the function.
    ``held`` are weak references: NumPy moves no array that has one.
    """

    weights: PackedWeights
    fits: tuple[str | int, ...]
    memory: AlignedBytes
    held: tuple[weakref.ref[Array], ...]

    @property
    def members(self) -> dict[str, object]:
        """What a call's options say of it in C."""
        return {"packed": self.memory.pointer, "packed_bytes": self.memory.bytes}


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights laid out for a kernel by ``kernel.pack``, for any number of calls.

    A call passes the arrays that were packed on itself. Change one of them, and it must be packed
    again. ``layouts`` holds the packed bytes by function and build; those for ``sequence_backward``
    are made by the first call of it. ``doors`` has the ``Door`` of each function's calls with them.
    A pickle holds the weights alone.
    """

    weights: PackedWeights
    layouts: dict[tuple[str, str], PackedLayout] = field(default_factory=dict, repr=False)
    doors: dict[object, object] = field(default_factory=dict, repr=False)

    @property
    def cell(self) -> str:
        """The cell whose weights these are."""
        return self.weights.cell

    @property
    def arguments(self) -> dict[str, Array | float]:
        """What was packed, by name."""
        return {
            name: in_numpy(array) if isinstance(array, np.ndarray) else array
            for name, array in self.weights.arguments
        }

    @cached_property
    def keywords(self) -> dict[str, object]:
        """What a call that C makes gets in place of these: each weight and scalar, and of whom."""
        return {**dict(self.weights.arguments), "packed": self.weights}

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions that weights have."""
        return dict(self.weights.dims)

    def __repr__(self) -> str:
        return f"<packed weights of {self.cell}: {', '.join(self.arguments)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Packed, (self.weights,)
