"""A primitive for maps that are linear in some operands, with a stated transpose.

Derivatives of a cell are such maps, whose constants can be differentiated by, too. JAX's
``custom_vjp`` has no forward mode, ``custom_jvp`` wants a tangent that it can transpose, and
``custom_derivatives.linear_call`` neither differentiates constants nor batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Protocol, TypeAlias

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from cellgen.jax.batches import Axes, size_of, spread
from cellgen.jax.programs import anywhere, result, state

Arrays: TypeAlias = Sequence[Any]
Which: TypeAlias = tuple[bool, ...]
Shape: TypeAlias = tuple[int, ...]

linear_p = Primitive("cellgen_linear")


class LinearMap(Protocol):
    """A map from arrays to arrays that depends on constants, too; equal ones do the same."""

    def apply(self, constants: Arrays, arrays: Arrays) -> list[Any]:
        """The results, linear in ``arrays``."""

    def shapes(self, constants: Arrays) -> list[Shape]:
        """The shapes of the results."""

    def along(self, moved: Which) -> LinearMap:
        """The map of some arrays alone; the others are zero."""

    def transposed(self, present: Which) -> LinearMap:
        """The transpose: from some of the results (the others are zero) to all arrays."""


def linear(map_: LinearMap, constants: Arrays, arrays: Arrays) -> list[Any]:
    """Apply a linear map."""
    return list(linear_p.bind(*constants, *arrays, map=map_, constants=len(constants)))


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is zero, and no array."""
    return type(tangent) is ad.Zero


def zero(like: Any) -> Any:
    """A tangent that is zero, and no array."""
    return ad.Zero(jax.typeof(like).to_tangent_aval())


@dataclass(frozen=True)
class Many:
    """A linear map for each of a batch: constants have the batch in ``axes``, arrays it first."""

    map: LinearMap
    axes: tuple[int | None, ...]
    size: int

    def apply(self, constants: Arrays, arrays: Arrays) -> list[Any]:
        """Give the results, linear in ``arrays``."""

        def one(own: Arrays, some: Arrays) -> tuple[Any, ...]:
            return tuple(self.map.apply(own, some))

        return list(jax.vmap(one, in_axes=(list(self.axes), 0))(list(constants), list(arrays)))

    def shapes(self, constants: Arrays) -> list[Shape]:
        """Give the shapes of the results."""
        own = [
            constant
            if axis is None
            else jax.ShapeDtypeStruct(_without(constant.shape, axis), constant.dtype)
            for constant, axis in zip(constants, self.axes, strict=True)
        ]
        return [(self.size, *shape) for shape in self.map.shapes(own)]

    def along(self, moved: Which) -> Many:
        """Give the map of some arrays alone."""
        return Many(self.map.along(moved), self.axes, self.size)

    def transposed(self, present: Which) -> Many:
        """Give the transpose, from some of the results."""
        return Many(self.map.transposed(present), self.axes, self.size)


def _without(shape: Sequence[int], axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


# --- rules ------------------------------------------------------------------------------------


def _shapes(*arrays: Any, map: LinearMap, constants: int) -> list[ShapedArray]:
    shapes = map.shapes(arrays[:constants])
    return [result(shape, arrays[-1].dtype, arrays) for shape in shapes]


def _lowered(*arrays: Any, map: LinearMap, constants: int) -> list[Any]:
    return map.apply(arrays[:constants], arrays[constants:])


def _jvp(arrays: Arrays, dots: Arrays, *, map: LinearMap, constants: int) -> Any:
    own, moved = arrays[:constants], tuple(not is_zero(dot) for dot in dots[constants:])
    if all(is_zero(dot) for dot in dots[:constants]):
        results = linear(map, own, arrays[constants:])
        along = linear(map.along(moved), own, list(compress(dots[constants:], moved)))
        return results, along
    places = [place for place, dot in enumerate(dots) if not is_zero(dot)]

    def apply(*values: Any) -> list[Any]:
        whole = list(arrays)
        for place, value in zip(places, values, strict=True):
            whole[place] = value
        return map.apply(whole[:constants], whole[constants:])

    return jax.jvp(apply, [arrays[place] for place in places], [dots[place] for place in places])


def _transposed(cotangents: Arrays, *arrays: Any, map: LinearMap, constants: int) -> list[Any]:
    present = tuple(not is_zero(cotangent) for cotangent in cotangents)
    own = [cotangent for cotangent in cotangents if not is_zero(cotangent)]
    results = linear(map.transposed(present), arrays[:constants], own)
    return [None] * constants + [
        array if ad.is_undefined_primal(place) else None
        for array, place in zip(results, arrays[constants:], strict=True)
    ]


def _batch(arrays: Arrays, axes: Axes, *, map: LinearMap, constants: int) -> Any:
    size = size_of(arrays, axes)
    own = [
        spread(array, axis, size)
        for array, axis in zip(arrays[constants:], axes[constants:], strict=True)
    ]
    many = Many(map, tuple(axes[:constants]), size)
    results = linear(many, arrays[:constants], own)
    return results, [0] * len(results)


state(linear_p, _shapes, anywhere(_lowered))
ad.primitive_jvps[linear_p] = _jvp
ad.primitive_transposes[linear_p] = _transposed
batching.primitive_batchers[linear_p] = _batch
