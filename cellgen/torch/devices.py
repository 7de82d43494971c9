"""What cellgen has for tensors of each type of device: a target of its own, and element types.

``PLACES`` is the table that everything asks; a new device is a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorPlace:
    """What there is for tensors of one type of device.

    ``target`` compiles the kernels; ``emulated``: on the CPU, to prove what a device computes.
    ``reads``: contents of tensors may be looked at, which on a device would wait for it.
    ``per_row``: gradients of weights can be formed row by row. ``parts``: outputs can be formed of
    some steps alone, or left out; where not, all are formed, and a part is shown.
    """

    target: str
    dtypes: tuple[torch.dtype, ...]
    emulated: bool = False
    reads: bool = False
    per_row: bool = False
    parts: bool = False

    @property
    def kinds(self) -> str:
        """The element types, for a message."""
        *others, last = (str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return f"{', '.join(others)} or {last}"


CPU = TensorPlace("c", (torch.float32, torch.float64), reads=True, per_row=True, parts=True)
CUDA = TensorPlace("cuda", (torch.float32, torch.float64, torch.bfloat16))

PLACES: dict[str, TensorPlace] = {"cpu": CPU, "meta": CPU, "cuda": CUDA}
"""By torch's name of the type of device. Tests put the emulation in the place of the CPU."""
