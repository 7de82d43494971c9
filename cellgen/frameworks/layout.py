"""What the functions of a cell over time take and give, in terms of arrays of any framework.

Input: a kernel's interface. Output: ``TensorLayout``: which names come in which order, and how
shapes follow from each other. Works on whatever has a shape, symbolic sizes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from cellgen.errors import BuildError
from cellgen.runtime.abi import (
    Argument,
    Function,
    Interface,
    axis_terms,
    term_dims,
    terms_length,
)
from cellgen.runtime.call.arguments import dims_of, has_steps, shape_text
from cellgen.runtime.call.stored import FLOAT16, STORED

Terms: TypeAlias = tuple[tuple[tuple[int, str], ...], ...]
"""A shape: for every axis its terms, a factor and a dimension (``""``: 1) each."""

STEPS_SHOWN, CHECKPOINTS = "T shown", "T kept"
"""Lengths that follow from T and the options of a call: of outputs of every so many-th step, and
how many checkpoints there are."""


class UntoldError(Exception):
    """Nothing that is given tells a dimension; each bridge says so by an error of its own."""


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

    def length(self, array: Shaped, sizes: Mapping[str, int]) -> int:
        """The dimension, given those that were told before."""
        return (array.shape[self.axis] - terms_length(self.rest, sizes)) // self.factor


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """Names and shapes of a cell over time.

    ``theta`` are the arrays of a call in order: inputs, states, statics, weights, biases, scalars
    that learn; ``scalars`` other run-time scalars; ``outputs`` what the forward pass gives, over
    time first, then final states; ``saved`` what it keeps; ``upstream`` the gradients of outputs;
    ``gradients`` the results of the backward pass, one for each of ``learns``, places in theta;
    ``terms`` the shapes of all of them by name. ``every`` and ``checkpoint`` are options of a call,
    see ``shown``.
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
    every: int = 1
    checkpoint: int = 0

    @property
    def where(self) -> str:
        """How a message begins."""
        return f"{self.cell}.sequence_forward"

    def shape(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an array, by its name, for given dimensions."""
        return tuple([terms_length(axis, sizes) for axis in self.terms[name]])

    def sizes(self, theta: Sequence[Shaped]) -> dict[str, int]:
        """Tell the dimensions from arrays whose ranks are right."""
        sizes: dict[str, int] = {}
        for told in self.told:
            sizes[told.dim] = told.length(theta[told.tensor], sizes)
        if self.every != 1:
            sizes[STEPS_SHOWN] = sizes["T"] // self.every
        if self.checkpoint:
            sizes[CHECKPOINTS] = _checkpoints(sizes["T"], self.checkpoint)
        return sizes

    def known_sizes(self, given: Mapping[str, Shaped | None]) -> dict[str, int]:
        """Tell the dimensions from what is given by name; states may be left out.

        Raises UntoldError where nothing that is given tells one of them, or what would has another
        number of axes.
        """
        sizes: dict[str, int] = {}
        for told in self.told:
            item = self.theta[told.tensor]
            found = given.get(item.name)
            if found is not None and len(found.shape) != len(item.shape):
                raise UntoldError(self.wrong_rank(item, found.shape))
            if found is None:
                raise UntoldError(
                    f"{self.where}: states are left out, and nothing tells the dimension "
                    f"{told.dim} of them; pass {item.name} {shape_text(item)}"
                )
            sizes[told.dim] = told.length(found, sizes)
        return sizes

    def moved_outputs(
        self, tangent: TensorLayout, directions: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Name the directions of outputs and final states that move in a tangent of the cell.

        ``directions`` are those of the cell's values. What is left out stands still.
        """
        finals = {item.of: item.name for item in tangent.outputs if item.of}
        moved = {}
        for item in self.outputs:
            direction = directions.get(item.of or item.name, "")
            if direction:
                moved[item.name] = finals[direction] if item.of else direction
        return moved

    def hidden_in(self, hidden: int, tangent: TensorLayout, directions: Mapping[str, str]) -> int:
        """The outputs of a tangent that are not formed where these of the cell are not, as bits."""
        names = {item.name for k, item in enumerate(self.outputs) if hidden >> k & 1}
        moved = self.moved_outputs(tangent, directions)
        names |= {moved[name] for name in names & moved.keys()}
        return sum(1 << k for k, item in enumerate(tangent.outputs) if item.name in names)

    def wrong_rank(self, item: Argument, shape: Sequence[int]) -> str:
        """What is wrong of an array that has more or fewer axes."""
        lacks_one = item.over_time and len(shape) + 1 == len(item.shape)
        advice = f"pass {item.name}[:, None] for one row, {item.name}[None] for one step"
        return (
            f"{self.where}: {item.name} has {len(shape)} axes, shape {tuple(shape)}, expected "
            f"{len(item.shape)}: {shape_text(item)}; {advice if lacks_one else 'reshape it'}"
        )

    def wrong_shape(self, item: Argument, shape: Sequence[int], sizes: Mapping[str, int]) -> str:
        """What is wrong of an array whose axes are of other lengths, and whence those expected."""
        origin = {told.dim: self.theta[told.tensor] for told in self.told}
        reasons = ", ".join(
            f"{n} = {sizes[n]} from {origin[n].name} {shape_text(origin[n])}"
            for n in dict.fromkeys(dims_of(item))
        )
        return (
            f"{self.where}: {item.name} has shape {tuple(shape)}, expected "
            f"{shape_text(item)} = {self.shape(item.name, sizes)} with {reasons}; make the two "
            f"agree"
        )


def _checkpoints(steps: int, segment: int) -> int:
    """How many states are kept; a number of steps that is a symbol is at least 1."""
    return (steps - 1) // segment if not isinstance(steps, int) or steps else 0


def kept_element(item: Argument, element: str, *, checkpoint: bool) -> str:
    """The type of what a forward pass in C keeps of arrays of a type; ``checkpoint``: of those.

    Of 16 bits, gates are kept in float16, states at checkpoints in float32.
    """
    if element not in STORED:
        return element
    if checkpoint or not has_steps(item):
        return "float32"
    return FLOAT16 if item.bounded else element


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
            unknown = [term for term in terms if not {*term_dims(term[1])} <= {*told}]
            if len(unknown) == 1 and len(term_dims(unknown[0][1])) == 1:
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
