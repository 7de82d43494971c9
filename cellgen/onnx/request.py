"""What a caller of ``export`` asks for, looked at: weights, dimensions, outputs.

Input: a cell and the arguments of ``export``. Output: ``ModelRequest``, of which models of every
form are made.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sympy import Expr

from cellgen import accept
from cellgen.errors import ArgumentError, UsageError
from cellgen.language.cell import Definition
from cellgen.language.value import B, Dim, Role, Value, format_shape
from cellgen.onnx.graph import Array
from cellgen.program.derive import forward
from cellgen.program.interpret import axis_size

DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
"""By ONNX's word: for each direction whether it goes from the last step to the first."""


@dataclass(frozen=True)
class ModelRequest:
    """One export: a cell, its weights in each direction, and what the model takes and gives.

    ``weights`` are the values of parameters and scalars by name, one mapping a direction; empty
    ones where weights are inputs of the model. ``outputs`` are the outputs over time that were
    named, None where the form of the model decides.
    """

    definition: Definition
    weights: tuple[Mapping[str, Array], ...]
    sizes: Mapping[str, int]
    dtype: str
    direction: str
    initial: bool
    lengths: bool
    outputs: tuple[Value, ...] | None

    @property
    def label(self) -> str:
        """How a message begins."""
        return f"export of {self.definition.name}"

    @property
    def reversed_in(self) -> tuple[bool, ...]:
        """For each direction, whether it goes from the last step to the first."""
        return DIRECTIONS[self.direction]

    @property
    def is_bidirectional(self) -> bool:
        """Whether states and outputs have an axis of two directions."""
        return len(self.reversed_in) == 2

    @property
    def wanted(self) -> set[Value]:
        """Outputs over time that a model must give: those named, else those of the cell alone.

        Gates and states are formed within an operator, which need not give them; a layer behind the
        states is not.
        """
        if self.outputs is not None:
            return set(self.outputs)
        definition = self.definition
        states = tuple(definition.next_state(state) for state in definition.states)
        within = forward(definition).restrict("states", states, ()).values
        return set(definition.outputs).difference(within)

    @property
    def has_weights(self) -> bool:
        """Whether the weights stand in the model."""
        return bool(self.weights[0])

    def lengths_of(self, value: Value) -> list[int | str]:
        """Axes of a value, the batch as the free axis ``B``."""
        return ["B" if axis == B else axis_size(axis, self.sizes) for axis in value.shape]


def parameters_of(definition: Definition) -> tuple[Value, ...]:
    """What a model holds: weights, biases and scalars."""
    return definition.with_role(Role.WEIGHT, Role.BIAS, Role.SCALAR)


def weights_of(
    definition: Definition, weights: object, directions: int, dtype: str
) -> tuple[Mapping[str, Array], ...]:
    """Look at the weights: one mapping for each direction; scalars have defaults.

    Raises:
        ArgumentError: a weight that is missing or unknown, or is no array of real numbers.
    """
    label = f"export of {definition.name}"
    if weights is None:
        return ({},) * directions
    each = [weights] if directions == 1 else accept.items(label, "weights", weights, "two dicts")
    if len(each) != directions:
        raise ArgumentError(
            f"{label}: weights are {len(each)} dicts, expected two, of the direction forward and "
            f"of the one in reverse"
        )
    return tuple(_arrays(label, definition, one, dtype) for one in each)


def _arrays(label: str, definition: Definition, weights: object, dtype: str) -> Mapping[str, Array]:
    arrays = accept.names(label, "weights", weights, "weights")
    values = {str(value.name): value for value in parameters_of(definition)}
    for name in arrays:
        if name not in values:
            close = difflib.get_close_matches(name, values, n=1)
            raise ArgumentError(
                f"{label}: weights have {name!r}, which is none of the cell's; "
                + (f"did you mean {close[0]!r}?" if close else f"it has {', '.join(values)}")
            )
    arrays = {**definition.defaults, **arrays}
    missing = [name for name in values if name not in arrays]
    if missing:
        raise ArgumentError(f"{label}: weights lack {', '.join(missing)}; pass all of them")
    return {name: _rounded(label, name, arrays[name], dtype) for name in values}


