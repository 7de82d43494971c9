"""Interpret Programs with NumPy: the meaning of the equations, in float64 or complex128.

Complex arguments give complex-step derivatives: an imaginary part of size ``STEP`` comes out,
divided by ``STEP``, as the exact directional derivative. Functions with a *stated* derivative
evaluate to f(Re) + i f'(Re) Im there, so that the statement, not the function, is what is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from sympy import Expr

from cellgen.errors import ArgumentError
from cellgen.language.value import Dim, Value, format_shape
from cellgen.program.closures import Array, Frame, prepare
from cellgen.program.identity import once_for_each
from cellgen.program.ssa import Program

Sizes: TypeAlias = Mapping[str, int]

STEP = 1e-180
"""Complex step: its square underflows to 0, so the imaginary part is the derivative exactly, and
the real part is what it was: equal numbers stay equal (``max`` takes the first of them)."""


def axis_size(axis: Expr, sizes: Sizes) -> int:
    """Evaluate an axis length for given dimensions."""
    return _axis_size(axis, tuple((dim, sizes[dim.name]) for dim in _dims_of(axis)))


@lru_cache(maxsize=4096)
def _dims_of(axis: Expr) -> tuple[Dim, ...]:
    return tuple(sorted(axis.free_symbols, key=str))


@lru_cache(maxsize=65536)
def _axis_size(axis: Expr, by: tuple[tuple[Dim, int], ...]) -> int:
    return int(axis.subs(by))


def shape_sizes(value: Value, sizes: Sizes) -> tuple[int, ...]:
    """Lengths of a value's axes."""
    return tuple(axis_size(axis, sizes) for axis in value.shape)


def interpret(
    program: Program,
    arguments: Mapping[str, Array | float],
    sizes: Sizes,
    *,
    keep: bool = False,
    nudge: Callable[[Array], Array] | None = None,
) -> dict[str, Array]:
    """Run a program; returns its results by name, or every value with ``keep=True``.

    Missing optional arguments (upstream gradients) count as zero. float64 unless an argument is
    complex. Every computed value passes through ``nudge``, and so does what a function gives
    within an expression: where tanh(x) is nearly 1, no nudge of x is a rounding of it.

    Raises:
        ArgumentError: a missing argument, or one whose shape is not what the program says.
    """
    prepared, sized = prepare(program), _shapes_of(program).of(sizes)
    values = [
        _argument(program, value, arguments, shape)
        for value, shape in zip(program.arguments, sized.arguments, strict=True)
    ]
    frame = Frame(values, sized.size, nudge, {})
    with np.errstate(all="ignore"):
        for evaluate, has_nudge, is_pointwise, shape in zip(
            prepared.evaluate, prepared.has_nudge, prepared.is_pointwise, sized.targets, strict=True
        ):
            value = evaluate(frame)
            if is_pointwise and np.shape(value) != shape:
                value = np.broadcast_to(value, shape)
            values.append(np.asarray(value if nudge is None or has_nudge else nudge(value)))
    if keep:
        return {str(v.name): array for v, array in zip(program.values, values, strict=True)}
    return {str(v.name): values[n] for v, n in zip(program.results, prepared.results, strict=True)}


@dataclass(frozen=True)
class _Sized:
    """Shapes of a program's arguments and targets for some sizes."""

    sizes: Mapping[str, int]
    arguments: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]
    known: dict[int, tuple[Expr, int]] = field(default_factory=dict)
    """By which object an axis is, which is kept: SymPy takes long to tell that two are equal."""

    def size(self, axis: Expr) -> int:
        """Length of an axis."""
        pair = self.known.get(id(axis))
        if pair is None:
            pair = self.known[id(axis)] = axis, axis_size(axis, self.sizes)
        return pair[1]


class _ShapesBySizes:
    """Shapes of a program's values by sizes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[tuple[str, int], ...], _Sized] = {}

    def of(self, sizes: Sizes) -> _Sized:
        key = tuple(sizes.items())
        sized = self._known.get(key)
        if sized is None:
            arguments = tuple(shape_sizes(value, sizes) for value in self._program.arguments)
            targets = tuple(shape_sizes(s.target, sizes) for s in self._program.statements)
            sized = self._known[key] = _Sized(dict(sizes), arguments, targets)
        return sized


_shapes_of = once_for_each(_ShapesBySizes)


def _argument(
    program: Program,
    value: Value,
    arguments: Mapping[str, Array | float],
    shape: tuple[int, ...],
) -> Array:
    name = str(value.name)
    argument = arguments.get(name)
    if argument is None:
        if value in program.optional:
            return np.zeros(shape)
        raise ArgumentError(f"{program.cell}.{program.function}: argument {name} is missing")
    array = np.asarray(argument)
    array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64, copy=False)
    if array.shape != shape:
        raise ArgumentError(
            f"{program.cell}.{program.function}: {name} has shape {array.shape}, expected "
            f"{format_shape(value.shape)} = {shape}"
        )
    return array
