"""Calls with arrays of 16 bits: bfloat16 and float16, of NumPy (``ml_dtypes``), PyTorch, JAX.

Input: a call whose arrays have such a type. Output: a call of the same function in float32, and
its results in that type, each rounded once, to the nearest, ties to even. Arrays over time stay in
16 bits: the driver widens and rounds them a window of steps at a time. So do weights in bfloat16 of
which products in bfloat16 alone read. All others, whose size does not depend on the number of
steps, are float32 while the call runs. States from step to step, sums
and functions are float32; products over time have operands in bfloat16 where the arrays do, unless
the call says otherwise.
Not supported: arrays of more than one type, but for ``packed``, which holds float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cellgen.accept import type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import has_steps, take_out
from cellgen.runtime.call.frameworks import Adopted, Framework, adopt, has_foreign, is_foreign
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.saved import Saved, kept_arrays, make_saved
from cellgen.runtime.call.stored import (
    BFLOAT16,
    FLOAT16,
    STORED,
    as_stored,
    element_of,
    in_numpy,
    rounded,
    widened,
)
from cellgen.runtime.options import BF16, FULL, ROWS
from cellgen.runtime.results import Array, Results

PRODUCTS = {BFLOAT16: BF16, FLOAT16: FULL}
"""What products over time are where a call does not say, by the type of its arrays."""


def narrow_element(arguments: Mapping[str, object]) -> str:
    """The type of a call's arrays where it has 16 bits, as its first array of numbers tells."""
    for value in arguments.values():
        if type(value) is np.ndarray:
            dtype = value.dtype
            element = element_of(value) if dtype.itemsize == 2 and dtype.names is None else ""
            if element in PRODUCTS:
                return element
            if dtype.kind == "f":
                return ""
        elif is_foreign(value):
            return element if (element := element_of(value)) in PRODUCTS else ""
    return ""


@dataclass(frozen=True)
class NarrowCall:
    """A call in float32 in place of one whose arrays have 16 bits.

    ``arguments`` and ``out`` are those of the call in float32. ``wide`` are pairs of an argument as
    it was given and its numbers in float32; ``given`` are the results to write to, by name; those
    of ``framework`` are ``lent``. Results are arrays of ``framework``, or NumPy's.
    """

    element: str
    arguments: dict[str, Any]
    out: dict[str, Array] | None
    framework: Framework | None
    wide: tuple[tuple[Array, Array], ...]
    given: dict[str, Array] = field(default_factory=dict)
    lent: tuple[Any, ...] = ()

    def read(self) -> None:
        """Widen the arguments once more, as they are by now."""
        for array, numbers in self.wide:
            numbers[...] = widened(array)

    def write(self, results: Results) -> None:
        """Round what a call in float32 gave into the results that are given."""
        for name, array in zip(results._fields, results, strict=True):
            if name in self.given and element_of(array) == "float32":
                self.given[name].view(STORED[self.element])[...] = rounded(array, self.element)

    def results(self, wide: Results) -> Results:
        """Round what a call in float32 gave; None stays None."""
        self.write(wide)
        if self.framework is not None:
            self.framework.tell(self.lent)
        return self._named(wide)

    def bound(self, results: Results) -> Results:
        """Make the results of a call that is made over and over, which ``write`` writes to."""
        for name, array in zip(results._fields, results, strict=True):
            if name not in self.given and element_of(array) == "float32":
                self.given[name] = self._result(array)
        return self._named(results)

    def _named(self, results: Results) -> Results:
        named = zip(results._fields, results, strict=True)
        values = [self.given[n] if n in self.given else self._result(array) for n, array in named]
        narrow = tuple.__new__(type(results), values)
        return narrow if self.framework is None else self.framework.named(narrow)

    def _result(self, array: object) -> Any:
        if isinstance(array, Saved):
            return _saved_in(array, in_numpy)
        if not isinstance(array, np.ndarray):
            return array
        stored = rounded(array, self.element) if array.dtype == np.float32 else array
        return stored if self.framework is not None else in_numpy(stored)


def converted(
    label: str,
    function: Function,
    call: Mapping[str, object],
    out: object,
    *,
    in_place: bool = True,
) -> NarrowCall | Adopted | None:
    """Put a call on NumPy's arrays of floats in the place of one on others; None: it is on such.

    See ``narrowed`` and ``adopt``. Raises ArgumentError.
    """
    if narrow_element(call):
        return narrowed(label, function, call, out, in_place=in_place)
    return adopt(label, call, out) if has_foreign(call) else None


