"""Lay weights out for a function over time, and find the layout that a call reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.accept import type_name
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import Function
from cellgen.runtime.build.library import DIMS
from cellgen.runtime.call.arguments import (
    DTYPES,
    Checked,
    as_scalar,
    check_call,
    refuse_overflow,
    scalar_places,
    unnamed_error,
)
from cellgen.runtime.call.dimensions import dims_of
from cellgen.runtime.call.narrow import PRODUCTS, require_element
from cellgen.runtime.call.owner import Owner
from cellgen.runtime.call.packed import Packed, PackedLayout, PackedWeights
from cellgen.runtime.call.settings import checked_options, require_float32
from cellgen.runtime.call.stored import BFLOAT16, as_stored, element_of, kinds_of, widened
from cellgen.runtime.call.workspace import new_memory
from cellgen.runtime.host.memory import hold
from cellgen.runtime.names import c_member
from cellgen.runtime.numbers import c_numbers
from cellgen.runtime.options import BF16, FULL, INT8, Options


class Packing:
    """The packed weights of one function over time."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        mine = tuple(a for a in function.arguments if a.is_weight)
        named = {name for a in mine for name in dims_of(a)}
        self.dims = tuple(name for name in function.dims if name in named)
        self._kernel, self._function = kernel, function
        self._label = f"{kernel.name}.{function.name}"
        self._weights = replace(function, arguments=mine, results=(), dims=self.dims)
        self._scalars = scalar_places(function)
        self._build = ""

    def pack(self, weights: dict[str, object]) -> Packed:
        """Lay out weights once for many calls: every weight and bias of the cell, by name.

        Run-time scalars may be given too; a call takes those that were given here. With
        ``products="bf16"`` or ``"int8"`` the layout is for calls with that option.

        Raises ArgumentError, BuildError, MemoryError.
        """
        kernel, label = self._kernel, f"{self._kernel.name}.pack"
        if not self._weights.arguments:
            raise ArgumentError(f"{label}: this cell has no weights; call it without packed")
        usual = PRODUCTS.get(_element(weights), FULL)
        products = checked_options(label, {"products": weights.pop("products", usual)}).products
        weights = self._read(weights, products)
        scalars = {
            name: as_scalar(label, name, weights.pop(name, default), default)
            for _, name, default in self._scalars
        }
        checked = self._check(label, weights)
        arguments: dict[str, Any] = {name: weights[name] for name in checked.inputs} | scalars
        dims = tuple((name, checked.dims[name]) for name in self.dims)
        of = PackedWeights(
            kernel.name,
            kernel.digest(),
            str(checked.dtype),
            dims,
            tuple(arguments.items()),
            products,
        )
        require_float32(label, products, checked.dtype)
        if products == INT8:
            self._require_finite(label, checked)
        packed = Packed(of)
        self._lay_out(packed)
        return packed

    def unnamed_error(self, unnamed: Sequence[object]) -> ArgumentError:
        """Say that weights are passed by name, and which names there are."""
        return unnamed_error(f"{self._kernel.name}.pack", self._weights, unnamed)

    def _read(self, weights: dict[str, object], products: str) -> dict[str, object]:
        """Weights as C reads them: in bfloat16 what products in it alone read, else in float32.

        Raises ArgumentError for weights of more than one type.
        """
        element, label = _element(weights), f"{self._kernel.name}.pack"
        if element not in PRODUCTS:
            return weights
        operands = {item.name for item in self._weights.arguments if item.operand}
        by_name = dict(weights)
        for name, array in weights.items():
            if not isinstance(array, np.ndarray):
                continue
            require_element(label, name, array, element, next(iter(weights)))
            stays = name in operands and element == BFLOAT16 and products == BF16
            by_name[name] = as_stored(np.ascontiguousarray(array)) if stays else widened(array)
        return by_name

    def _require_finite(self, label: str, checked: Checked) -> None:
        """Refuse what int8 cannot hold, of what products alone read. Raises ArgumentError."""
        for item in self._weights.arguments:
            array = checked.inputs[item.name]
            if item.operand and not np.isfinite(array).all():
                place = [int(index) for index in np.argwhere(~np.isfinite(array))[0]]
                raise ArgumentError(
                    f"{label}: {item.name}{place} is {array[tuple(place)]}, expected finite "
                    f"numbers for products={INT8!r}; int8 has nothing else"
                )

    def say_products(self, arguments: dict[str, Any], packed: object) -> None:
        """Add the products that weights were packed for to a call that does not say any."""
        if isinstance(packed, Packed) and packed.weights.products != FULL:
            arguments.setdefault("products", packed.weights.products)

    def fits(self, dtype: np.dtype[Any], sizes: Mapping[str, int]) -> tuple[str | int, ...]:
        """What a layout must have been made for, of a call of a type and of dimensions by name."""
        return DTYPES[dtype][0], *(sizes[name] for name in self.dims)

    def layout_of(
        self, packed: Packed | None, fits: tuple[str | int, ...], products: str
    ) -> PackedLayout | None:
        """Return the layout that a call reads, if it has packed weights. Raises ArgumentError."""
        return None if packed is None else self.layout(packed, fits, products)

    def layout(self, packed: Packed, fits: tuple[str | int, ...], products: str) -> PackedLayout:
        """Return the layout that a call reads. Raises ArgumentError where it does not fit."""
        if packed.weights.products != products:
            raise ArgumentError(
                f"{self._label}: products is {products!r}, but packed was made for "
                f"{packed.weights.products!r}; pass products={packed.weights.products!r}, or pack "
                f"with products={products!r}"
            )
        layout = packed.layouts.get((self._function.name, self._build_name()))
        if layout is None:
            layout = self._lay_out(packed)
        if layout.weights is not packed.weights or layout.fits != fits:
            raise self._changed(packed)
        return layout

    def take(self, arguments: dict[str, object], packed: object) -> None:
        """Add the arrays that were packed. Raises ArgumentError for those of another cell."""
        if not isinstance(packed, Packed) or packed.weights.digest != self._kernel.digest():
            stated = repr(packed) if isinstance(packed, Packed) else type_name(packed)
            if isinstance(packed, Packed) and packed.cell == self._kernel.name:
                stated += ", of another version of this cell"
            raise ArgumentError(
                f"{self._label}: packed is {stated}, expected what {self._kernel.name}.pack returns"
            )
        for name, array in packed.weights.arguments:
            value, is_array = arguments.get(name, array), isinstance(array, np.ndarray)
            if value is not array and (is_array or accept.number(value) != array):
                other = (
                    "another array than the one"
                    if is_array
                    else f"{accept.quoted(value)}, not the {array}"
                )
                raise ArgumentError(
                    f"{self._label}: {name} is {other} that was packed, expected that one or none; "
                    f"pack again, or leave {name} out"
                )
            arguments[name] = array

    def _check(self, label: str, weights: Mapping[str, object]) -> Checked:
        return check_call(label, self._weights, weights, {})

    def _lay_out(self, packed: Packed) -> PackedLayout:
        """Lay out packed weights for this function. Raises ArgumentError, MemoryError."""
        label, of = f"{self._kernel.name}.pack", packed.weights
        arguments = dict(of.arguments)
        scalars = {name: arguments.pop(name) for _, name, _ in self._scalars if name in arguments}
        checked = self._check(label, arguments)
        dims = tuple((name, checked.dims[name]) for name in self.dims)
        if (of.dtype, of.dims) != (str(checked.dtype), dims):
            raise self._changed(packed)
        refuse_overflow(label, self._weights, checked.dims, checked.dtype.itemsize)
        library = self._kernel.library()
        ffi = library.ffi
        suffix, c_type = DTYPES[checked.dtype]
        entry = library.entry(self._function.name, suffix)
        lengths = [checked.dims.get(name, 0) for name in self._function.dims]
        sizes = ffi.make(DIMS, lengths)
        pointers: dict[str, object] = {
            c_member(item.name): ffi.cast(f"{c_type} *", checked.inputs[item.name].ctypes.data)
            for item in self._weights.arguments
            if item.used
        }
        pointers |= {
            c_member(name): scalars[name] for place, name, _ in self._scalars if place >= 0
        }
        chosen = Options(products=of.products)
        stored = kinds_of(arguments, [item.name for item in self._function.struct_members])
        # any() of NumPy's ends in a SystemError where there is no memory
        is_narrow = any(stored.tolist())
        kinds = {"stored": ffi.cast("unsigned char *", stored.ctypes.data)} if is_narrow else {}
        settings = ffi.new("cellgen_options *", {**c_numbers(chosen), **kinds})
        memory = new_memory(label, entry.packed_size(sizes, settings), tuple(lengths))
        pointers["options"] = settings
        struct = ffi.make(entry.struct, pointers)
        code = entry.pack(sizes, struct, memory.pointer, memory.bytes)
        del settings, stored  # read until here
        if code:
            raise CellgenError(f"{label}: the compiled function returned {code}", code="kernel")
        layout = PackedLayout(
            of, self.fits(checked.dtype, checked.dims), memory, hold(arguments.values())
        )
        packed.layouts[self._function.name, self._build_name()] = layout
        return layout

    def _build_name(self) -> str:
        """Name the build that this process runs: layouts of another one may differ."""
        if not self._build:
            self._build = self._kernel.build().path.name
        return self._build

    def _changed(self, packed: Packed) -> ArgumentError:
        sizes = ", ".join(f"{name} = {size}" for name, size in packed.weights.dims)
        return ArgumentError(
            f"{self._label}: packed was changed since {self._kernel.name}.pack made it for "
            f"{packed.weights.dtype} and {sizes}, expected it as it was; pack again"
        )


def _element(weights: Mapping[str, object]) -> str:
    """The type of the first array, by its name."""
    return next((element_of(a) for a in weights.values() if isinstance(a, np.ndarray)), "")
