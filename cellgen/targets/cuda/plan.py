"""What a function over time does on a device, beside the steps that all targets share.

Input: the function, once its parts have been laid out. Output: ``DeviceTimePlan``, frozen and
printable (``cellgen show CELL --schedule --target cuda``); the text of the ``.cu`` takes from it
which arrays the workspace has, which strides are read and which kernel runs over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cellgen.targets.cuda.memory import MemoryContext
from cellgen.targets.cuda.tiers import TierChoice


@dataclass(frozen=True)
class DeviceTimePlan:
    """The choices for one function over time.

    ``strides`` are the strides of arrays over time that steps read, with their C texts; ``whole``
    the arrays that products or loops over all steps need row after row; ``ahead`` the products that
    serve every step at once; ``tier`` the kernel over all steps, or why there is none.
    """

    cell: str
    function: str
    memory: tuple[MemoryContext, ...]
    strides: tuple[tuple[str, str], ...]
    whole: tuple[str, ...]
    ahead: tuple[str, ...]
    tier: TierChoice

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.cell}.{self.function} on a device"
        yield from (f"  array {a.name}: {a.count} of {a.element}" for a in self.memory)
        yield f"  strides: {', '.join(name for name, _ in self.strides) or 'none'}"
        yield f"  row after row: {', '.join(self.whole) or 'none'}"
        yield from (f"  all steps at once: {product}" for product in self.ahead)
        kernel = self.tier.kernel
        if kernel is None:
            yield f"  one launch for each level and step: {self.tier.reason}"
            return
        yield f"  one launch for all steps: {kernel.kind}{' of one head' if kernel.heads else ''}"
        yield f"    arrays: {', '.join(a.name for a in kernel.memory) or 'none'}"
        yield f"    strides: {', '.join(name for name, _ in kernel.strides) or 'none'}"
