"""Hold the buffers of an export to what a machine has, and say what would fit.

Input: bytes by struct for any sizes, and limits. Output: nothing, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cellgen.errors import UsageError
from cellgen.targets.embedded.request import ExportRequest

COUNTED = 2**31 - 1
"""What an ``int`` of 32 bits counts, as the loops of an export do."""

BytesOf = Callable[[ExportRequest], Mapping[str, int]]


@dataclass(frozen=True)
class Limits:
    """Bytes that a machine has for the buffers of an export, where they are limited."""

    ram: int | None = None
    flash: int | None = None

    def check(self, cell: str, request: ExportRequest, bytes_of: BytesOf) -> None:
        """Refuse what is too large. Raises UsageError: by how much, and which sizes would fit."""
        for name, count in bytes_of(request).items():
            if count > COUNTED:
                raise UsageError(
                    f"{cell}: its {name} would take {count} bytes, and an export counts in int, "
                    f"up to {COUNTED}; give smaller sizes"
                )
        kinds = (("ram", "RAM", self.ram, in_ram), ("flash", "flash", self.flash, in_flash))
        for option, name, limit, part in kinds:
            if limit is None:
                continue
            needed = part(request, bytes_of(request))
            total = sum(needed.values())
            if total <= limit:
                continue
            listed = ", ".join(f"{what} {count}" for what, count in needed.items())
            fits = _what_fits(request, _total(part, bytes_of), limit)
            raise UsageError(
                f"{cell}: its buffers take {total} bytes of {name} ({listed}), {total - limit} "
                f"more than --limit-{option} {limit}; {fits}"
            )


Part = Callable[[ExportRequest, Mapping[str, int]], dict[str, int]]


def _total(part: Part, bytes_of: BytesOf) -> Callable[[ExportRequest], int]:
    return lambda request: sum(part(request, bytes_of(request)).values())


def in_ram(request: ExportRequest, sizes: Mapping[str, int]) -> dict[str, int]:
    """What of an export's structs lies in RAM: weights only where they learn, or are loaded."""
    is_constant = bool(request.weights) and not request.train
    return {name: count for name, count in sizes.items() if name != "weights" or not is_constant}


def in_flash(request: ExportRequest, sizes: Mapping[str, int]) -> dict[str, int]:
    """What of them lies in flash, beside the code: weights that are exported."""
    return {"weights": sizes["weights"]} if request.weights else {}


def _what_fits(request: ExportRequest, total: Callable[[ExportRequest], int], limit: int) -> str:
    """Say the largest value of each size with which the rest would fit."""

    def with_size(name: str, size: int) -> ExportRequest:
        if name == "window":
            return replace(request, window=size)
        return replace(request, sizes={**request.sizes, name: size})

    choices = []
    sizes = {name: size for name, size in request.sizes.items() if size > 1}
    if request.train and request.window > 1:
        sizes["window"] = request.window
    for name, size in sizes.items():
        low, high = 0, size - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = total(with_size(name, middle)) <= limit
            low, high = (middle, high) if fits else (low, middle - 1)
        if low:
            choices.append(f"--window {low}" if name == "window" else f"{name}={low}")
    if not choices:
        return "no smaller size of one dimension alone would fit"
    return f"with the other sizes as they are {' or '.join(choices)} would fit"
