"""What the functions of a cell over time take and give, in terms of tensors.

Input: a kernel's interface. Output: ``Layout``: which names come in which order, how shapes follow
from each other, and the check of a call. Works on tensors without memory and on symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import torch
from torch import Tensor

from cellgen.errors import BuildError
from cellgen.runtime.abi import Argument, Function, Interface, axis_terms
from cellgen.runtime.call.arguments import shape_text
from cellgen.torch.errors import KindError, TensorError

Terms: TypeAlias = tuple[tuple[tuple[int, str], ...], ...]
"""A shape: for every axis its terms, a factor and a dimension (``""``: 1) each."""

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Tells:
    """How one axis of one tensor tells a dimension: ``(length - rest) / factor``."""

    dim: str
    tensor: int
    axis: int
    factor: int
    rest: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a cell over time.

    ``theta`` are the tensors of a call in order: inputs, states, statics, weights, biases, scalars
    that learn; ``scalars`` other run-time scalars, which are numbers; ``outputs`` what the forward
    pass gives, over time first, then final states; ``saved`` what it keeps; ``gradients`` the
    results of the backward pass, one for each of ``learns``, places in theta; ``terms`` the shapes
    of all of them by name.
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

    @property
    def where(self) -> str:
        """How a message begins."""
        return f"{self.cell}.sequence_forward"

    def shape(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an array, by its name, for given dimensions."""
        return tuple(
            sum(factor * (sizes[dim] if dim else 1) for factor, dim in axis)
            for axis in self.terms[name]
        )

    def sizes(self, theta: Sequence[Tensor]) -> dict[str, int]:
        """Tell the dimensions from tensors whose ranks are right."""
        sizes: dict[str, int] = {}
        for told in self.told:
            length = theta[told.tensor].shape[told.axis]
            rest = sum(factor * (sizes[name] if name else 1) for factor, name in told.rest)
            sizes[told.dim] = (length - rest) // told.factor
        return sizes

    def check(self, theta: Sequence[Tensor]) -> dict[str, int]:
        """Look at every tensor of a call; return its dimensions. Raises TensorError, KindError."""
        if len(theta) != len(self.theta):
            names = ", ".join(item.name for item in self.theta)
            raise KindError(
                f"{self.where}: found {len(theta)} tensors, expected {len(self.theta)}: {names}"
            )
        first = theta[0]
        for item, tensor in zip(self.theta, theta, strict=True):
            if not isinstance(tensor, Tensor):
                self._refuse_kind(item, tensor)
            if tensor.dtype not in DTYPES or tensor.dtype != first.dtype:
                self._refuse_dtype(item, tensor, first)
            if tensor.device != first.device or tensor.layout != torch.strided:
                self._refuse_device(item, tensor, first)
            if tensor.dim() != len(item.shape):
                self._refuse_rank(item, tensor)
        sizes = self.sizes(theta)
        for item, tensor in zip(self.theta, theta, strict=True):
            for length, expected in zip(tensor.shape, self.shape(item.name, sizes), strict=True):
                if length != expected:
                    self._refuse_shape(item, tensor, sizes)
        return sizes

    def _refuse_kind(self, item: Argument, found: object) -> NoReturn:
        raise KindError(
            f"{self.where}: {item.name} is a {type(found).__name__}, expected a torch.Tensor "
            f"{shape_text(item)}; pass torch.as_tensor({item.name})"
        )

    def _refuse_dtype(self, item: Argument, found: Tensor, first: Tensor) -> NoReturn:
        expected, wanted = "float32 or float64", "float32"
        if found.dtype in DTYPES:
            wanted = str(first.dtype).removeprefix("torch.")
            expected = f"{wanted}, as {self.theta[0].name} is"
        raise TensorError(
            f"{self.where}: {item.name} is {str(found.dtype).removeprefix('torch.')}, expected "
            f"{expected}; pass {item.name}.to(torch.{wanted})"
        )

    def _refuse_device(self, item: Argument, found: Tensor, first: Tensor) -> NoReturn:
        if found.layout != torch.strided:
            raise TensorError(
                f"{self.where}: {item.name} has the layout {found.layout}, expected a dense one; "
                f"pass {item.name}.to_dense()"
            )
        raise TensorError(
            f"{self.where}: {item.name} is on {found.device}, but {self.theta[0].name} is on "
            f"{first.device}; pass {item.name}.to({str(first.device)!r})"
        )

    def _refuse_rank(self, item: Argument, found: Tensor) -> NoReturn:
        raise TensorError(
            f"{self.where}: {item.name} has {found.dim()} axes, shape {tuple(found.shape)}, "
            f"expected {len(item.shape)}: {shape_text(item)}; reshape it"
        )

    def _refuse_shape(self, item: Argument, found: Tensor, sizes: dict[str, int]) -> NoReturn:
        expected = self.shape(item.name, sizes)
        names = dict.fromkeys(n for axis in item.shape for _, n in axis_terms(axis) if n)
        origin = {told.dim: self.theta[told.tensor] for told in self.told}
        reasons = ", ".join(
            f"{n} = {sizes[n]} from {origin[n].name} {shape_text(origin[n])}" for n in names
        )
        raise TensorError(
            f"{self.where}: {item.name} has shape {tuple(found.shape)}, expected "
            f"{shape_text(item)} = {expected} with {reasons}; make the two agree"
        )

    def check_lengths(self, lengths: Tensor, steps: int) -> None:
        """Look at the numbers in lengths. Raises TensorError, which is a ValueError, too."""
        if lengths.numel() and (int(lengths.min()) < 0 or int(lengths.max()) > steps):
            row = int(((lengths < 0) | (lengths > steps)).int().argmax())
            raise TensorError(
                f"{self.where}: lengths[{row}] is {int(lengths[row])}, expected 0 to T = {steps}; "
                f"shorten it or pass longer tensors"
            )

    def check_steps(
        self,
        sizes: dict[str, int],
        lengths: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None,
    ) -> None:
        """Look at what says which steps count: lengths (B) int64, mask and reset (T, B) bool."""
        steps, rows = sizes["T"], sizes["B"]
        if lengths is not None:
            self._check_table("lengths", lengths, torch.int64, "B", (rows,))
        for name, flags in (("mask", mask), ("reset", reset)):
            if flags is not None:
                self._check_table(name, flags, torch.bool, "T, B", (steps, rows))

    def _check_table(
        self, name: str, found: Tensor, dtype: torch.dtype, axes: str, shape: tuple[int, ...]
    ) -> None:
        if found.dtype == dtype and tuple(found.shape) == shape:
            return
        kind = str(dtype).removeprefix("torch.")
        raise TensorError(
            f"{self.where}: {name} has shape {tuple(found.shape)} and dtype "
            f"{str(found.dtype).removeprefix('torch.')}, expected ({axes}) = {shape} of {kind}; "
            f"pass {name}.to(torch.{kind}) in that shape"
        )


