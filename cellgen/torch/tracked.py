"""Calls that autograd tracks where torch only runs them: what training by layers and cells calls.

Input: a ``TrackedCall``, made once for a layer or a cell, and tensors. Output: results, with a
graph. ``tracked.inc.h`` reads from its plan what the call is, and says what a gradient reads of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cellgen.torch import native
from cellgen.torch.derivatives import Call
from cellgen.torch.direct import DETACHED, IN_ONE, SAVES, is_quiet
from cellgen.torch.errors import DeclinedError

NO_TABLES = (None, None, None)


class TrackedCall(ABC):
    """A call as autograd tracks it.

    ``flags`` are those of ``direct``, ``results`` the names of what it gives, ``reads`` the places
    among these that its backward pass reads. What is saved are theta, these results, and one tensor
    of all else that is kept. ``upstream`` are, for each upstream gradient of the cell, the place of
    its result, -1 where it has none.
    """

    def __init__(
        self, call: Call, flags: int, results: Sequence[str], reads: Sequence[int]
    ) -> None:
        self.call, self.flags = call, flags | DETACHED | IN_ONE | SAVES
        self.results, self.reads = tuple(results), tuple(reads)
        self.count = len(call.known.layout.theta)
        names = [f"d_{name}" for name in results]
        upstream = [item.name for item in call.known.layout.upstream]
        self.upstream = tuple(names.index(n) if n in names else -1 for n in upstream)

    @cached_property
    def plan(self) -> object | None:
        """What C knows of the call; None where it does not make such calls."""
        functions, direct = native.functions(), self.call.direct
        if functions is None or direct is None or self.call.options.checkpoint:
            return None
        places = self.reads, self.upstream, self.call.known.layout.learns
        plan: object | None = functions.plan(
            direct.number, self.flags, direct.scalars, direct.numbers, *places
        )
        return plan

    @abstractmethod
    def gradients(
        self, needed: tuple[bool, ...], saved: Sequence[Any], upstream: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Return gradients of theta by operators, which may be differentiated again."""


class Tracked(torch.autograd.Function):
    """A call with its graph; arguments are a call and theta."""

    @staticmethod
    def forward(ctx: Any, call: TrackedCall, *theta: Any) -> tuple[Tensor, ...]:
        """Run the kernel. Raises DeclinedError."""
        functions = native.functions()
        pair = None if functions is None else functions.track(call.plan, *theta)
        if pair is None:
            raise DeclinedError
        ctx.call = call
        results: tuple[Tensor, ...]
        results, ctx.to_save = pair  # what save_for_backward sets, and set_materialize_grads: the
        ctx.materialize_grads = False  # two calls take a hundredth of a small layer's time
        return results

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients of the tensors."""
        call: TrackedCall = ctx.call
        needed, saved = ctx.needs_input_grad, ctx.saved_tensors
        if not torch.is_grad_enabled() and is_quiet():
            functions = native.functions()
            gradients: tuple[Tensor | None, ...] | None = None
            if functions is not None:
                gradients = functions.track_back(call.plan, needed, saved, upstream)
            if gradients is not None:
                return gradients
        return (None, *call.gradients(needed[1:], saved, upstream))


if hasattr(Tracked, "_backward_cls"):
    # What the engine calls of a node: torch's looks for `backward` or `vjp` first, in Python.
    Tracked._backward_cls.apply = Tracked.backward

run_tracked: Callable[..., Sequence[Tensor]] = super(torch.autograd.Function, Tracked).apply
"""``Tracked.apply`` without a look for transforms of torch.func, which a usual call has not."""
