"""What the functions of a cell over time take and give, in terms of arrays of any framework.

Input: a kernel's interface. Output: ``TensorLayout``: which names come in which order, and how
shapes follow from each other. Works on whatever has a shape, symbolic sizes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from cellgen.errors import BuildError
from cellgen.runtime.abi import Argument, Function, Interface, axis_terms, terms_length

Terms: TypeAlias = tuple[tuple[tuple[int, str], ...], ...]
"""A shape: for every axis its terms, a factor and a dimension (``""``: 1) each."""


class Shaped(Protocol):
    """An array of some framework, or what stands for one."""

    @property
    def shape(self) -> Sequence[int]:
        """Lengths of the axes."""


@dataclass(frozen=True)
class Tells:
    """How one axis of one array tells a dimension: ``(length - rest) / factor``."""

    dim: str
    tensor: int
    axis: int
    factor: int
    rest: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class TensorLayout:
    """Names and shapes of a cell over time.

    ``theta`` are the arrays of a call in order: inputs, states, statics, weights, biases, scalars
    that learn; ``scalars`` other run-time scalars; ``outputs`` what the forward pass gives, over
    time first, then final states; ``saved`` what it keeps; ``upstream`` the gradients of outputs;
    ``gradients`` the results of the backward pass, one for each of ``learns``, places in theta;
    ``terms`` the shapes of all of them by name.
    """

    cell: str
    dims: tuple[str, ...]
    theta: tuple[Argument, ...]
    scalars: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    saved: tuple[Argument, ...]
    upstream: tuple[Argument, ...]
    gradients: tuple[Argument, ...]
    learns: tuple[int, ...]
    told: tuple[Tells, ...]
    terms: Mapping[str, Terms]
    forward: Function
    backward: Function

    @property
    def where(self) -> str:
        """How a message begins."""
        return f"{self.cell}.sequence_forward"

    def shape(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an array, by its name, for given dimensions."""
        return tuple(terms_length(axis, sizes) for axis in self.terms[name])

    def sizes(self, theta: Sequence[Shaped]) -> dict[str, int]:
        """Tell the dimensions from arrays whose ranks are right."""
        sizes: dict[str, int] = {}
        for told in self.told:
            length = theta[told.tensor].shape[told.axis]
            sizes[told.dim] = (length - terms_length(told.rest, sizes)) // told.factor
        return sizes


def row_axis(item: Argument) -> int | None:
    """The axis of the rows of a batch; None for weights."""
    return item.shape.index("B") if "B" in item.shape else None


Kind = TypeVar("Kind", bound=TensorLayout)


def layout_of(interface: Interface, kind: type[Kind]) -> Kind:
    """Sort out what a cell takes and gives over time. Raises BuildError for one that cannot."""
    found = {function.name: function for function in interface.functions}
    if "sequence_forward" not in found or "sequence_backward" not in found:
        raise BuildError(
            f"{interface.name}: this cell has no functions over time, which its layer would call; "
            f"`cellgen explain` says why"
        )
    return _layout(kind, interface.name, found["sequence_forward"], found["sequence_backward"])


def _layout(kind: type[Kind], cell: str, forward: Function, backward: Function) -> Kind:
    results = {item.name: item for item in backward.results}
    theta = tuple(a for a in forward.arguments if not a.is_scalar or f"d_{a.name}" in results)
    learns = tuple(place for place, a in enumerate(theta) if f"d_{a.name}" in results)
    every = (*backward.arguments, *backward.results, *forward.arguments, *forward.results)
    return kind(
        cell,
        forward.dims,
        theta,
        tuple(a for a in forward.arguments if a.is_scalar and f"d_{a.name}" not in results),
        tuple(item for item in forward.results if not item.saved),
        tuple(item for item in forward.results if item.saved),
        tuple(item for item in backward.arguments if item.optional),
        tuple(results[f"d_{theta[place].name}"] for place in learns),
        learns,
        _told(cell, forward.dims, theta),
        {item.name: tuple(axis_terms(axis) for axis in item.shape) for item in every},
        forward,
        backward,
    )


def _told(cell: str, dims: Sequence[str], theta: Sequence[Argument]) -> tuple[Tells, ...]:
    """Find for each dimension an axis that tells it: states and sums last. Raises BuildError."""
    axes = [
        (axis_terms(axis), number, place)
        for number, item in enumerate(theta)
        for place, axis in enumerate(item.shape)
    ]
    axes.sort(key=lambda axis: (theta[axis[1]].role == "state", len(axis[0]), axis[0][0][0]))
    told: dict[str, Tells] = {}
    while True:
        before = len(told)
        for terms, number, place in axes:
            unknown = [(factor, name) for factor, name in terms if name and name not in told]
            if len(unknown) == 1:
                factor, dim = unknown[0]
                rest = tuple(term for term in terms if term[1] != dim)
                told[dim] = Tells(dim, number, place, factor, rest)
        if len(told) == before:
            break
    untold = [name for name in dims if name not in told]
    if untold:
        raise BuildError(
            f"{cell}: no argument tells the dimension {untold[0]}; add one to the cell that has it"
        )
    return tuple(told.values())
