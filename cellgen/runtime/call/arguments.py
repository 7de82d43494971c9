"""Check a call against the interface of its function: names, dtypes, shapes, memory.

Input: the plain-data ``Function`` and the arrays of a call. Output: its dtype and dimensions, or an
ArgumentError that names the function, the argument, what was found and what was expected.
Imports neither SymPy nor Jinja2.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from cellgen import accept
from cellgen.accept import a_type, number, quoted, whole
from cellgen.errors import ArgumentError, BuildError
from cellgen.runtime.abi import (
    EVERY,
    PRECISIONS,
    Argument,
    Function,
    axis_length,
    axis_terms,
)
from cellgen.runtime.call.dimensions import bindings, dims_of
from cellgen.runtime.call.faults import (
    LENGTH,
    RANK,
    SHAPE,
    Fault,
    Origin,
    sentence,
    shape_text,
    unbound,
)
from cellgen.runtime.call.items import Item, check_device, check_elements, check_memory
from cellgen.runtime.call.stored import is_stored
from cellgen.runtime.call.views import ArrayView, view_of
from cellgen.runtime.names import of_gradient
from cellgen.runtime.options import ROWS
from cellgen.runtime.results import Array

DTYPES = {np.dtype(np.float32): PRECISIONS[0], np.dtype(np.float64): PRECISIONS[1]}
ELEMENTS = tuple(str(dtype) for dtype in DTYPES)
"""Types of elements of kernels on the host."""
Terms: TypeAlias = tuple[tuple[int, str], ...]
Look: TypeAlias = Callable[[str, str, str, object], ArrayView]
"""Looks at an array: of a function, by its name, by what messages call it, at a value."""


@dataclass(frozen=True)
class Checked:
    """A call that passed: its element type and dimensions, and the arrays that were given.

    ``views`` tell how each of these looked, by its label.
    """

    element: str
    dims: dict[str, int]
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    views: dict[str, ArrayView]

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The element type as NumPy has it."""
        return np.dtype(self.element)

    @property
    def device(self) -> int:
        """Where the arrays are."""
        return next(iter(self.views.values())).device


def check_call(
    label: str,
    function: Function,
    arguments: Mapping[str, object],
    results: Mapping[str, object],
    look: Look | None = None,
    elements: tuple[str, ...] = ELEMENTS,
) -> Checked:
    """Check names, types, elements, shapes and memory, in this order. Raises ArgumentError.

    ``look`` looks at an array and refuses what is none, for NumPy's where left out;
    ``elements`` are the types of elements that may pass.
    """
    check_names(label, function, arguments)
    look = look or _host_view

    def seen(item: Argument, called: str, value: object) -> Item:
        return Item(item, _as_floats(look(label, item.name, called, value)), called)

    inputs = [
        seen(item, item.name, arguments[item.name])
        for item in _by_weight(function.arguments)
        if arguments.get(item.name) is not None
    ]
    outputs = [
        seen(item, f"out {item.name}", results[item.name])
        for item in function.results
        if item.name in results
    ]
    if not inputs:
        known = ", ".join(item.name for item in function.arguments if not item.is_scalar)
        raise ArgumentError(f"{label}: no array is given, expected some of {known}; pass one")
    everything = (*inputs, *outputs)
    element = check_elements(label, inputs, outputs, elements)
    for item in everything:
        check_device(label, item, inputs[0])
        _check_rank(label, item)
    dims, origins = infer_dims(label, inputs)
    if any(name not in dims for name in function.dims):  # results may tell what sums alone do not
        dims, origins = infer_dims(label, everything)
    divide_dims(dims, origins, (*function.arguments, *function.results))
    _check_dims(label, function, dims, {item.argument.name for item in everything})
    for item in everything:
        _check_shape(label, item, dims, origins)
    for item in everything:
        check_memory(label, item)
    return Checked(
        element,
        dims,
        {item.argument.name: cast(Array, arguments[item.argument.name]) for item in inputs},
        {item.argument.name: cast(Array, results[item.argument.name]) for item in outputs},
        {item.label: item.view for item in everything},
    )


