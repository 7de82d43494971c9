"""Calls of a cell's two functions as operands and attributes of XLA's typed FFI.

Input: arrays in the order of a ``JaxCall``. Output: arrays. ``JaxCall`` is all of a call but its
arrays; two that are equal make the same program.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cellgen.frameworks.layout import TensorLayout, row_axis
from cellgen.frameworks.segments import in_segments
from cellgen.frameworks.selection import (
    ON_TENSORS,
    formed,
    hidden,
    is_whole,
    showing,
    when_plain,
    when_saving,
    with_products,
)
from cellgen.jax import handler
from cellgen.jax.platforms import Platform
from cellgen.jax.registry import KnownInJax, find
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.segments import Segmentation
from cellgen.runtime.call.signature import kept_element
from cellgen.runtime.numbers import NUMBERED, USUAL, as_numbers
from cellgen.runtime.options import TABLES, Options, with_tables

Arrays: TypeAlias = Sequence[Array]
Shape: TypeAlias = tuple[int, ...]
Which: TypeAlias = tuple[bool, ...]

NUMBERS = {name: -1 - place for place, name in enumerate(TABLES)}
FIRST_CHECKPOINT, UNREAD = -10, -4
"""What stands for them among numbers of members, for checkpoints from the first down, and for what
the function does not read; as in ``handler.c``."""


@dataclass(frozen=True)
class JaxCall:
    """All of a call but its arrays: a cell, which tables come first, and its options.

    Operands are its tables, its ``values``, then for the backward pass what was ``kept``.
    ``options`` are as in ``cellgen.frameworks.selection``, without tables. With a ``cut`` the
    forward pass runs segments of time side by side.
    """

    text: str
    tables: tuple[str, ...] = ()
    options: Options = ON_TENSORS
    threads: int = 0
    cut: Segmentation | None = None

    @property
    def known(self) -> KnownInJax:
        """The cell."""
        return find(self.text)

    @property
    def layout(self) -> TensorLayout:
        """Names and shapes of the cell, with the options of the call."""
        layout = self.known.layout
        if is_whole(self.options):
            return layout
        return showing(layout, self.options, skips=bool(self.tables))

    @property
    def hidden(self) -> int:
        """The outputs that are not formed, as bits."""
        return hidden(self.known.layout, self.options)

    @property
    def saving(self) -> JaxCall:
        """The same call where it saves."""
        return replace(self, options=when_saving(self.options))

    @property
    def values(self) -> tuple[Argument, ...]:
        """Theta, then other scalars."""
        return (*self.layout.theta, *self.layout.scalars)

    @property
    def formed(self) -> tuple[Argument, ...]:
        """What the forward pass gives when it saves."""
        return (*self.layout.outputs, *self.layout.saved)

    @property
    def kept(self) -> tuple[Argument, ...]:
        """What the backward pass reads of what the forward pass gives."""
        if self.options.checkpoint:
            return self.layout.saved
        return _kept(self.layout.cell, self.layout.backward, self.layout.forward)

    def split(self, arrays: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Take operands apart: tables, values, and what follows."""
        first, second = len(self.tables), len(self.tables) + len(self.values)
        return arrays[:first], arrays[first:second], arrays[second:]

    def sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """Tell the dimensions from operands, or from what stands for them."""
        return self.layout.sizes(arrays[len(self.tables) :])

    def shapes(self, items: Sequence[Argument], arrays: Sequence[Any]) -> list[Shape]:
        """The shapes of some arrays of the call, given its operands."""
        sizes = self.sizes(arrays)
        return [self.layout.shape(item.name, sizes) for item in items]

    def dtypes(self, items: Sequence[Argument], like: Any) -> list[Any]:
        """The types of some results, given an operand that has steps."""
        named, kept = {i.name for i in self.layout.saved}, self.options.checkpoint != 0
        return [
            jnp.dtype(kept_element(item, like.dtype.name, checkpoint=kept))
            if item.name in named
            else like.dtype
            for item in items
        ]

    def row_axes(self, items: Sequence[Argument]) -> list[int | None]:
        """The axes of rows of some arrays, behind those of the tables."""
        first: list[int | None] = [TABLES[name].index("B") for name in self.tables]
        return [*first, *(row_axis(item) for item in items)]

    def attributes(self, element: str) -> dict[str, Any]:
        """The options of arrays of a type that are not as usual, as attributes."""
        options = with_products(self.options, element)
        numbers = as_numbers(options, formed(self.known.layout, options))
        named = zip((option.name for option in NUMBERED), numbers, strict=True)
        return {name: np.int64(number) for name, number in named if number != USUAL[name]}


@functools.lru_cache(maxsize=1024)
def _kept(cell: str, backward: Function, forward: Function) -> tuple[Argument, ...]:
    formed = {item.name for item in forward.results}
    return tuple(item for item in backward.struct_members if item.name in formed)


