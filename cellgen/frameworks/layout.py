"""What the functions of a cell over time take and give, in terms of arrays of any framework.

Input: a kernel's interface. Output: ``TensorLayout``: which names come in which order, and how
shapes follow from each other. Works on whatever has a shape, symbolic sizes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, cast

from cellgen.errors import BuildError
from cellgen.runtime.abi import (
    Argument,
    Function,
    Interface,
    axis_terms,
    terms_length,
)
from cellgen.runtime.call.dimensions import Binding, bindings, states_last
from cellgen.runtime.call.faults import RANK, SHAPE, Fault, sentence, shape_text
from cellgen.runtime.call.signature import lengths_of
from cellgen.runtime.options import NONE, Options

Terms: TypeAlias = tuple[tuple[tuple[int, str], ...], ...]
"""A shape: for every axis its terms, a factor and a dimension (``""``: 1) each."""


class UntoldError(Exception):
    """Nothing that is given tells a dimension; each bridge says so by an error of its own."""


class Shaped(Protocol):
    """An array of some framework, or what stands for one."""

    @property
    def shape(self) -> Sequence[int]:
        """Lengths of the axes."""


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """Names and shapes of a cell over time.

    ``theta`` are the arrays of a call in order: inputs, states, statics, weights, biases, scalars
    that learn; ``scalars`` other run-time scalars; ``outputs`` what the forward pass gives, over
    time first, then final states; ``saved`` what it keeps; ``upstream`` the gradients of outputs;
    ``gradients`` the results of the backward pass, one for each of ``learns``, places in theta;
    ``terms`` the shapes of all of them by name, for a call with these ``options``; see ``shown``.
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
    bindings: tuple[Binding, ...]
    terms: Mapping[str, Terms]
    forward: Function
    backward: Function
    options: Options = NONE

    @property
    def label(self) -> str:
        """How a message begins."""
        return f"{self.cell}.sequence_forward"

    @property
    def telling(self) -> tuple[Argument, ...]:
        """The arguments that tell dimensions: states only what nothing else does."""
        return tuple(self.theta[one.argument] for one in self.bindings)

    def shape(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an array, by its name, for given dimensions."""
        return tuple([terms_length(axis, sizes) for axis in self.terms[name]])

    def gradient_shape(
        self, item: Argument, sizes: Mapping[str, int], per_row: object
    ) -> tuple[int, ...]:
        """The shape of a gradient; of a weight, row by row, (B, ...), where a call asks for it."""
        shape = self.shape(item.name, sizes)
        return (sizes["B"], *shape) if per_row and item.is_weight else shape

    def sizes(self, theta: Sequence[Shaped]) -> dict[str, int]:
        """Tell the dimensions from arrays whose ranks are right."""
        sizes: dict[str, int] = {}
        for one in self.bindings:
            sizes[one.dim] = one.size(theta[one.argument].shape[one.axis], sizes)
        if self.options is not NONE:
            sizes.update(lengths_of(self.options, sizes["T"]))
        return sizes

    def known_sizes(self, tensors: Mapping[str, Shaped | None]) -> dict[str, int]:
        """Tell the dimensions from what is given by name; states may be left out.

        Raises UntoldError where nothing that is given tells one of them, or what would has another
        number of axes.
        """
        sizes: dict[str, int] = {}
        for one in self.bindings:
            item = self.theta[one.argument]
            tensor = tensors.get(item.name)
            if tensor is not None and len(tensor.shape) != len(item.shape):
                raise UntoldError(self.wrong_rank(item, tensor.shape))
            if tensor is None:
                raise UntoldError(
                    f"{self.label}: states are left out, and nothing tells the dimension "
                    f"{one.dim} of them; pass {item.name} {shape_text(item)}"
                )
            sizes[one.dim] = one.size(tensor.shape[one.axis], sizes)
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

    def outputs_in(
        self, options: Options, tangent: TensorLayout, directions: Mapping[str, str]
    ) -> tuple[str, ...] | None:
        """The outputs of a tangent that are formed where ``options`` say which of the cell's are.

        A direction is where its output is; None: all.
        """
        names = outputs_of(options)
        if names is None:
            return None
        hidden = {i.name for i in self.outputs if not i.of} - {*names}
        moved = self.moved_outputs(tangent, directions)
        hidden |= {moved[name] for name in hidden & moved.keys()}
        return tuple(i.name for i in tangent.outputs if not i.of and i.name not in hidden)

    def wrong_rank(self, item: Argument, shape: Sequence[int]) -> str:
        """What is wrong of an array that has more or fewer axes."""
        return sentence(self.label, Fault(RANK, item, item.name, tuple(shape)))

    def wrong_shape(self, item: Argument, shape: Sequence[int], sizes: Mapping[str, int]) -> str:
        """What is wrong of an array whose axes are of other lengths, and whence those expected."""
        theta = {one.dim: self.theta[one.argument] for one in self.bindings}
        origins = {dim: (argument.name, argument) for dim, argument in theta.items()}
        fault = Fault(SHAPE, item, item.name, tuple(shape), 0, sizes, origins)
        return sentence(self.label, fault)


def outputs_of(options: Options) -> tuple[str, ...] | None:
    """The outputs over time that a call with checked options forms; None: all."""
    return cast("tuple[str, ...] | None", options.outputs)


def row_axis(item: Argument) -> int | None:
    """The axis of the rows of a batch; None for weights."""
    return item.shape.index("B") if "B" in item.shape else None


Kind = TypeVar("Kind", bound=TensorLayout)


def layout_of(interface: Interface, kind: type[Kind]) -> Kind:
    """Sort out what a cell takes and gives over time. Raises BuildError for one that cannot."""
    by_name = {function.name: function for function in interface.functions}
    if "sequence_forward" not in by_name or "sequence_backward" not in by_name:
        raise BuildError(
            f"{interface.name}: this cell has no functions over time, which its layer would call; "
            f"`cellgen explain` says why"
        )
    return _layout(kind, interface.name, by_name["sequence_forward"], by_name["sequence_backward"])


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
        _bindings(cell, forward.dims, theta),
        {item.name: tuple(axis_terms(axis) for axis in item.shape) for item in every},
        forward,
        backward,
    )


def _bindings(cell: str, dims: Sequence[str], theta: tuple[Argument, ...]) -> tuple[Binding, ...]:
    """Find for each dimension an axis that tells it: states and sums last. Raises BuildError."""
    dimensions = bindings(theta, states_last)
    bound = {one.dim for one in dimensions}
    unbound = [name for name in dims if name not in bound]
    if unbound:
        raise BuildError(
            f"{cell}: no argument tells the dimension {unbound[0]}; add one to the cell that has it"
        )
    return dimensions