def _as_floats(view: ArrayView) -> ArrayView:
    """What the engine has in 16 bits counts as floats."""
    return view._replace(dtype="float32") if is_stored(view.dtype) else view


def has_steps(item: Argument) -> bool:
    """Whether an array has a row for each step, saved ones too."""
    return item.over_time or (item.saved and item.shape[:1] == ("T",))


def _by_weight(arguments: Iterable[Argument]) -> list[Argument]:
    """Order arguments so that those a call must have come first: they fix the dimensions."""
    return sorted(arguments, key=lambda item: item.optional or not item.used)


def check_names(label: str, function: Function, arguments: Mapping[str, object]) -> None:
    """Check that arguments are known, and that those are given which must be."""
    known = [item.name for item in function.arguments]
    options = [*ROWS] if function.team else []
    for name in arguments:
        if name in options and name not in known:  # what was saved may have the name
            raise ArgumentError(
                f"{label}: {name} is no option of this function; leave it out, or see its help"
            )
        if name not in known:
            meant = difflib.get_close_matches(name, options, n=1)
            advice = f"did you mean {meant[0]!r}?" if meant else suggestion(name, known)
            raise ArgumentError(f"{label}: unknown argument {name!r}; {advice}")
    for item in function.arguments:
        needed = item.used and not item.optional and not item.is_scalar
        if needed and arguments.get(item.name) is None:
            lack = "is None" if item.name in arguments else "is missing"
            raise ArgumentError(
                f"{label}: argument {item.name} {lack}, expected an array {shape_text(item)}; "
                f"pass {item.name}=..."
            )


def unnamed_error(label: str, function: Function, unnamed: Sequence[object]) -> ArgumentError:
    """Say that arrays are passed by name, and which names there are."""
    first, also = accept.quoted(unnamed[0]), ""
    if isinstance(unnamed[0], Mapping):
        first, also = accept.a_type(unnamed[0]), ", or what this has with ** before it"
    return ArgumentError(
        f"{label}: {len(unnamed)} argument{'s' * (len(unnamed) > 1)} without a name, the first "
        f"{first}; pass each by name: {by_name(function)}{also}"
    )


def no_function_error(
    name: str, functions: Sequence[Function], unnamed: Sequence[object], named: Iterable[str]
) -> ArgumentError:
    """Say that functions of a kernel are called, and which it has."""
    values = ", ".join([*map(accept.quoted, unnamed[:1]), *(f"{name}=..." for name in named)])
    known = ", ".join(function.name for function in functions)
    usual = next((f for f in functions if f.name == "sequence_forward"), functions[0])
    return ArgumentError(
        f"{name}: a kernel is called as kernel({values}), expected one of its functions, {known}; "
        f"write kernel.{usual.name}({by_name(usual)})"
    )


def by_name(function: Function) -> str:
    """The arrays of a function as they are passed: ``x=..., h_prev=...``."""
    return ", ".join(f"{item.name}=..." for item in function.arguments if not item.is_scalar)


def suggestion(name: str, known: Sequence[str]) -> str:
    """Say which known name may be meant: for a gradient, which outputs have one."""
    if of_gradient(name) is not None:
        gradients = [n for n in known if of_gradient(n) is not None]
        return f"expected {', '.join(gradients or known)}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected {', '.join(known)}"


def _host_view(label: str, name: str, called: str, value: object) -> ArrayView:
    """Look at an array of NumPy's. Raises ArgumentError for anything else."""
    base = as_base(value)
    if type(base) is np.ndarray:
        return view_of(base)
    accept.refuse_masked(label, called, value)
    raise ArgumentError(
        f"{label}: {called} is {a_type(value)}, expected a numpy.ndarray (nothing is copied "
        f"behind your back); pass np.ascontiguousarray({name}, dtype=np.float32), "
        f"or np.float64 where the other arrays are"
    )


