"""Draw points to check at: finite, representable in float32, away from kinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cellgen.errors import ArgumentError, BuildError
from cellgen.language.cell import Cell, Definition
from cellgen.language.value import Role, Value
from cellgen.program.interpret import Sizes, interpret, shape_sizes
from cellgen.program.ssa import Program
from cellgen.program.step import CellPrograms
from cellgen.proof.check.kinks import with_kinks
from cellgen.runtime.kernel import Kernel

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arguments: TypeAlias = dict[str, Array]

KINK_MARGIN = 1e-3
"""Distance that drawn points keep from kinks: a thousand times float32's error there, so that C and
interpreter stand on the same side."""

TRIES = 40
"""Draws before a point near a kink is accepted; a layer of 37 units needs a few."""

GRADIENT_SIZES = (3, 2, 4, 5, *(2, 3) * 16)
"""Lengths of B, I, H and further dimensions where each entry is stepped on its own."""

MOST_NUMBERS = 20_000
"""Of a value at a point beyond two vectors: an interpreted step takes some milliseconds."""

SCALAR_FACTORS = (1.0, 0.25, -1.0)
"""Run-time scalars are drawn as these multiples of their defaults: a smaller clip bites, a negative
one switches it off."""


@dataclass(frozen=True)
class Subject:
    """A cell under proof: ``plain`` is its forward program before any rewrite.

    ``kernel`` is what kept it from being built where there is none.
    """

    cell: type[Cell]
    programs: CellPrograms
    plain: Program
    kernel: Kernel | BuildError

    @property
    def definition(self) -> Definition:
        """The cell as data."""
        return self.programs.definition


@dataclass(frozen=True)
class Point:
    """Arguments and upstream gradients of a step, representable in float32."""

    sizes: Sizes
    arguments: Arguments
    upstream: Arguments
    near_kinks: int


def draw_point(
    subject: Subject, lengths: Sequence[int], rng: np.random.Generator, factor: float = 1.0
) -> Point:
    """Draw a point where every output is finite and no function is near a kink.

    What a branch does not take may be infinite or no number there.

    Where none is found, scalars go back to their defaults, then inputs become positive (for
    logarithms and roots); the last resort is the finite point with the fewest values near kinks.

    Raises:
        ArgumentError: no drawn point gives finite values.
    """
    sizes = {str(dim): n for dim, n in zip(subject.definition.dims, lengths, strict=False)}
    watched = with_kinks(subject.plain)
    best: Point | None = None
    for attempt in range(TRIES):
        scale = factor if best or attempt < TRIES // 4 else 1.0
        positive = best is None and attempt >= TRIES // 2
        arguments = draw_arguments(subject.definition, sizes, rng, scale, positive)
        values = interpret(watched, arguments, sizes, keep=True)
        outputs = (values[str(result.name)] for result in subject.plain.results)
        if not all(np.isfinite(array).all() for array in outputs):
            continue
        kinks = [values[str(v.name)] for v in watched.results if v not in subject.plain.results]
        near = sum(int((np.abs(array) < KINK_MARGIN).sum()) for array in kinks)
        if best is None or near < best.near_kinks:
            upstream = {
                f"d_{v.name}": drawn_normal(rng, v, sizes) for v in subject.definition.outputs
            }
            best = Point(sizes, arguments, upstream, near)
        if near == 0:
            break
    if best is None:
        raise ArgumentError(
            f"{subject.definition.name}: none of {TRIES} drawn points gives finite values; "
            f"check the domain of its functions (log, sqrt, pow, division)"
        )
    return best


def wide_lengths(definition: Definition) -> tuple[int, ...]:
    """Lengths beyond two vectors, with a remainder in both precisions: 5 rows, 19, 37 and 41.

    Where there are more dimensions, those between are 2, and where a value would have more than
    ``MOST_NUMBERS`` numbers, as weights of heads do, the last one alone is as long.
    """
    count = len(definition.dims)
    wide = (5, 19, *(2,) * (count - 4), 37, 41) if count > 3 else (5, *(19, 37)[3 - count :])
    sizes = {str(dim): n for dim, n in zip(definition.dims, wide, strict=True)}
    largest = max(math.prod(shape_sizes(value, sizes)) for value in definition.declared)
    return wide if count < 4 or largest <= MOST_NUMBERS else (*wide[:-2], 2, wide[-1])


def draw_sequence(
    subject: Subject, lengths: Sequence[int], steps: int, rng: np.random.Generator
) -> tuple[Sizes, Arguments]:
    """Draw a point's arguments, its inputs anew at each of some steps; scalars are left out."""
    definition = subject.definition
    point = draw_point(subject, lengths, rng)
    scalars = {str(value.name) for value in definition.with_role(Role.SCALAR)}
    arrays = {name: a for name, a in point.arguments.items() if name not in scalars}
    for value in definition.with_role(Role.INPUT):
        stacked = [drawn_normal(rng, value, point.sizes) for _ in range(steps)]
        arrays[str(value.name)] = np.array(stacked)
    return {**point.sizes, "T": steps}, arrays


def drawn_upstream(results: Arguments, rng: np.random.Generator) -> Arguments:
    """Draw gradients of results over time, which float32 holds."""
    return {f"d_{n}": _held(np.asarray(rng.standard_normal(a.shape))) for n, a in results.items()}


def drawn_normal(rng: np.random.Generator, value: Value, sizes: Sizes, scale: float = 1.0) -> Array:
    """Draw normal numbers that float32 holds."""
    return _held(np.asarray(scale * rng.standard_normal(shape_sizes(value, sizes))))


def _held(drawn: Array) -> Array:
    """Round numbers to those that float32 holds."""
    return np.asarray(drawn, np.float32).astype(np.float64)


def draw_arguments(
    definition: Definition, sizes: Sizes, rng: np.random.Generator, factor: float, positive: bool
) -> Arguments:
    """Draw arguments of ordinary size: weights scaled by their fan-in, biases small."""
    arguments: Arguments = {}
    for value in definition.declared:
        name = str(value.name)
        if value.role is Role.SCALAR:
            number = np.float32(factor * definition.defaults[name])
            arguments[name] = np.asarray(float(number))
            continue
        scale = 1.0
        if value.role.is_parameter:
            shape = shape_sizes(value, sizes)
            scale = 1 / math.sqrt(shape[0]) if len(shape) > 1 else 0.5
        array = drawn_normal(rng, value, sizes, scale)
        arguments[name] = np.abs(array) if positive else array
    return arguments


def lengths_by_shape(definition: Definition, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Lengths of all dimensions, B first: ones, wide ones, odd mixtures, none, and random ones."""
    count = len(definition.dims)
    mixed = [tuple(1 if i == axis else 17 for i in range(count)) for axis in range(count)]
    drawn = [tuple(int(n) for n in rng.integers(2, 14, count)) for _ in range(3)]
    return [(1,) * count, wide_lengths(definition), *mixed, *drawn, (0, *drawn[0][1:])]
