"""Which modes of derivatives are at work: transforms of ``torch.func``, forward-mode, autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad


def is_transforming() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode is at work."""
    return bool(torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def is_forward_mode() -> bool:
    """Whether forward-mode is at work, and no other transform within it."""
    inner = torch._C._functorch.peek_interpreter_stack()
    is_innermost = inner is None or inner.key() == TransformType.Jvp
    return bool(forward_ad._current_level >= 0 and is_innermost)


def is_in_forward_mode() -> bool:
    """Whether forward-mode is at work, within other transforms or around them."""
    return bool(forward_ad._current_level >= 0)


def has_gradient(tensors: Sequence[Tensor | None]) -> bool:
    """Whether reverse mode, of a transform or of autograd, reads what is made of tensors."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    if any(one.key() == TransformType.Grad for one in stack):
        return True
    return torch.is_grad_enabled() and any(_requires_gradient(t) for t in tensors)


def _requires_gradient(tensor: Tensor | None) -> bool:
    """Whether a tensor, or what a transform has wrapped in it, requires a gradient."""
    while tensor is not None and not tensor.requires_grad:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor is not None


def is_differentiated(tensors: Sequence[Tensor | None]) -> bool:
    """Whether what a vmap gives is differentiated again, by a transform or by autograd."""
    if is_transforming():
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
