"""Run the forward pass of a call in segments of time side by side, on tensors of the CPU.

Input: a ``Call`` with a cut, its tables and tensors. Output: what the operator of the forward pass
gives. The kernel of C works on the memory of the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cellgen.frameworks.segments import in_segments, refuse_narrow
from cellgen.runtime.call.segments import Segmentation
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.options import SEGMENTS, with_tables
from cellgen.torch.devices import PLACES
from cellgen.torch.errors import TensorError
from cellgen.torch.segments_on_device import Forward, run_segments_on_device

if TYPE_CHECKING:
    from cellgen.torch.calls import Tables
    from cellgen.torch.derivatives import Call


def run_segments(
    call: Call,
    cut: Segmentation,
    tables: Tables,
    theta: Sequence[Tensor],
    *,
    save: bool,
    forward: Forward,
) -> list[Tensor]:
    """Compute all steps; outputs, then what is saved, if it is. Raises KindError, TensorError.

    ``forward`` calls the operator, which runs segments as rows on a device.
    """
    layout = call.layout(tables)
    sizes = layout.check(theta)
    layout.check_steps(sizes, theta[0], *tables)
    label, device = layout.label, theta[0].device
    place = PLACES.get(device.type)
    if place is None or device.type == "meta":
        raise TensorError(
            f"{label}: parallel is {SEGMENTS!r} and the tensors are on {device}, expected tensors "
            f"of the CPU or of CUDA; move them, or leave parallel out"
        )
    refuse_narrow(label, element_name(theta[0].dtype))
    if not place.reads:
        return run_segments_on_device(call, cut, tables, theta, save=save, forward=forward)
    arrays: dict[str, object] = {
        item.name: float(tensor) if item.is_scalar else tensor.detach().numpy()
        for item, tensor in zip(layout.theta, theta, strict=True)
    }
    scalars = zip((item.name for item in layout.scalars), call.scalars, strict=True)
    options = with_tables(
        call.options, *(None if table is None else table.numpy() for table in tables)
    )
    results = in_segments(
        call.known.kernel,
        layout,
        {**arrays, **dict(scalars)},
        options,
        cut,
        save=save,
        threads=torch.get_num_threads(),
    )
    return [torch.from_numpy(array) for array in results]
