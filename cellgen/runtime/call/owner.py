"""The kernel that functions belong to, as calls see it, and the error for a defect of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES, Interface
from cellgen.runtime.build.library import Library
from cellgen.runtime.build.shared_object import Built

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


def defect(label: str, dims: tuple[int, ...], dtype: np.dtype[Any], code: int) -> CellgenError:
    """The error for a code that a function returned."""
    meaning = ERROR_CODES.get(code, "an unknown error code")
    return CellgenError(
        f"{label}: the compiled function returned {code}: {meaning} (dimensions {dims}, "
        f"{dtype}); the arguments passed every check, so the sources do not fit the "
        "interface: write them again with `cellgen build`, and report it if that does not help",
        code="kernel",
    )


def defect_of_size(label: str, dims: Mapping[str, int]) -> ArgumentError:
    """The error for more bytes than can be counted."""
    return ArgumentError(
        f"{label}: the workspace for {dims} has no size that 64 bits can hold; "
        "call it with smaller dimensions"
    )