def _rounded(label: str, name: str, weight: object, dtype: str) -> Array:
    """An array in the model's precision. Raises ArgumentError for numbers that it cannot hold."""
    array = accept.array(label, name, weight)
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype)
    if np.any(np.isinf(rounded) & np.isfinite(array)):
        raise ArgumentError(
            f"{label}: {name} has entries beyond {dtype}, the largest {np.abs(array).max():.3g}; "
            f"expected numbers up to {np.finfo(dtype).max:.3g}: scale them, or pass dtype='float64'"
        )
    return rounded


def sizes_of(
    definition: Definition,
    weights: Sequence[Mapping[str, Array]],
    dims: Mapping[str, int] | None,
) -> Mapping[str, int]:
    """Tell the dimensions from weights and from those given by name; B is free.

    Raises:
        ArgumentError: a dimension that nothing tells, or an array of another shape.
        UsageError: a dimension by a name that the cell does not have.
    """
    label = f"export of {definition.name}"
    stated = {} if dims is None else accept.names(label, "dims", dims, "sizes")
    sizes = {name: accept.whole(label, name, n, 1) for name, n in stated.items()}
    names = [str(dim) for dim in definition.dims if dim != B]
    for name in sizes:
        if name not in names:
            raise UsageError(f"{label}: dims have {name!r}; the cell has {', '.join(names)}")
    values = [value for value in parameters_of(definition) if value.shape]
    if weights[0]:
        sizes = _told(values, weights[0], sizes)
    for arrays in weights:
        _require_axes(label, values, arrays)
    untold = [name for name in names if name not in sizes]
    if untold:
        raise ArgumentError(
            f"{label}: nothing tells the dimension {untold[0]}; pass dims={{{untold[0]!r}: ...}}"
        )
    for arrays in weights:
        for value in values if arrays else ():
            expected = tuple(axis_size(axis, sizes) for axis in value.shape)
            accept.shaped(
                label, str(value.name), arrays[str(value.name)], expected,
                meaning=format_shape(value.shape),
            )  # fmt: skip
    return sizes


def _require_axes(label: str, values: Iterable[Value], arrays: Mapping[str, Array]) -> None:
    """Raise ArgumentError for an array with more or fewer axes than its value."""
    for value in values if arrays else ():
        shape = arrays[str(value.name)].shape
        if len(shape) != len(value.shape):
            raise ArgumentError(
                f"{label}: {value.name} has shape {shape}, expected {format_shape(value.shape)}"
            )


def _told(
    values: Iterable[Value], arrays: Mapping[str, Array], stated: Mapping[str, int]
) -> dict[str, int]:
    """Solve axes with one unknown dimension until none is left."""
    sizes = dict(stated)
    axes: list[tuple[Expr, int]] = []
    for value in values:
        array = arrays[str(value.name)]
        if array.ndim == len(value.shape):
            axes += zip(value.shape, array.shape, strict=True)
    before = -1
    while len(sizes) != before:
        before = len(sizes)
        for axis, length in axes:
            rest = axis.subs({Dim(name): n for name, n in sizes.items()})
            unknown = sorted(rest.free_symbols, key=str)
            if len(unknown) == 1:
                factor = rest.coeff(unknown[0])
                sizes[str(unknown[0])] = max(1, int((length - rest.subs(unknown[0], 0)) // factor))
    return sizes


def outputs_of(definition: Definition, names: Sequence[str] | None) -> tuple[Value, ...] | None:
    """The outputs over time that are named. Raises UsageError for one that the cell lacks."""
    if names is None:
        return None
    label, known = f"export of {definition.name}", {str(v.name): v for v in definition.outputs}
    listed = accept.items(label, "outputs", names, "names of outputs, in a tuple")
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise UsageError(
                f"{label}: outputs name {accept.quoted(name)}; the cell has {', '.join(known)}"
            )
    return tuple(known[str(name)] for name in dict.fromkeys(listed))


def dtype_of(label: str, dtype: object) -> str:
    """The precision by name. Raises ArgumentError."""
    return str(accept.float_dtype(label, dtype))
