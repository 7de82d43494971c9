"""Send tensors of the CPU the way of tensors on a device: to the CUDA kernels, in their emulation.

``emulated_device()`` puts the operators' code for the key CUDA under that for the CPU, and CUDA's
row of the table of devices, emulated, in the place of the CPU's. Everything between a layer and the
launch of a kernel is then what runs on a device, but for the stream, which is the default one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from cellgen.torch import operators, schemas
from cellgen.torch.devices import CUDA, PLACES


@contextmanager
def emulated_device() -> Iterator[None]:
    """Run cells on tensors of the CPU as on a device for the body."""
    library = torch.library.Library("cellgen", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it takes another one's place
        for name, kernel in zip(schemas.NAMES, operators.KERNELS, strict=True):
            library.impl(name, kernel, "CPU", allow_override=True)
    try:
        with mock.patch.dict(PLACES, cpu=replace(CUDA, emulated=True)):
            yield
    finally:
        library._destroy()
