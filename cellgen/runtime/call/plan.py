"""How to make a call of a known kind: C names, sizes, where each array enters the struct.

Input: a call that passed every check. Output: ``CallPlan``, which a function keeps for the
next call of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES, Function, Interface
from cellgen.runtime.build.library import DIMS, Library
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.call.arguments import (
    DTYPES,
    Checked,
    has_elements,
    lengths,
    refuse_overflow,
)
from cellgen.runtime.call.workspace import Pointer

KEPT_PLANS = 256


class Owner(Protocol):
    """The kernel that a function belongs to."""

    name: str
    interface: Interface

    def digest(self) -> str:
        """Digest of the sources."""

    def build(self) -> Built:
        """Compile the kernel, or find it in the cache."""

    def library(self) -> Library:
        """Load the compiled kernel."""


@dataclass(frozen=True)
class CallPlan:
    """How to make a call whose arguments have known names, types, dtypes, shapes and flags.

    ``arrays`` and ``given`` are inputs and ``out`` arrays that enter the C struct, ``nulls`` the
    places in it of absent gradients, ``fresh`` the results to allocate. A plan
    exists only where every check has passed, but for overlap: that takes addresses.
    """

    call: Callable[..., int]
    dims: tuple[int, ...]
    sizes: Pointer
    new: Callable[..., Pointer]
    struct: Pointer
    view: Callable[..., Pointer]
    pointer: Pointer
    element: Pointer
    dtype: np.dtype[np.floating]
    arrays: tuple[str, ...]
    nulls: tuple[tuple[int, Pointer], ...]
    given: tuple[str, ...]
    fresh: tuple[tuple[str, tuple[int, ...]], ...]
    workspace: int | None

    def read(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arrays that a call reads, of those that it is given."""
        return {name: arguments[name] for name in self.arrays}


def make_plan(kernel: Owner, function: Function, checked: Checked) -> CallPlan:
    """Look up the C names, sizes and types for a call that has been checked.

    Where no result has an element the plan runs nothing: there may be as many steps, or as wide
    weights without rows, as 64 bits can count.
    """
    label = f"{kernel.name}.{function.name}"
    refuse_overflow(label, function, checked.dims, checked.dtype.itemsize)
    runs = has_elements(function.results, checked.dims)
    library = kernel.library()
    ffi = library.ffi
    suffix, c_type = DTYPES[checked.dtype]
    entry = library.entry(function.name, suffix)
    dims = tuple(checked.dims[name] for name in function.dims)
    sizes = ffi.make(DIMS, dims)
    workspace = None
    if function.workspace:
        workspace = entry.size(sizes, ffi.NULL) if runs else 0
    if workspace is not None and workspace < 0:
        raise defect_of_size(label, checked.dims)
    return CallPlan(
        call=entry.call if runs else run_nothing,
        dims=dims,
        sizes=sizes,
        new=ffi.make,
        struct=entry.struct,
        view=ffi.from_buffer,
        pointer=ffi.typeof(f"{c_type}[]"),
        element=ffi.typeof(f"{c_type} *"),
        dtype=checked.dtype,
        arrays=tuple(item.name for item in function.struct_members if item.name in checked.inputs),
        nulls=tuple(
            (place, ffi.NULL)
            for place, item in enumerate(function.struct_members)
            if item.optional and item.name not in checked.inputs
        ),
        given=tuple(checked.outputs),
        fresh=tuple(
            (item.name, lengths(item, checked.dims))
            for item in function.results
            if item.name not in checked.outputs
        ),
        workspace=workspace,
    )


def run_nothing(*_: object) -> int:
    """Stand in for a function, or for the size of its workspace, where nothing is computed."""
    return 0


def defect(label: str, plan: CallPlan, code: int) -> CellgenError:
    """The error for a code that a function returned."""
    meaning = ERROR_CODES.get(code, "an unknown error code")
    return CellgenError(
        f"{label}: the compiled function returned {code}: {meaning} (dimensions {plan.dims}, "
        f"{plan.dtype}); the arguments passed every check, so the sources do not fit the "
        "interface: write them again with `cellgen build`, and report it if that does not help",
        code="kernel",
    )


def defect_of_size(label: str, dims: Mapping[str, int]) -> ArgumentError:
    """The error for more bytes than can be counted."""
    return ArgumentError(
        f"{label}: the workspace for {dims} has no size that 64 bits can hold; "
        "call it with smaller dimensions"
    )
