"""What calls of frameworks can ask of kernels of CUDA, and what such a kernel is told of a call.

Shared by the bridges that launch kernels on a framework's own memory and stream.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from cellgen.frameworks.selection import LAST, ON_TENSORS, is_last
from cellgen.runtime.options import BACKWARD, BF16, Options

LACKING = {
    "every": "whose kernels form the outputs of all steps",
    "products": "whose kernels have no products='bf16'",
    "flush_denormals": "whose kernels take denormal numbers as they are, at no cost",
    "checkpoint": "whose kernels keep what every step saves",
    "outputs": "whose kernels form all outputs",
    LAST: "whose kernels form the outputs of all steps",
    "per_row": "whose kernels sum gradients of weights over rows",
}
"""Options that kernels of CUDA do not have for arrays of a framework, and why."""


def lacking(options: Options) -> str:
    """The option of a call that kernels of CUDA do not have, a name of ``LACKING``; empty: none."""
    usual = replace(ON_TENSORS, products=options.products)
    name = next((n for n in LACKING if getattr(options, n) != getattr(usual, n)), "")
    name = LAST if is_last(options) else name
    return "products" if options.products == BF16 and name != "every" else name


def stated(function: str, options: Options) -> Options:
    """What a kernel of a function is told of a call's options, beside its tables."""
    window = options.window if function == BACKWARD else 0
    return _stated(options.reverse, options.zero_output_for_mask, window)


@lru_cache(maxsize=64)
def _stated(reverse: bool, zero_output_for_mask: bool, window: int) -> Options:
    return Options(reverse=reverse, zero_output_for_mask=zero_output_for_mask, window=window)
