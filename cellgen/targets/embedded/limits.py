"""Hold the buffers of an export to what a machine has, and say what would fit.

Input: bytes by struct for any sizes, and limits. Output: nothing, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cellgen.errors import UsageError
from cellgen.targets.embedded.asked import Asked

COUNTED = 2**31 - 1
"""What an ``int`` of 32 bits counts, as the loops of an export do."""

BytesOf = Callable[[Asked], Mapping[str, int]]


@dataclass(frozen=True)
class Limits:
    """Bytes that a machine has for the buffers of an export, where they are limited."""

    ram: int | None = None
    flash: int | None = None

    def check(self, cell: str, asked: Asked, bytes_of: BytesOf) -> None:
        """Refuse what is too large. Raises UsageError: by how much, and which sizes would fit."""
        for name, count in bytes_of(asked).items():
            if count > COUNTED:
                raise UsageError(
                    f"{cell}: its {name} would take {count} bytes, and an export counts in int, "
                    f"up to {COUNTED}; give smaller sizes"
                )
        kinds = (("ram", "RAM", self.ram, in_ram), ("flash", "flash", self.flash, in_flash))
        for option, name, limit, part in kinds:
            if limit is None:
                continue
            needed = part(asked, bytes_of(asked))
            total = sum(needed.values())
            if total <= limit:
                continue
            listed = ", ".join(f"{what} {count}" for what, count in needed.items())
            fits = _what_fits(asked, _total(part, bytes_of), limit)
            raise UsageError(
                f"{cell}: its buffers take {total} bytes of {name} ({listed}), {total - limit} "
                f"more than --limit-{option} {limit}; {fits}"
            )


Part = Callable[[Asked, Mapping[str, int]], dict[str, int]]


def _total(part: Part, bytes_of: BytesOf) -> Callable[[Asked], int]:
    return lambda asked: sum(part(asked, bytes_of(asked)).values())


def in_ram(asked: Asked, found: Mapping[str, int]) -> dict[str, int]:
    """What of an export's structs lies in RAM: weights only where they learn, or are loaded."""
    is_constant = bool(asked.weights) and not asked.train
    return {name: count for name, count in found.items() if name != "weights" or not is_constant}


def in_flash(asked: Asked, found: Mapping[str, int]) -> dict[str, int]:
    """What of them lies in flash, beside the code: weights that are exported."""
    return {"weights": found["weights"]} if asked.weights else {}


def _what_fits(asked: Asked, total: Callable[[Asked], int], limit: int) -> str:
    """Say the largest value of each size with which the rest would fit."""

    def with_size(name: str, size: int) -> Asked:
        if name == "window":
            return replace(asked, window=size)
        return replace(asked, sizes={**asked.sizes, name: size})

    found = []
    sizes = {name: size for name, size in asked.sizes.items() if size > 1}
    if asked.train and asked.window > 1:
        sizes["window"] = asked.window
    for name, size in sizes.items():
        low, high = 0, size - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = total(with_size(name, middle)) <= limit
            low, high = (middle, high) if fits else (low, middle - 1)
        if low:
            found.append(f"--window {low}" if name == "window" else f"{name}={low}")
    if not found:
        return "no smaller size of one dimension alone would fit"
    return f"with the other sizes as they are {' or '.join(found)} would fit"