def has_dense_units(tensor: Tensor) -> bool:
    """Whether the units of a tensor (T, B, ...) lie side by side, whatever lies between rows."""
    dense = 1
    for length, stride in zip(
        reversed(tensor.shape[2:]), reversed(tensor.stride()[2:]), strict=True
    ):
        if length > 1 and stride != dense:
            return False
        dense *= length
    return True


def row_axis(item: Argument) -> int | None:
    """The axis of the rows of a batch; None for weights."""
    return item.shape.index("B") if "B" in item.shape else None


def layout_of(interface: Interface) -> Layout:
    """Sort out what a cell takes and gives over time. Raises BuildError for one that cannot."""
    found = {function.name: function for function in interface.functions}
    if "sequence_forward" not in found or "sequence_backward" not in found:
        raise BuildError(
            f"{interface.name}: this cell has no functions over time, which its layer would call; "
            f"`cellgen explain` says why"
        )
    forward, backward = found["sequence_forward"], found["sequence_backward"]
    return _layout(interface.name, forward, backward)


def _layout(cell: str, forward: Function, backward: Function) -> Layout:
    formed = {item.name for item in backward.results}
    theta = tuple(a for a in forward.arguments if not a.is_scalar or f"d_{a.name}" in formed)
    learns = tuple(place for place, a in enumerate(theta) if f"d_{a.name}" in formed)
    results = {item.name: item for item in backward.results}
    plain = [item for item in forward.results if not item.saved]
    return Layout(
        cell,
        forward.dims,
        theta,
        tuple(a for a in forward.arguments if a.is_scalar and f"d_{a.name}" not in formed),
        tuple(plain),
        tuple(item for item in forward.results if item.saved),
        tuple(item for item in backward.arguments if item.optional),
        tuple(results[f"d_{theta[place].name}"] for place in learns),
        learns,
        _told(cell, forward.dims, theta),
        {
            item.name: tuple(axis_terms(axis) for axis in item.shape)
            for item in (
                *backward.arguments,
                *backward.results,
                *forward.arguments,
                *forward.results,
            )
        },
    )


def _told(cell: str, dims: Sequence[str], theta: Sequence[Argument]) -> tuple[Tells, ...]:
    """Find for each dimension an axis that tells it: states and sums last. Raises BuildError."""
    axes = [
        (axis_terms(axis), tensor, place)
        for tensor, item in enumerate(theta)
        for place, axis in enumerate(item.shape)
    ]
    axes.sort(key=lambda axis: (theta[axis[1]].role == "state", len(axis[0]), axis[0][0][0]))
    told: dict[str, Tells] = {}
    while True:
        before = len(told)
        for terms, tensor, place in axes:
            unknown = [(factor, name) for factor, name in terms if name and name not in told]
            if len(unknown) == 1:
                factor, dim = unknown[0]
                rest = tuple(term for term in terms if term[1] != dim)
                told[dim] = Tells(dim, tensor, place, factor, rest)
        if len(told) == before:
            break
    untold = [name for name in dims if name not in told]
    if untold:
        raise BuildError(
            f"{cell}: no argument tells the dimension {untold[0]}; add one to the cell that has it"
        )
    return tuple(told.values())
