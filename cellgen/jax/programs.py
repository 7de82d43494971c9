"""What JAX wants to know of a primitive to run it, and how its rows lie on several devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import jax
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from cellgen.jax.platforms import PLATFORMS

Axes: TypeAlias = Sequence[int | None]
Ranked: TypeAlias = Sequence[tuple[int, int | None]]
"""Ranks of arrays, and their axes of rows."""


def state(primitive: Primitive, shapes: Callable[..., Any], lowered: Callable[..., Any]) -> None:
    """Tell JAX what a primitive gives, and which program it is on each platform of ``PLATFORMS``.

    ``lowered`` takes its row of that table before the operands.
    """
    primitive.multiple_results = True

    def run(*arrays: Any, **parameters: Any) -> Any:
        compiled = _compiled(primitive, tuple(parameters.items()))
        if jax.config.jax_disable_jit:  # a primitive is a program all the same
            with jax.disable_jit(False):
                return compiled(*arrays)
        return compiled(*arrays)

    primitive.def_impl(run)
    primitive.def_abstract_eval(shapes)
    for name in PLATFORMS:

        def on_platform(*arrays: Any, name: str = name, **parameters: Any) -> Any:
            return lowered(PLATFORMS[name], *arrays, **parameters)

        rule = mlir.lower_fun(on_platform, multiple_results=True)
        mlir.register_lowering(primitive, rule, platform=name)
    _needs_devices(primitive)


def anywhere(lowered: Callable[..., Any]) -> Callable[..., Any]:
    """A program for ``state`` that is the same on every platform."""
    return lambda _, *arrays, **parameters: lowered(*arrays, **parameters)


@functools.lru_cache(maxsize=4096)
def _compiled(primitive: Primitive, parameters: tuple[tuple[str, Hashable], ...]) -> Any:
    """What runs a primitive outside of any transform: its program, traced once."""
    return jax.jit(lambda *arrays: primitive.bind(*arrays, **dict(parameters)))


def _needs_devices(primitive: Primitive) -> None:
    """Let a lowering know its devices: one that says how rows are shared has to.

    JAX has no public way to; where this one is gone, rows of several devices are gathered.
    """
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as needing
    except ImportError:
        return
    needing.add(primitive)


# --- arrays that differ from device to device within shard_map --------------------------------


def varying(array: Any) -> frozenset[Any]:
    """The axes of a mesh along which ``shard_map`` knows an array, or its type, to vary."""
    of = array if isinstance(array, ShapedArray) else jax.typeof(array)
    kinds = getattr(of, "mat", None)
    axes: frozenset[Any] = getattr(of, "vma", frozenset()) if kinds is None else kinds.varying
    return axes


def alike(arrays: Sequence[Any]) -> list[Any]:
    """Let arrays vary along all axes that one of them varies along, as an operation's must.

    The transpose adds up over these axes: gradients of weights that devices share.
    """
    axes = [varying(array) for array in arrays]
    every = frozenset[Any]().union(*axes)
    return [
        array if own == every else jax.lax.pcast(array, tuple(every - own), to="varying")
        for array, own in zip(arrays, axes, strict=True)
    ]


def result(shape: Sequence[Any], dtype: Any, arrays: Sequence[Any]) -> ShapedArray:
    """The type of a result: it varies as the operands do."""
    like = max(arrays, key=lambda array: len(varying(array)))
    if not varying(like):
        return ShapedArray(shape, dtype)
    of = like if isinstance(like, ShapedArray) else jax.typeof(like)
    sharding = of.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    shaped: ShapedArray = of.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)
    return shaped


# --- rows on several devices ------------------------------------------------------------------


def by_rows(
    function: Callable[..., Any], argument_rows: Axes, ranked: Ranked, arrays: Sequence[Any]
) -> Any:
    """Call a function whose arrays may have their rows on several devices, and nothing else.

    ``argument_rows`` are the axes of the arrays' rows, ``ranked`` ranks of results and the axes of
    their rows; None where there are no rows. Results without rows are sums over rows, which are
    added up across the devices. Within ``shard_map`` each device has rows of its own; those along
    axes that it leaves alone are gathered.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        return list(function(*arrays))
    taken = [(array.ndim, row) for array, row in zip(arrays, argument_rows, strict=True)]
    shared = custom_partitioning(lambda *some: tuple(function(*some)))

    def rows_of(shapes: Sequence[Any]) -> Any:
        """The axes of the mesh that some array's rows lie along."""
        for shape, row in zip(shapes, argument_rows, strict=True):
            spec = () if shape.sharding is None else shape.sharding.spec
            if row is not None and len(spec) > row and spec[row] is not None:
                return spec[row]
        return None

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        rows = rows_of(arguments)

        def on_one(*some: Any) -> tuple[Any, ...]:
            return tuple(
                jax.lax.psum(array, rows) if rows is not None and row is None else array
                for array, (_, row) in zip(function(*some), ranked, strict=True)
            )

        own = tuple(NamedSharding(mesh, _spec(*item, rows)) for item in taken)
        shardings = tuple(NamedSharding(mesh, _spec(*item, rows)) for item in ranked)
        return mesh, on_one, shardings, own

    def infer(mesh: Any, arguments: Any, result: Any) -> Any:
        rows = rows_of(arguments)
        return tuple(NamedSharding(mesh, _spec(*item, rows)) for item in ranked)

    rule = _rule(taken, ranked)
    shared.def_partition(
        partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule
    )
    return list(shared(*arrays))


def _spec(rank: int, row: int | None, rows: Any) -> PartitionSpec:
    return PartitionSpec(*(rows if axis == row else None for axis in range(rank)))


def _rule(arguments: Ranked, results: Ranked) -> str:
    """Give the rule of Shardy: rows are one factor, every other axis is a factor of its own.

    None may occur twice in an array, as H would in (H, H).
    """
    numbers = iter(range(1 << 30))

    def one(rank: int, row: int | None) -> str:
        return " ".join("b" if axis == row else f"x{next(numbers)}" for axis in range(rank))

    arrays = ", ".join(one(*item) for item in arguments)
    return f"{arrays} -> {', '.join(one(*item) for item in results)}"
