"""Calls with arrays of 16 bits: bfloat16 and float16, of NumPy (``ml_dtypes``), PyTorch, JAX.

Input: a call whose arrays have such a type. Output: the same call on arrays as its engine has them,
and its results in that type, each rounded once, to the nearest, ties to even. The engine says what
a kernel reads in 16 bits and what in float32 (``cg_held`` in cellgen_signature.h), widens and
rounds. States from step to step, sums and functions are float32; products over time have operands
in bfloat16 where the arrays do, unless the call says otherwise.
Not supported: arrays of more than one type, but for ``packed``, which holds float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cellgen.accept import type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import take_out
from cellgen.runtime.call.frameworks import Adopted, Framework, adopt, has_foreign, is_foreign
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.saved import Saved, kept_arrays, make_saved
from cellgen.runtime.call.stored import (
    BFLOAT16,
    FLOAT16,
    NUMBERS,
    STORED,
    as_stored,
    element_of,
    in_numpy,
    rounded,
    widened,
)
from cellgen.runtime.options import BF16, FULL, ROWS
from cellgen.runtime.results import Array, Results

Pairs: TypeAlias = tuple[tuple[Array, Array], ...]
Rounding: TypeAlias = Callable[[Mapping[str, Array | None]], dict[str, Array | None]]
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
    """A call on arrays of 16 bits as its engine has them.

    ``arguments`` and ``out`` are those of the call, ``targets`` the results to write to by name, as
    the caller has them; those of ``framework`` are ``lent``. Arrays without steps that have gaps
    are ``copied`` before the call, or ``returned`` after it: pairs of one and its copy. Results are
    arrays of ``framework``, or NumPy's.
    """

    arguments: dict[str, Any]
    out: dict[str, Array] | None
    framework: Framework | None
    targets: dict[str, Array]
    lent: tuple[Any, ...]
    copied: Pairs
    returned: Pairs

    def read(self) -> None:
        """Copy arguments with gaps once more, as they are by now."""
        for array, copy in self.copied:
            copy[...] = array

    def write(self) -> None:
        """Copy what a call gave to results with gaps."""
        for array, copy in self.returned:
            array[...] = copy

    def results(self, results: Results) -> Results:
        """Results of the call as its caller has arrays."""
        self.write()
        if self.framework is not None:
            self.framework.tell(self.lent)
        return self.bound(results)

    def bound(self, results: Results) -> Results:
        """Results of a call that is made over and over, in the memory that they have."""
        named = zip(results._fields, results, strict=True)
        values = [
            self.targets[n] if n in self.targets else self._shown(array) for n, array in named
        ]
        plain = tuple.__new__(type(results), values)
        return plain if self.framework is None else self.framework.named(plain)

    def _shown(self, array: object) -> object:
        if isinstance(array, Saved):
            return _saved_in(array, in_numpy)
        is_numpys = self.framework is None and isinstance(array, np.ndarray)
        return in_numpy(array) if is_numpys else array  # type: ignore[arg-type]


def converted(
    label: str, function: Function, call: Mapping[str, object], out: object
) -> NarrowCall | Adopted | None:
    """Put a call on arrays that the engine has in the place of one on others; None: it has these.

    See ``narrowed`` and ``adopt``. Raises ArgumentError.
    """
    if narrow_element(call):
        return narrowed(label, function, call, out)
    return adopt(label, call, out) if has_foreign(call) else None


def narrowed(label: str, function: Function, call: Mapping[str, object], out: object) -> NarrowCall:
    """Look at a call on arrays of 16 bits as the engine does.

    ``call`` are its arguments and options by name. Raises ArgumentError for arrays of another type.
    """
    element, framework, lent, arguments = narrow_element(call), None, (), dict(call)
    first = next(n for n, a in call.items() if element_of(a) == element)
    saved = arguments.pop("saved", None)
    if has_foreign(arguments):
        adopted = adopt(label, arguments, out)
        arguments, out, framework = adopted.arguments, adopted.out, adopted.framework
        lent = adopted.lent
    if function.team:
        arguments.setdefault("products", PRODUCTS[element])
    over_time = {item.name for item in (*function.arguments, *function.results) if item.over_time}
    copied: list[tuple[Array, Array]] = []
    for name, array in arguments.items():
        if name not in ROWS and isinstance(array, np.ndarray):
            require_element(label, name, call[name], element, first)
            arguments[name] = _without_gaps(name, array, over_time, copied)
    targets: dict[str, Array] = {}
    if out is not None:
        results = [item.name for item in function.results if not (item.saved and function.team)]
        targets = take_out(label, tuple(results), out)
    returned: list[tuple[Array, Array]] = []
    written = {}
    for name, array in targets.items():
        require_element(label, name, array, element, first, kind="out ")
        if not array.flags.writeable:
            raise ArgumentError(
                f"{label}: out {name} is read-only, expected an array to write into; allocate it "
                f"anew"
            )
        written[name] = _without_gaps(name, array, over_time, returned)
    if returned:
        refuse_shared(label, {**arguments, **kept_arrays(saved)}, targets)
    if saved is not None:
        arguments["saved"] = _saved_as(label, saved)
    into = None if out is None else written
    return NarrowCall(arguments, into, framework, targets, lent, tuple(copied), tuple(returned))


def _without_gaps(
    name: str, array: Array, over_time: Set[str], copies: list[tuple[Array, Array]]
) -> Array:
    """An array of 16 bits as the engine has it; a copy of one that has gaps where it may not."""
    if name in over_time or array.flags.c_contiguous:
        return as_stored(array)
    copy = np.array(array, order="C")
    copies.append((array, copy))
    return as_stored(copy)


def in_float32(
    label: str,
    arguments: Mapping[str, object],
    results: Mapping[str, Array],
    stay: Set[str] = frozenset(),
) -> tuple[dict[str, Any], dict[str, Array], Rounding]:
    """Widen arrays of 16 bits, for a call that is made of several; names that ``stay`` do.

    Return the arguments, the arrays of its results, and what puts numbers of the whole call into
    16 bits. Raises ArgumentError for results of 16 bits that share memory.
    """
    narrow = [a for a in arguments.values() if isinstance(a, np.ndarray) and a.dtype in NUMBERS]
    element = element_of(narrow[0]) if narrow else ""
    if element:
        refuse_shared(label, arguments, results)
    wide = {
        n: widened(a) if n not in stay and isinstance(a, np.ndarray) else a
        for n, a in arguments.items()
    }
    written = {
        n: np.empty(a.shape, np.float32) if element and n not in stay else a
        for n, a in results.items()
    }

    def round_all(formed: Mapping[str, Array | None]) -> dict[str, Array | None]:
        rounded_results = dict(formed)
        for name, array in formed.items() if element else ():
            if array is None or name in stay:
                continue
            rounded_results[name] = stored = rounded(array, element)
            if name in results:
                results[name][...] = stored
                rounded_results[name] = results[name]
        return rounded_results

    return wide, written, round_all


def require_element(
    label: str, name: str, array: Any, element: str, first: str, *, kind: str = ""
) -> None:
    """Refuse an array of another type than the first one. Raises ArgumentError."""
    if element_of(array) != element:
        raise ArgumentError(
            f"{label}: {kind}{name} is a {type_name(array)} of {element_of(array)}, but {first} is "
            f"{element}; convert {name}"
        )


def _saved_as(label: str, saved: object) -> object:
    """What is saved as the engine has it."""

    def seen(array: Any) -> Any:
        is_narrow = isinstance(array, np.ndarray) and element_of(array) in STORED
        return as_stored(array) if is_narrow else array

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
