"""What a call of a prebuilt kernel chooses, and its values as arrays and numbers of C."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cellgen.wheel.packed.structs import NO_GAPS, NOWHERE, NumbersRecord, RequestRecord

AnyArgument: TypeAlias = Any
"""An argument or an option of a call."""
PRODUCTS = ("full", "bf16", "int8")
MOST_THREADS = 1024


class KernelError(ValueError):
    """A call with a name, a shape, a type or an option that the kernel does not take."""


@dataclass(frozen=True)
class CallOptions:
    """Which steps of a sequence are valid, and how a call runs.

    ``lengths`` (B) integers, ``mask`` and ``reset`` (T, B) bool: steps of each row, steps that
    keep the state, steps before which states start anew. ``products``: "full", "bf16" or "int8";
    None: "bf16" of bfloat16 arrays, else "full". ``threads``: all that the process may use where
    it is None; results do not depend on it.
    """

    lengths: npt.ArrayLike | None = None
    mask: npt.ArrayLike | None = None
    reset: npt.ArrayLike | None = None
    reverse: bool = False
    zero_output_for_mask: bool = False
    products: str | None = None
    threads: int | None = None

    def numbers(self, function: str) -> NumbersRecord:
        """Those that are numbers in C. Raises KernelError."""
        products = self.products
        if not (products is None or (isinstance(products, str) and products in PRODUCTS)):
            raise KernelError(
                f"{function}: products is {products!r}, expected {', '.join(PRODUCTS)}"
            )
        return NumbersRecord(
            reverse=bool(self.reverse),
            zero_output_for_mask=bool(self.zero_output_for_mask),
            outputs=NOWHERE,
            every=1,
            products=NOWHERE if products is None else PRODUCTS.index(products),
        )

    def put(self, function: str, request: RequestRecord, T: int, B: int) -> object:
        """Add those that are arrays to a request; what keeps them. Raises KernelError."""
        lengths = _rows(function, "lengths", self.lengths, (B,), np.int64)
        mask = _rows(function, "mask", self.mask, (T, B), np.bool_)
        reset = _rows(function, "reset", self.reset, (T, B), np.bool_)
        if lengths is not None:
            lengths = np.require(lengths, None, ("C", "A"))
            request.lengths = address_of(lengths)
        request.flag_stride[:] = NO_GAPS, NO_GAPS
        for place, flags in enumerate((mask, reset)):
            if flags is not None:
                request.flags[place] = address_of(flags)
                request.flag_stride[place] = NO_GAPS if flags.flags.c_contiguous else flags.strides
        return lengths, mask, reset


OPTIONS = tuple(CallOptions.__dataclass_fields__)
RUNS = ("save", "saved")
"""What a call says beside them: whether a run is kept, and which one."""
OVER_TIME = ("lengths", "mask", "reset")
"""Options that are arrays; a saved run has copies of them."""


def _rows(
    function: str, name: str, value: npt.ArrayLike | None, shape: tuple[int, ...], kind: type
) -> npt.NDArray[np.generic] | None:
    if value is None:
        return None
    array = array_of(function, name, value)
    fits = array.dtype.kind in ("iu" if kind is np.int64 else "bu")
    if array.shape != shape or not fits:
        raise KernelError(
            f"{function}: {name} is {array.dtype} {array.shape}, expected {shape} of "
            f"{'integers' if kind is np.int64 else 'bool'}"
        )
    return array.astype(kind, copy=False)


def array_of(function: str, name: str, value: AnyArgument) -> npt.NDArray[np.generic]:
    """A value as an array. Raises KernelError: rows that differ in length, a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise KernelError(f"{function}: {name} is a masked array; pass it filled, and mask=")
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise KernelError(f"{function}: {name} is no array: {error}") from error


def address_of(array: npt.NDArray[np.generic]) -> int:
    """Where its first element is."""
    address: int = array.__array_interface__["data"][0]
    return address


def thread_count(name: str, threads: int | None) -> int:
    """How many threads a call runs on: as asked for, ``CELLGEN_NUM_THREADS``, every processor."""
    if threads is None:
        text = os.environ.get("CELLGEN_NUM_THREADS", "")
        if text and not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_THREADS):
            raise KernelError(
                f"{name}: CELLGEN_NUM_THREADS is {text[:40]!r}, expected a number from 1 to "
                f"{MOST_THREADS}; set it to one or unset it, then all processors are used"
            )
        usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
        threads = int(text) if text else min(len(usable(0)), MOST_THREADS)
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise KernelError(
            f"{name}: threads is {threads!r}, expected a number from 1 to {MOST_THREADS}"
        )
    return threads