def as_base(value: Any) -> Any:
    """Look at an array as NumPy's own: a subclass may say anything of its shape and memory.

    What is no array, or has a mask of its own, is returned as it is.
    """
    if type(value) is np.ndarray or not isinstance(value, np.ndarray):
        return value
    return value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)


def as_scalar(label: str, name: str, value: object, default: float | None) -> float:
    """Convert a run-time scalar; only real numbers and 0-d arrays of them pass."""
    scalar = number(value)
    if scalar is not None:
        return scalar
    raise ArgumentError(
        f"{label}: scalar {name} is {quoted(value)}, expected one real number; "
        f"pass {name}={default} (its default) or leave it out"
    )


def as_steps(label: str, name: str, value: object, least: str, fewest: int = 0) -> int:
    """Convert an option that counts steps; ``least`` says what the ``fewest`` mean."""
    return whole(label, name, value, fewest, expected=f"a number of steps, {least}")


def _check_rank(label: str, item: Item) -> None:
    if len(item.view.shape) != len(item.argument.shape):
        raise ArgumentError(
            sentence(label, Fault(RANK, item.argument, item.label, item.view.shape))
        )


def infer_dims(label: str, inputs: Sequence[Item]) -> tuple[dict[str, int], dict[str, Origin]]:
    """Solve the axis lengths for the dimensions; also tell which argument fixed each.

    Raises ArgumentError for a length that its axis cannot have.
    """
    dims: dict[str, int] = {}
    origins: dict[str, Origin] = {}
    for binding in bindings(tuple(item.argument for item in inputs)):
        item, axis = inputs[binding.argument], binding.axis
        size, remainder = binding.divided(item.view.shape[axis], dims)
        if remainder or size < 0:
            fault = Fault(LENGTH, item.argument, item.label, item.view.shape, axis, dims)
            raise ArgumentError(sentence(label, fault))
        dims[binding.dim] = size
        origins[binding.dim] = item.label, item.argument
    return dims, origins


def divide_dims(
    dims: dict[str, int], origins: dict[str, Origin], items: Sequence[Argument]
) -> None:
    """Tell axes of every so many-th step from the steps themselves."""
    for axis in (item.shape[0] for item in items if item.shape):
        name, divided, number = axis.partition(EVERY)
        if divided and name in dims:
            dims[axis], origins[axis] = dims[name] // int(number), origins[name]


def _check_dims(label: str, function: Function, dims: Mapping[str, int], known: Set[str]) -> None:
    """Refuse a call of which nothing tells a dimension; say what could."""
    untold = [name for name in function.dims if name not in dims]
    if not untold:
        return
    able = [item for item in function.arguments if untold[0] in dims_of(item)]
    missing = ", ".join(item.name for item in able if item.name not in known)
    ways = [f"one of {missing}"] * bool(missing) + [
        f"out={{{item.name!r}: array}} {shape_text(item)}"
        for item in function.results
        if item.name not in known and not item.saved and any(tells(item, d) for d in untold)
    ]
    sums = (item for item in able if item.name in known)
    raise ArgumentError(unbound(label, untold[0], sums, ways))


def tells(argument: Argument, dim: str, *, in_sums: bool = False) -> bool:
    """Whether an axis is a multiple of one dimension, or a sum with one in it."""
    terms = [axis_terms(axis) for axis in argument.shape]
    return any(
        (in_sums or len(axis) == 1) and any(dim == name for _, name in axis) for axis in terms
    )


def _check_shape(
    label: str, item: Item, dims: Mapping[str, int], origins: Mapping[str, Origin]
) -> None:
    if any(name not in dims for name in dims_of(item.argument)):
        return  # the function does not read it, or its dimensions would be known
    expected = lengths(item.argument, dims)
    if item.view.shape == expected:
        return
    fault = Fault(SHAPE, item.argument, item.label, item.view.shape, 0, dims, origins)
    raise ArgumentError(sentence(label, fault))


