"""What cellgen has for tensors of each type of device: a target of its own, and element types.

``PLACES`` is the table that everything asks; a new device is a row.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from cellgen.runtime.call.stored import element_name
from cellgen.torch.errors import KindError


@dataclass(frozen=True)
class TensorPlace:
    """What there is for tensors of one type of device.

    ``target`` compiles the kernels; ``emulated``: on the CPU, to prove what a device computes.
    ``reads``: contents of tensors may be looked at, which on a device would wait for it.
    ``per_row``: gradients of weights can be formed row by row. ``parts``: outputs can be formed of
    some steps alone, or left out; where not, all are formed, and a part is shown. ``widens``:
    numbers of 16 bits are computed in float32, so that gates are kept in float16 and checkpoints in
    float32.
    """

    target: str
    dtypes: tuple[torch.dtype, ...]
    emulated: bool = False
    reads: bool = False
    per_row: bool = False
    parts: bool = False
    widens: bool = False

    @property
    def kinds(self) -> str:
        """The element types, for a message."""
        *others, last = (element_name(dtype) for dtype in self.dtypes)
        return f"{', '.join(others)} or {last}"


WIDE = torch.float32, torch.float64
CPU = TensorPlace(
    "c",
    (*WIDE, torch.bfloat16, torch.float16),
    reads=True,
    per_row=True,
    parts=True,
    widens=True,
)
CUDA = TensorPlace("cuda", (*WIDE, torch.bfloat16, torch.float16))
ANYWHERE = TensorPlace("torch", (*WIDE, torch.bfloat16, torch.float16))
"""What a form of torch's own operators has, on every device."""

PLACES: dict[str, TensorPlace] = {"cpu": CPU, "meta": CPU, "cuda": CUDA}
"""By torch's name of the type of device. Tests put the emulation in the place of the CPU."""


def known_dtype(label: str, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the type of parameters, unless no device computes in it. Raises KindError."""
    known = dict.fromkeys(kind for place in PLACES.values() for kind in place.dtypes)
    if dtype is not None and dtype not in known:
        raise KindError(
            f"{label}: dtype is {dtype}, expected one of {', '.join(map(str, known))}; leave it "
            f"out for torch's default"
        )
    return dtype


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the one that kernels are launched on: Triton takes the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_capturing(device: torch.device) -> bool:
    """Whether a graph of CUDA is captured, in which nothing may wait for the device."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