def run(
    call: JaxCall,
    function: Function,
    operands: Sequence[tuple[str, Array]],
    results: Sequence[Argument],
    shapes: Sequence[Shape],
    platform: Platform,
) -> list[Array]:
    """Put a call of one function into the program that JAX traces for a platform.

    ``operands`` are arrays by name, tables among them; those that the function does not read are
    left out. ``results`` are what it forms.
    """
    handler.add(call.known)
    members = (*function.struct_members, *function.results)
    numbers = {item.name: place for place, item in enumerate(members)} | NUMBERS
    if call.options.checkpoint:
        numbers |= {item.name: FIRST_CHECKPOINT - k for k, item in enumerate(call.layout.saved)}
    again = _again(call, function)
    like = next(array for name, array in operands if name not in TABLES)
    stated = platform.attributes(call.layout.label, call.options, like)
    read = [
        (numbers.get(name, UNREAD), platform.operand(name, array, like), again.get(name, UNREAD))
        for name, array in operands
        if name in numbers or name in again
    ]
    dtypes = call.dtypes(results, like)
    types = [platform.result_type(dtype, like) for dtype in dtypes]
    arrays = jax.ffi.ffi_call(
        platform.target,
        [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)],
    )(
        *(array for _, array, _ in read),
        cell=call.text,
        digest=call.known.kernel.interface.digest,
        function=function.name,
        operands=np.array([number for number, _, _ in read], np.int32),
        results=np.array([numbers[item.name] for item in results], np.int32),
        threads=np.int64(call.threads),
        **call.attributes(like.dtype.name),
        **stated,
        **({"again": np.array([place for _, _, place in read], np.int32)} if again else {}),
    )
    return [array.astype(dtype) for array, dtype in zip(arrays, dtypes, strict=True)]


def _again(call: JaxCall, function: Function) -> dict[str, int]:
    """The members of the forward pass that a backward pass with checkpoints runs once more."""
    forward = call.layout.forward
    if not call.options.checkpoint or function is forward:
        return {}
    return {item.name: place for place, item in enumerate(forward.struct_members)}


def run_forward(call: JaxCall, save: bool, arrays: Arrays, platform: Platform) -> list[Array]:
    """Compute all steps: outputs, final states, then what is saved if it is."""
    if not save:
        call = replace(call, options=when_plain(call.options))
    items = call.formed if save else call.layout.outputs
    if call.cut is not None:
        return _by_host(call, save, items, arrays)
    names = (*call.tables, *(item.name for item in call.values))
    operands = list(zip(names, arrays, strict=True))
    return run(call, call.layout.forward, operands, items, call.shapes(items, arrays), platform)


def _by_host(call: JaxCall, save: bool, items: Sequence[Argument], arrays: Arrays) -> list[Array]:
    """Put a forward pass in segments into the program: values say how often segments run."""
    shapes, dtypes = call.shapes(items, arrays), call.dtypes(items, arrays[len(call.tables)])
    results = [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]
    return list(jax.pure_callback(functools.partial(_on_host, call, save), results, *arrays))


def _on_host(call: JaxCall, save: bool, *arrays: Any) -> list[Any]:
    """Run segments of time side by side on arrays of NumPy."""
    assert call.cut is not None
    tables, values, _ = call.split([np.asarray(array) for array in arrays])
    named = {
        item.name: float(value) if item.is_scalar else value
        for item, value in zip(call.values, values, strict=True)
    }
    options = with_tables(call.options, **dict(zip(call.tables, tables, strict=True)))
    return in_segments(
        call.known.kernel,
        call.layout,
        named,
        options,
        call.cut,
        save=save,
        threads=call.threads or None,
    )


def gradient_shapes(
    call: JaxCall, wanted: Which, per_row: bool, arrays: Sequence[Any]
) -> list[Shape]:
    """The shapes of the gradients that are wanted; those of weights row by row, (B, ...)."""
    items = tuple(compress(call.layout.gradients, wanted))
    sizes = call.sizes(arrays)
    return [call.layout.gradient_shape(item, sizes, per_row) for item in items]


def run_backward(
    call: JaxCall, present: Which, wanted: Which, per_row: bool, arrays: Arrays, platform: Platform
) -> list[Array]:
    """Compute the gradients that are ``wanted`` of what learns.

    Operands: tables, values, what was kept, and the upstream gradients that are ``present``.
    """
    items = (*call.values, *call.kept, *compress(call.layout.upstream, present))
    names = (*call.tables, *(item.name for item in items))
    operands = list(zip(names, arrays, strict=True))
    gradients = tuple(compress(call.layout.gradients, wanted))
    shapes = gradient_shapes(call, wanted, per_row, arrays)
    call = replace(call, options=replace(call.options, per_row=per_row))
    return run(call, call.layout.backward, operands, gradients, shapes, platform)
