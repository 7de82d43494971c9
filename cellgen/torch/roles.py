"""What a layer makes of a cell's values: which are parameters, which the caller gives.

Input: the layout of a cell, ``input_size``, ``hidden_size`` and other dimensions by name. Output:
``Roles`` and the dimensions, or a message that says which dimension is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cellgen import accept
from cellgen.errors import BuildError
from cellgen.runtime.abi import Argument, axis_length
from cellgen.runtime.call.dimensions import dims_of
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.masks import Mask
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.layout import Layout

CALLS = ("T", "B")
"""Dimensions that every call has anew."""


@dataclass(frozen=True)
class Roles:
    """A cell's values by what a layer does with them.

    ``input`` is what a layer passes on to the next; ``shared`` are other inputs and statics, the
    same for every layer; ``parameters`` are weights, biases and scalars that learn, ``fixed`` those
    among them that do not; ``outputs`` are over time.
    """

    cell: str
    input: Argument
    shared: tuple[Argument, ...]
    states: tuple[Argument, ...]
    parameters: tuple[Argument, ...]
    fixed: frozenset[str]
    outputs: tuple[Argument, ...]
    masks: tuple[Mask, ...]

    def input_width(self, sizes: Mapping[str, int]) -> int:
        """How wide the input of a layer is."""
        return width(self.input, sizes)

    def output_width(self, sizes: Mapping[str, int]) -> int:
        """How wide the first output is, heads flattened."""
        return width(self.outputs[0], sizes)

    def fed_by(self, wide: int, sizes: Mapping[str, int]) -> dict[str, int]:
        """The dimensions of a layer whose input is so wide. Raises TensorError."""
        own = dict(sizes)
        if width(self.input, own) == wide:
            return own
        dim = sole_dim(self.input)
        if dim is None or any(dim in dims_of(state) for state in self.states):
            raise TensorError(
                f"{self.cell}: a layer reads what the layer before gives, {wide} wide, but "
                f"{self.input.name} {shape_text(self.input)} has the width "
                f"{width(self.input, own)} of its own states; use one layer and one direction"
            )
        own[dim] = wide
        return own


def roles_of(layout: Layout, masks: tuple[Mask, ...]) -> Roles:
    """Sort out a cell's values. Raises BuildError for a cell without inputs."""
    drawn = {mask.name for mask in masks}
    free = [item for item in layout.theta if item.name not in drawn]
    inputs = [item for item in free if item.role == "input"]
    if not inputs:
        raise BuildError(f"{layout.cell}: this cell has no input, expected one that a layer reads")
    learns = {layout.theta[place].name for place in layout.learns}
    parameters = tuple(i for i in free if i.role in ("weight", "bias") or i.is_scalar)
    return Roles(
        layout.cell,
        inputs[0],
        (*inputs[1:], *(item for item in free if item.role == "static")),
        tuple(item for item in free if item.role == "state"),
        parameters,
        frozenset(item.name for item in parameters if item.name not in learns),
        tuple(item for item in layout.outputs if item.over_time),
        masks,
    )


def width(item: Argument, sizes: Mapping[str, int]) -> int:
    """How many units an array has for each row, heads flattened."""
    return math.prod(axis_length(axis, dict(sizes)) for axis in units(item))


def units(item: Argument) -> tuple[str, ...]:
    """The axes of an array behind those of steps and rows."""
    return tuple(axis for axis in item.shape if axis not in CALLS)


def sole_dim(item: Argument) -> str | None:
    """The dimension that is the width of an array; None where it has another form."""
    axes = units(item)
    return axes[0] if len(axes) == 1 and axes[0].isidentifier() else None


def sizes_of(
    layout: Layout,
    roles: Roles,
    input_size: object,
    hidden_size: object,
    dims: Mapping[str, object],
    options: Iterable[str],
) -> dict[str, int]:
    """Find every dimension of a layer, whose other arguments are ``options``.

    Raises KindError, TensorError, ArgumentError.
    """
    label = f"module({layout.cell})"
    known = [name for name in layout.dims if name not in CALLS]
    for name in dims:
        if name not in known:
            raise KindError(
                f"{label}: unknown argument {name!r}; {accept.nearest(name, [*known, *options])}"
                f"expected dimensions ({', '.join(known)}) or "
                f"scalars ({', '.join(item.name for item in layout.scalars) or 'it has none'})"
            )
    sizes = {name: accept.whole(label, name, size) for name, size in dims.items()}
    wide_in = accept.whole(label, "input_size", input_size)
    wide_out = accept.whole(label, "hidden_size", hidden_size, 1)
    output_dim = "H" if "H" in known else sole_dim(roles.outputs[0])
    if output_dim is not None:
        sizes.setdefault(output_dim, wide_out)
    input_dim = sole_dim(roles.input)
    if input_dim is not None:
        sizes.setdefault(input_dim, wide_in)
    missing = [name for name in known if name not in sizes]
    if missing:
        raise KindError(
            f"{label}: the dimension {missing[0]} is missing; pass {missing[0]}=... beside "
            f"input_size and hidden_size"
        )
    widths = width(roles.input, sizes), sizes["H"] if "H" in sizes else roles.output_width(sizes)
    for name, value, wanted in zip(
        ("input_size", "hidden_size"), (wide_in, wide_out), widths, strict=True
    ):
        if value != wanted:
            stated = ", ".join(f"{dim} = {size}" for dim, size in sizes.items())
            raise TensorError(
                f"{label}: {name} is {value}, expected {wanted}, which {stated} make; "
                f"make them agree"
            )
    return sizes
