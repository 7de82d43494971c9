"""Check each array of a call by itself: elements, device, memory.

Input: ``ArrayView`` of an array and what the interface says of it. Output: nothing, or an
ArgumentError that names the array, what was found, what was expected and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.views import ArrayView, advice

_NATIVE = {"f4": "float32", "f8": "float64"}


@dataclass(frozen=True)
class Item:
    """One array of a call, with what the interface says of it; ``label`` names it in messages."""

    argument: Argument
    view: ArrayView
    label: str

    @property
    def is_result(self) -> bool:
        """Whether a call writes it."""
        return self.label != self.argument.name


def check_elements(
    label: str, inputs: Sequence[Item], outputs: Sequence[Item], elements: tuple[str, ...]
) -> str:
    """Find the one type of elements of a call; most inputs decide which array is the odd one."""
    for item in (*inputs, *outputs):
        _check_element(label, item, elements)
    counts = Counter(item.view.dtype for item in inputs)
    element, count = counts.most_common(1)[0]
    for item in (*inputs, *outputs):
        if item.view.dtype != element:
            others = f"{count} other arrays are" if count > 1 else f"{inputs[0].label} is"
            raise ArgumentError(
                f"{label}: {item.label} is {item.view.dtype}, but {others} {element}; "
                f"{_conversion(item, element)}"
            )
    return element


def _check_element(label: str, item: Item, elements: tuple[str, ...]) -> None:
    dtype = item.view.dtype
    if dtype in elements:
        return
    native = _NATIVE.get(dtype[1:], "") if dtype[:1] in "<>" else ""
    if native in elements:
        raise ArgumentError(
            f"{label}: {item.label} is {native} in foreign byte order ({dtype}), expected "
            f"native order; {_conversion(item, native)}"
        )
    raise ArgumentError(
        f"{label}: {item.label} has dtype {dtype}, expected {' or '.join(elements)}; "
        f"{_conversion(item, elements[0])}"
    )


def _conversion(item: Item, element: str) -> str:
    what = "allocate" if item.is_result else "convert"
    return advice(item.view, what, item.argument.name, element)


def check_device(label: str, item: Item, first: Item) -> None:
    """Raise ArgumentError where an array is not where the first one is."""
    if item.view.device != first.view.device:
        raise ArgumentError(
            f"{label}: {item.label} is on device {item.view.device} and {first.label} on device "
            f"{first.view.device}; move all arrays to one device"
        )


def check_memory(label: str, item: Item) -> None:
    """Raise ArgumentError for an array with gaps, out of place, or that cannot be written."""
    view = item.view
    if item.argument.over_time:
        _check_strides(label, item)
    elif not view.contiguous:
        raise ArgumentError(
            f"{label}: {item.label} is not C-contiguous (shape {view.shape}, strides "
            f"{view.strides}), expected rows one after the other; {_compaction(item)}"
        )
    if view.pointer % view.itemsize:
        raise ArgumentError(
            f"{label}: {item.label} is misaligned (address {view.pointer:#x}), expected a "
            f"multiple of {view.itemsize} bytes; {_compaction(item)}"
        )
    if item.is_result and not view.writable:
        raise ArgumentError(
            f"{label}: {item.label} is read-only, expected an array to write into; "
            f"{_compaction(item)}"
        )


def _check_strides(label: str, item: Item) -> None:
    """Steps and rows may be any distance apart; units lie side by side, results apart."""
    shape, strides, size = item.view.shape, item.view.strides, item.view.itemsize
    if strides is None:
        return
    lies = f"(shape {shape}, strides {strides})"
    dense = size
    for length, stride in zip(shape[:1:-1], strides[:1:-1], strict=True):
        if length > 1 and stride != dense:
            raise ArgumentError(
                f"{label}: {item.label} has units that are not contiguous {lies}, expected {size} "
                f"bytes from one to the next; {_compaction(item)}"
            )
        dense *= length
    if any(stride % size for stride in strides[:2]):
        raise ArgumentError(
            f"{label}: {item.label} has strides {strides}, expected multiples of its items' "
            f"{size} bytes; {_compaction(item)}"
        )
    moves = zip(strides[:2], shape[:2], strict=True)
    for stride, length in sorted((abs(stride), n) for stride, n in moves if n > 1):
        if stride < dense and item.is_result:
            raise ArgumentError(
                f"{label}: {item.label} has rows that share memory {lies}, expected each in a "
                f"place of its own; {_compaction(item)}"
            )
        dense = stride * length


def _compaction(item: Item) -> str:
    what = "allocate" if item.is_result else "copy" if item.view.contiguous else "compact"
    return advice(item.view, what, item.argument.name)
