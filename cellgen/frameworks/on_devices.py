"""What calls of frameworks cannot ask of kernels of CUDA.

Shared by the bridges that launch kernels on a framework's own memory and stream.
"""

from __future__ import annotations

from dataclasses import replace

from cellgen.frameworks.selection import LAST, ON_TENSORS, is_last
from cellgen.runtime.options import BF16, Options

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
