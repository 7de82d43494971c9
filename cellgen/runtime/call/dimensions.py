"""Which axis of which argument tells each dimension of a call.

Input: arguments with their shapes as the interface has them. Output: ``Binding`` for each
dimension, in an order in which each follows from its axis and those before it. Lengths may be
numbers or symbols. In C, ``cellgen_bind.h`` does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cellgen.runtime.abi import Argument, axis_terms, term_dims, terms_length


@dataclass(frozen=True)
class Binding:
    """How one axis of one argument tells a dimension: ``(length - rest) / factor``."""

    dim: str
    argument: int
    axis: int
    factor: int
    rest: tuple[tuple[int, str], ...]

    def size(self, length: int, sizes: Mapping[str, int]) -> int:
        """The dimension, given those before it; of a length that fits."""
        return (length - terms_length(self.rest, sizes)) // self.factor

    def divided(self, length: int, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The dimension, and what is left of the length: not 0, or below 0 the first, of no fit."""
        return divmod(length - terms_length(self.rest, sizes), self.factor)


def dims_of(argument: Argument) -> list[str]:
    """Name the dimensions of a shape, those of each term of an axis."""
    terms = [term for axis in argument.shape for term in axis_terms(axis)]
    return [name for _, names in terms for name in term_dims(names)]


def _in_order(_: Argument) -> int:
    return 0


def states_last(item: Argument) -> int:
    """Rank states behind what a call cannot leave out."""
    return int(item.role == "state")


@lru_cache(maxsize=4096)
def bindings(
    arguments: Sequence[Argument], rank: Callable[[Argument], int] = _in_order
) -> tuple[Binding, ...]:
    """Find an axis for each dimension that arguments tell.

    Axes of a single dimension come first, of lower ``rank`` before higher; an axis like ``I + H``
    tells the one that is still unknown.
    """
    axes = [
        (axis_terms(axis), number, place)
        for number, item in enumerate(arguments)
        for place, axis in enumerate(item.shape)
    ]
    axes.sort(key=lambda axis: (rank(arguments[axis[1]]), len(axis[0]), axis[0][0][0]))
    bound: dict[str, Binding] = {}
    while True:
        before = len(bound)
        for terms, number, place in axes:
            unknown = [term for term in terms if not {*term_dims(term[1])} <= bound.keys()]
            if len(unknown) == 1 and len(term_dims(unknown[0][1])) == 1:
                factor, dim = unknown[0]
                rest = tuple(term for term in terms if term[1] != dim)
                bound[dim] = Binding(dim, number, place, factor, rest)
        if len(bound) == before:
            return tuple(bound.values())