def take_out(label: str, names: tuple[str, ...], out: object) -> dict[str, Array]:
    """Name the arrays of ``out``; None stands for a result to allocate. Raises ArgumentError."""
    if isinstance(out, tuple):
        if len(out) != len(names):
            raise ArgumentError(
                f"{label}: out has {len(out)} entries, expected {len(names)}: "
                f"({', '.join(names)}); put None where a new array will do"
            )
        pairs = zip(names, out, strict=True)
        return {name: as_base(array) for name, array in pairs if array is not None}
    if isinstance(out, Mapping):
        arrays = accept.names(label, "out", out, "results")
        for name in arrays:
            if name not in names:
                raise ArgumentError(
                    f"{label}: out has an unknown result {name!r}; {suggestion(name, names)}"
                )
        return {name: as_base(arrays[name]) for name in names if arrays.get(name) is not None}
    raise ArgumentError(
        f"{label}: out is {a_type(out)}, expected a dict or a tuple of arrays; "
        f"pass out={{{names[0]!r}: array}}"
    )


def scalar_places(function: Function) -> tuple[tuple[int, str, float], ...]:
    """List run-time scalars: place in the C struct (-1: not in it), name, default."""
    members = function.struct_members
    return tuple(
        (members.index(item) if item in members else -1, item.name, item.default)
        for item in function.arguments
        if item.default is not None
    )


def require_callable(cell: str, function: Function) -> None:
    """Raise BuildError where an interface asks for what ``KernelFunction`` cannot do."""
    label = f"{cell}.{function.name}"
    taken = ("out", *(ROWS if function.team else ()))
    for item in function.arguments:
        if item.name in taken and not item.saved:
            raise BuildError(
                f"{label}: an argument cannot be named {item.name!r}, which is an option of the "
                f"call; rename it in the cell"
            )
    axes = {name for item in function.arguments for name in dims_of(item)}
    for name in function.dims:
        if name not in axes:
            raise BuildError(
                f"{label}: no argument has an axis with the dimension {name}, so a call cannot "
                "tell its length; add an argument that has it"
            )


def lengths(argument: Argument, dims: Mapping[str, int]) -> tuple[int, ...]:
    """Lengths of an argument's axes."""
    return tuple([dims[a] if a in dims else axis_length(a, dict(dims)) for a in argument.shape])


def has_elements(items: Iterable[Argument], dims: Mapping[str, int]) -> bool:
    """Whether any of some arrays has an element; without, there is nothing to compute."""
    return any(0 not in lengths(item, dims) for item in items)


LARGEST = 1 << 63
"""Bytes that no array has."""
AMPLE = 64
"""Times the arrays of a call that its workspace and what a kernel counts on the way stay below."""


def refuse_overflow(label: str, function: Function, dims: Mapping[str, int], itemsize: int) -> None:
    """Raise ArgumentError where bytes of a call cannot be counted in 64 bits.

    A length of 0 hides no other: NumPy has arrays (0, 2**62), kernels count both.
    """
    items = (*function.struct_members, *function.results)
    sizes = [itemsize * math.prod(max(n, 1) for n in lengths(item, dims)) for item in items]
    largest = max(zip(sizes, items, strict=True), key=lambda pair: pair[0], default=None)
    if largest is not None and largest[0] >= LARGEST:
        raise ArgumentError(
            f"{label}: {largest[1].name} {shape_text(largest[1])} = {lengths(largest[1], dims)} "
            f"has more bytes than 64 bits can count; call it with smaller dimensions"
        )
    if not has_elements(function.results, dims):
        return  # nothing runs
    run = {**dims, "T": 0} if dims.get("B") == 0 else dims
    total = sum(itemsize * math.prod(max(n, 1) for n in lengths(item, run)) for item in items)
    if AMPLE * total >= LARGEST:
        every = ", ".join(f"{name} = {size}" for name, size in dims.items())
        raise ArgumentError(
            f"{label}: the workspace of dimensions {every} has more bytes than 64 bits can count; "
            f"call it with smaller dimensions"
        )
