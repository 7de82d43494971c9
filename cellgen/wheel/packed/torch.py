"""Prebuilt kernels in PyTorch: a whole sequence with its gradients, on tensors of the CPU.

y = sequence(kernels.gru, x=x, h_prev=h, w_z=w_z, ...)      # y.h, y.h_last: tensors
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from cellgen.wheel.packed.kernels import GRADIENT, UPSTREAM, Array, PrebuiltKernel, Results
from cellgen.wheel.packed.options import OPTIONS, AnyArgument, KernelError

try:
    from ml_dtypes import bfloat16
except ImportError:  # then NumPy has no bfloat16
    bfloat16 = None

Context: TypeAlias = Any
"""What autograd keeps of a call."""


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        kernel: PrebuiltKernel,
        options: Mapping[str, object],
        names: tuple[str, ...],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        arrays = {n: _numpy(kernel, n, t) for n, t in zip(names, tensors, strict=True)}
        y = kernel.sequence_forward(**arrays, **options, save=True)
        ctx.kernel, ctx.names, ctx.saved = kernel, names, y.saved
        ctx.results = y._fields[:-1]
        results = tuple(map(_tensor, y[:-1]))
        ctx.save_for_backward(*tensors, *results)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Context, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        function = ctx.kernel.sequence_backward
        known = dict(zip((*ctx.names, *ctx.results), ctx.saved_tensors, strict=True))
        upstream_of = dict(zip(ctx.results, upstream, strict=True))
        arrays = {}
        for name, member in function.arguments.items():
            tensor = upstream_of[member.of] if member.role == UPSTREAM else known.get(name)
            if tensor is not None:
                arrays[name] = _numpy(ctx.kernel, name, tensor)
        g = function(**arrays, saved=ctx.saved)
        by = {m.of: getattr(g, n) for n, m in function.results.items() if m.role == GRADIENT}
        gradients = (_tensor(by[n]) if n in by else None for n in ctx.names)
        return (None, None, None, *gradients)


def _numpy(kernel: PrebuiltKernel, name: str, tensor: torch.Tensor) -> Array:
    if tensor.device.type != "cpu":
        raise KernelError(f"{kernel.name}: {name} is on {tensor.device}, expected the CPU")
    tensor = tensor.detach()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()  # type: ignore[no-any-return]
    if bfloat16 is None:
        raise KernelError(f"{kernel.name}: {name} is bfloat16, which needs `pip install ml_dtypes`")
    return tensor.view(torch.int16).numpy().view(bfloat16)  # type: ignore[no-any-return]


def _tensor(array: Array) -> torch.Tensor:
    if bfloat16 is None or array.dtype != bfloat16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def sequence(kernel: PrebuiltKernel, **arguments: AnyArgument) -> Results:
    """Compute a sequence; tensors and options as ``kernel.sequence_forward`` takes them.

    Gradients flow to every tensor that requires one, once. Scalars are numbers.
    Raises KernelError.
    """
    tensors = {
        n: value
        for n, value in arguments.items()
        if isinstance(value, torch.Tensor) and n not in OPTIONS
    }
    options = {n: value for n, value in arguments.items() if n not in tensors}
    function = kernel.sequence_forward
    results = _Sequence.apply(kernel, options, tuple(tensors), *tensors.values())
    return function.named(results)