def narrowed(
    label: str, function: Function, call: Mapping[str, object], out: object, *, in_place: bool
) -> NarrowCall:
    """Put a call in float32 in the place of one whose arrays have 16 bits.

    ``call`` are its arguments and options by name. With ``in_place`` arrays over time stay in 16
    bits. Raises ArgumentError for arrays of another type.
    """
    element, framework, lent, arguments = narrow_element(call), None, (), dict(call)
    first = next(n for n, a in call.items() if element_of(a) == element)
    saved = arguments.pop("saved", None)
    if has_foreign(arguments):
        adopted = adopt(label, arguments, out)
        arguments, out, framework = adopted.arguments, adopted.out, adopted.framework
        lent = adopted.lent
    items = {item.name: item for item in function.arguments}
    if function.team:
        arguments.setdefault("products", PRODUCTS[element])
    stays = {n for n, item in items.items() if in_place and has_steps(item)}
    if in_place and element == BFLOAT16 and _are_bf16(arguments.get("products"), saved):
        stays |= {n for n, item in items.items() if item.operand and _is_dense(arguments.get(n))}
    wide: list[tuple[Array, Array]] = []
    written, outputs = _written(label, function, out, element, first, in_place=in_place)
    refuse_shared(label, {**arguments, **kept_arrays(saved)}, outputs)
    for name, array in arguments.items():
        if name in ROWS or not isinstance(array, np.ndarray):
            continue
        require_element(label, name, call[name], element, first)
        numbers = as_stored(array) if name in stays else widened(array)
        arguments[name] = numbers
        if name not in stays:
            wide.append((array, numbers))
    if saved is not None:
        arguments["saved"] = _saved_as(label, saved, in_place=in_place)
    return NarrowCall(element, arguments, written, framework, tuple(wide), outputs, lent)


def _are_bf16(products: object, saved: object) -> bool:
    """Whether all products of a call have operands in bfloat16, also those that it makes again."""
    run = saved.run if isinstance(saved, Saved) else None
    again = run.options.products if run is not None and run.checkpoint else BF16
    return products == BF16 == again


def _is_dense(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.flags.c_contiguous


def _written(
    label: str, function: Function, out: object, element: str, first: str, *, in_place: bool
) -> tuple[dict[str, Array] | None, dict[str, Array]]:
    """What a call in float32 writes to in the place of ``out``, and the arrays of ``out``."""
    if out is None:
        return None, {}
    items: dict[str, Argument] = {item.name: item for item in function.results}
    arrays = take_out(
        label, tuple(n for n, a in items.items() if not a.saved or not function.team), out
    )
    for name, array in arrays.items():
        require_element(label, name, array, element, first, kind="out ")
        if not array.flags.writeable:
            raise ArgumentError(
                f"{label}: out {name} is read-only, expected an array to write into; allocate it "
                f"anew"
            )
    written = {
        name: as_stored(array)
        if in_place and has_steps(items[name])
        else np.empty(array.shape, np.float32)
        for name, array in arrays.items()
    }
    return written, arrays


def require_element(
    label: str, name: str, array: Any, element: str, first: str, *, kind: str = ""
) -> None:
    """Refuse an array of another type than the first one. Raises ArgumentError."""
    if element_of(array) != element:
        raise ArgumentError(
            f"{label}: {kind}{name} is a {type_name(array)} of {element_of(array)}, but {first} is "
            f"{element}; convert {name}"
        )


def _saved_as(label: str, saved: object, *, in_place: bool) -> object:
    """What is saved as a call in float32 takes it: in 16 bits, or widened."""

    def seen(array: Any) -> Any:
        if element_of(array) not in STORED or not isinstance(array, np.ndarray):
            return array
        return as_stored(array) if in_place else widened(array)

    if isinstance(saved, Saved):
        return _saved_in(saved, seen)
    if isinstance(saved, Mapping):
        arrays: dict[str, Any] = dict(saved)
        if has_foreign(arrays):
            arrays = adopt(label, arrays).arguments
        return {name: seen(array) for name, array in arrays.items()}
    return saved


def _saved_in(saved: Saved, seen: Any) -> Saved:
    whole = {name: seen(array) for name, array in saved._whole.items()}
    return make_saved(saved._fields, tuple(map(seen, saved)), saved.run, whole)
